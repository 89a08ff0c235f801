"""Rows that have expired already when they come: left out, if that is wanted (EXPIRY-1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.changes_desk import read_file
from support.local_catalog import LocalCatalog, local_catalog

from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchWritten
from headgate.data_plane.batch.row_rules import RowRules
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import SourcePlan, plan_of_table
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_chunk_around_poison
from headgate.kafka.push_source import Record
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

LIMIT_MS = 1_785_582_000_000
"""2026-08-01T11:00:00Z"""

TIMES = {
    "timestamptz": ("2026-08-01T10:59:59.999999Z", "2026-08-01T11:00:00Z"),
    "timestamp": ("2026-08-01T10:59:59.999999", "2026-08-01T11:00:00"),
    "date": ("2026-07-31", "2026-08-01"),
}


def rows_of(local: LocalCatalog, shaping: Shaping, *rows: dict[str, Any]) -> tuple[list[Any], int]:
    """What is written of these records, and how many were skipped."""
    table = local.catalog.load_table("db.t")
    start = TableStart(
        "db.t",
        str(table.metadata.table_uuid),
        table.schema().schema_id,
        table.spec().spec_id,
        f"{table.location()}/data/7",
    )
    plan = plan_of_table(table, start, SourcePlan({}, sink="trips"), shaping)
    at = TopicPartition("trips", 0)
    batch = Batch(
        *(1, TransactionId(Epoch(1), TransactionNumber(1)), start),
        *({at: OffsetRange(0, len(rows))}, 1 << 27, {"trips": TopicId("id")}),
    )
    records = [
        Record("trips", 0, offset, 0, json.dumps(row).encode(), None, [])
        for offset, row in enumerate(rows)
    ]
    done = write_chunk_around_poison(plan, batch, chunk_of([records]))
    assert isinstance(done, BatchWritten), done
    result = done.partitions[at]
    assert result.records + result.skipped == len(rows)
    written = [row["id"] for file in done.files for row in read_file(table.io, file)]
    return sorted(written), result.skipped


@pytest.mark.parametrize("kind", TIMES)
def test_expiry_1_late_rows_are_skipped_below_the_limit_that_the_table_stores(
    tmp_path: Path, kind: str
) -> None:
    local = local_catalog(tmp_path)
    create_table_if_missing(local.catalog, "db.t", TableDeclaration({"id": "long", "at day": kind}))
    late, young = TIMES[kind]
    rows = [{"id": 1, "at day": late}, {"id": 2, "at day": young}, {"id": 3, "at day": None}]
    skipping = Shaping(rules=RowRules(late_by="at day"))
    assert rows_of(local, skipping, *rows) == ([1, 2, 3], 0)
    with local.catalog.load_table("db.t").transaction() as transaction:
        transaction.set_properties({"headgate.trips.expired-before": str(LIMIT_MS)})
    assert rows_of(local, skipping, *rows) == ([2, 3], 1)
    assert rows_of(local, Shaping(), *rows) == ([1, 2, 3], 0)
    both = Shaping(rules=RowRules(where="id = 1 or id = 3", late_by="at day"))
    assert rows_of(local, both, *rows) == ([3], 2)
    local.catalog.close()
