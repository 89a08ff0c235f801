"""Rows of many table partitions wait together; those with the most are written first."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, UUIDType
from support.local_catalog import LocalCatalog

from headgate.control_protocol.events import TableStart
from headgate.data_plane.batch.writer_task_plan import SourcePlan, load_table_and_plan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.data_plane.write.table_outlets import PartitionedRows

SCHEMA = Schema(
    NestedField(1, "p", LongType()),
    NestedField(2, "n", LongType()),
    NestedField(3, "u", UUIDType()),
)
BY_P = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))


def planned(local: LocalCatalog, spec: PartitionSpec) -> tuple[PartitionedRows, DataFiles]:
    table = local.catalog.create_table("db.t", SCHEMA, partition_spec=spec)
    start = TableStart(
        "db.t", str(table.metadata.table_uuid), 0, 0, f"{table.location()}/data/nonce"
    )
    shape = file_shape_of(load_table_and_plan(local.catalog, start, SourcePlan({})))
    files = DataFiles(shape, start.file_prefix, 1 << 27)
    return PartitionedRows(shape.partitioner, files), files


def batch(partitions: list[int], begin: int) -> pa.RecordBatch:
    rows = [
        {"p": partition, "n": begin + place, "u": bytes(16)}
        for place, partition in enumerate(partitions)
    ]
    return pa.RecordBatch.from_pylist(rows, schema_to_pyarrow(SCHEMA, include_field_ids=False))


@pytest.mark.parametrize("spec", [BY_P, PartitionSpec()])
def test_every_row_is_written_once(
    sqlite_catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch, spec: PartitionSpec
) -> None:
    monkeypatch.setattr(f"{PartitionedRows.__module__}.BUFFER_BYTES", 20_000)
    rows, files = planned(sqlite_catalog, spec)
    for begin in range(0, 10_000, 100):
        rows.add_rows(batch([number * number % 37 for number in range(begin, begin + 100)], begin))
    rows.flush()
    tables = [
        pq.read_table(f.path.removeprefix("file://"), partitioning=None) for f in files.finish()
    ]
    found = pa.concat_tables(tables).sort_by("n")
    assert found["n"].to_pylist() == list(range(10_000))
    assert found["p"].to_pylist() == [number * number % 37 for number in range(10_000)]


def test_partitions_with_few_rows_wait_for_more(
    sqlite_catalog: LocalCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{PartitionedRows.__module__}.BUFFER_BYTES", 100_000)
    rows, files = planned(sqlite_catalog, BY_P)
    for begin in range(10):
        rows.add_rows(batch([0] * 900 + list(range(1, 101)), 1000 * begin))
    assert [path.parent.name for path in tmp_path.rglob("*.parquet")] == ["p=0"]
    rows.flush()
    written = files.finish()
    assert len(written) == 101
    assert min(file.records for file in written) == 10
