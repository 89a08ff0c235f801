"""Writes position deletes as other engines do, which headgate has to leave alone."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
    ]
)


_INT_IDS = NestedField(
    135, "equality_ids", ListType(136, IntegerType(), element_required=True), required=False
)


class _DeleteWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    def _with_partition(self, format_version: Any) -> Schema:
        """As Java reads it: pyiceberg declares the ids of equality deletes longer."""
        entry = super()._with_partition(format_version)
        files = entry.find_field("data_file")
        assert isinstance(files.field_type, StructType)
        columns = [_INT_IDS if f.field_id == 135 else f for f in files.field_type.fields]
        changed = files.model_copy(update={"field_type": StructType(*columns)})
        return Schema(*(changed if f.field_id == files.field_id else f for f in entry.fields))


def delete_first_row(table: Table, path: str, *, named: bool = False) -> None:
    """Mark the first row of a data file, of a table without partitions, as deleted.

    ``named``: the delete file's bounds say which data file it is about.
    """
    bounds = {2147483546: path.encode()} if named else {}
    rows = pa.table([pa.array([path]), pa.array([0])], schema=_SCHEMA)
    _commit(table, _describe(_write(table, rows), bounds))


def delete_by_equality(table: Table, column: str, value: Any) -> None:
    """Hide the rows with this value, as Flink's upserts do; its first spec has no partitions."""
    found = schema_to_pyarrow(table.schema()).field(column)
    rows = pa.table([pa.array([value], found.type)], schema=pa.schema([found]))
    of = [table.schema().find_field(column).field_id]
    _commit(table, _describe(_write(table, rows), {}, of))


def _write(table: Table, rows: pa.Table) -> str:
    at = f"{table.location()}/data/deletes-{uuid.uuid4()}.parquet"
    pq.write_table(rows, at.removeprefix("file://"))
    return at


def _commit(table: Table, file: Any) -> None:
    metadata, head = table.metadata, table.current_snapshot()
    assert head is not None
    snapshot_id = metadata.new_snapshot_id()
    manifest = table.io.new_output(f"{metadata.location}/metadata/{uuid.uuid4()}-m0.avro")
    spec = table.specs()[file.spec_id]
    with _DeleteWriter(spec, table.schema(), manifest, snapshot_id, "deflate") as writer:
        writer.add(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file
            )
        )
    listed = table.io.new_output(f"{metadata.location}/metadata/snap-{snapshot_id}-0.avro")
    number = metadata.next_sequence_number()
    with write_manifest_list(2, listed, snapshot_id, head.snapshot_id, number, "deflate") as lister:
        lister.add_manifests([writer.to_manifest_file(), *head.manifests(table.io)])
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=head.snapshot_id,
        sequence_number=number,
        timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
        manifest_list=listed.location,
        summary=Summary(Operation.DELETE, **{"added-position-deletes": "1"}),
        schema_id=metadata.current_schema_id,
    )
    moved = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id)  # type: ignore[call-arg]
    table.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=snapshot), moved))


def _describe(at: str, bounds: dict[int, bytes], equality_ids: list[int] | None = None) -> Any:
    content = DataFileContent.EQUALITY_DELETES if equality_ids else DataFileContent.POSITION_DELETES
    file = DataFile.from_args(
        content=content,
        file_path=at,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=Path(at.removeprefix("file://")).stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds=bounds,
        upper_bounds=bounds,
        key_metadata=None,
        split_offsets=None,
        equality_ids=equality_ids,
        sort_order_id=None,
    )
    file.spec_id = 0
    return file
