"""Records that a table of another kind does not hold, though their values have its types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.control_protocol.bad_records import Disposal
from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import FileKind, TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchWritten
from headgate.control_protocol.table_kinds import Layout
from headgate.data.envelopes.changes import Changes
from headgate.data.writers.layout_plans import plan_of_layout
from headgate.data.writers.plan import Handling, SourcePlan
from headgate.data.writers.put import chunk_of
from headgate.data.writers.ranges import write_chunks
from headgate.participant.embedding import Record

COLUMNS = Struct(
    (
        Column("id", "long"),
        Column("name", "string", required=False),
        Column("at_partition", "int", required=False),
        Column("at_offset", "long", required=False),
    )
)
PLACES = {"partition": "at_partition", "offset": "at_offset"}
P0 = TopicPartition("trips", 0)


class NoSevens:
    def unfit(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        sevens = pc.indices_nonzero(pc.fill_null(pc.equal(rows.column("id"), 7), False))
        return dict.fromkeys(sevens.to_pylist(), "id: no seven here")


def written(folder: Path, values: list[bytes | None], changes: Changes | None) -> BatchWritten:
    layout = Layout("u1", 5, COLUMNS, folder.as_uri(), values=NoSevens())
    handling = Handling(policy=Disposal.SKIP)
    source = SourcePlan({}, record_columns=PLACES, handling=handling, changes=changes)
    start = TableStart("db.t", "u1", 5, 0, f"{folder.as_uri()}/data/7")
    batch = Batch(
        number=1,
        transaction=TransactionId(Epoch(3), TransactionNumber(7)),
        table=start,
        ranges={P0: OffsetRange(0, len(values))},
        target_file_bytes=1 << 20,
    )
    records = [Record("trips", 0, n, 0, value, b"7", []) for n, value in enumerate(values)]
    outcome = write_chunks(plan_of_layout(layout, "db.t", source), batch, [chunk_of([records])])
    assert isinstance(outcome, BatchWritten)
    return outcome


def rows_of(outcome: BatchWritten) -> list[tuple[int, int]]:
    tables = (
        pq.read_table(file.path.removeprefix("file://"))
        for file in outcome.files
        if file.kind is FileKind.ROWS
    )
    rows = (row for table in tables for row in table.to_pylist())
    return [(row["id"], row["at_offset"]) for row in rows]


VALUES: list[bytes | None] = [
    b'{"id": 7, "name": "a"}',
    b'{"id": 1}',
    b"{broken",
    b'{"id": 7}',
    b'{"id": 2}',
]


def test_point_1_records_that_the_table_does_not_hold_are_bad_ones(tmp_path: Path) -> None:
    outcome = written(tmp_path, VALUES, None)
    assert rows_of(outcome) == [(1, 1), (2, 4)]
    result = outcome.partitions[P0]
    assert (result.records, result.skipped, result.bad) == (2, 3, 3)


def test_point_1_so_they_are_in_keyed_tables(tmp_path: Path) -> None:
    outcome = written(tmp_path, [*VALUES, None], Changes(key=("id",)))
    assert rows_of(outcome) == [(1, 1), (2, 4)]
    result = outcome.partitions[P0]
    assert (result.records, result.skipped, result.bad, result.deleted) == (2, 3, 3, 1)
