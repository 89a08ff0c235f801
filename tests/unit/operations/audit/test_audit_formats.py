"""The audit's look at single records, in files of every format."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.data_plane.every_type import append
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType
from support.local_catalog import local_catalog

from headgate.control_protocol.identifiers import SinkName, TopicPartition
from headgate.operations.audit.table_records import scan_records
from headgate.tables.iceberg.avro_data_file_columns import read_avro_columns
from headgate.tables.iceberg.reader import IcebergReader

FLAT = Schema(
    NestedField(1, "pad", StructType(NestedField(5, "x", StringType()))),
    NestedField(2, "topic", StringType()),
    NestedField(3, "partition", IntegerType()),
    NestedField(4, "offset", LongType()),
)


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro"])
def test_records_are_told_apart_in_files_of_every_format(kind: str, tmp_path: Path) -> None:
    local = local_catalog(tmp_path)
    table = local.catalog.create_table("db.t", FLAT, properties={"write.format.default": kind})
    some = [
        {"pad": {"x": "y"} if at % 2 else None, "topic": "a", "partition": 0, "offset": at}
        for at in (*range(20), 7)
    ]
    append(local.catalog, table, some)
    table = local.catalog.load_table("db.t")
    seen = scan_records(
        IcebergReader(table, SinkName("sink"), "main"),
        ("topic", "partition", "offset"),
        frozenset(),
        on_progress=lambda *_: None,
    )
    of_partition = seen.get_or_add_offsets_of(TopicPartition("a", 0))
    assert list(of_partition.offsets) == list(range(20))
    assert of_partition.twice == 1
    assert [offset for offset, _ in of_partition.examples] == [7]


def test_a_column_inside_of_a_struct_is_found_in_an_avro_file(tmp_path: Path) -> None:
    local = local_catalog(tmp_path)
    table = local.catalog.create_table("db.t", FLAT, properties={"write.format.default": "avro"})
    append(local.catalog, table, [{"pad": {"x": "y"}, "offset": 1}, {"offset": 2}])
    (task,) = local.catalog.load_table("db.t").scan().plan_files()
    (rows,) = read_avro_columns(table.io, task, table.schema(), ("pad.x", "offset"))
    assert rows.to_pydict() == {"pad.x": ["y", None], "offset": [1, 2]}


def test_deletes_from_an_avro_file_are_not_passed_over(tmp_path: Path) -> None:
    local = local_catalog(tmp_path)
    table = local.catalog.create_table("db.t", FLAT)
    file = DataFile.from_args(file_path="a.avro", file_format=FileFormat.AVRO)
    with pytest.raises(ValueError, match="not applied"):
        next(read_avro_columns(table.io, FileScanTask(file, {file}), table.schema(), ("offset",)))
