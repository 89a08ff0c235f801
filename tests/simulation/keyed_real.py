"""A real Iceberg table with a key in memory, read and compacted by other code than the sink's."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.types import IntegerType, LongType, NestedField
from simulation.keys import Keys
from simulation.memory_io import MemoryIO, MemoryStorage
from simulation.real_catalog import MAIN, LiveFile, RealCatalog
from support.verdicts import Kind, Violation

from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.testing import SourceRecord
from headgate.tables.iceberg import manifests_v3
from headgate.tables.iceberg.commit_request import branch_update, next_snapshot
from headgate.tables.iceberg.manifests import SnapshotFiles, to_manifest_data_files
from headgate.tables.iceberg.upsert.delete_manifests import Deletions
from headgate.tables.iceberg.upsert.key_files import OFFSET, PARTITION
from headgate.tables.iceberg.upsert.position_deletes import sole_referenced_data_file
from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy

BY = KeyedBy(("id",), "kafka_partition", "kafka_offset")
COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, BY.partition, IntegerType(), required=False),
    NestedField(3, BY.offset, LongType(), required=False),
    identifier_field_ids=[1],
)
AT, DELETED_AT = 4, 5
"""The fields of what rows have besides in the seeds of ``ages.AGED``."""
NAMES = {each.field_id: each.name for each in COLUMNS.fields} | {AT: "at", DELETED_AT: "deleted_at"}


class KeyedStorage(MemoryStorage):
    """Data files and key files are Parquet to who reads them as files."""

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys
        self._of_keys: set[str] = set()

    def write_keys(self, prefix: str, records: list[SourceRecord]) -> WrittenFile:
        file = super().write_keys(prefix, records)
        self._of_keys.add(file.path)
        return file

    def more_columns(self, _: list[SourceRecord]) -> dict[int | str, pa.Array]:
        """By field, what rows have besides their key and coordinates."""
        return {}

    def content(self, path: str) -> bytes:
        return self._parquet(path) if path in self.files else super().content(path)

    def _parquet(self, path: str) -> bytes:
        records = self.files[path]
        columns: dict[int | str, pa.Array] = {}
        if path in self._of_keys:
            partition, offset = PARTITION, OFFSET
        else:
            partition, offset, columns = 2, 3, self.more_columns(records)
        columns[1] = pa.array([self._keys.key(record) for record in records], pa.int64())
        columns[partition] = pa.array([record.partition for record in records], pa.int32())
        columns[offset] = pa.array([record.offset for record in records], pa.int64())
        schema = pa.schema([_field(of, values.type) for of, values in columns.items()])
        out = io.BytesIO()
        pq.write_table(pa.table(list(columns.values()), schema=schema), out)
        return out.getvalue()


def _field(of: int | str, kind: pa.DataType) -> pa.Field:
    if isinstance(of, str):
        return pa.field(of, kind)
    return pa.field(NAMES[of], kind, metadata={"PARQUET:field_id": str(of)})


@dataclass(frozen=True, slots=True)
class _Row:
    path: str
    place: int
    record: SourceRecord


class KeyedRealCatalog(RealCatalog):
    columns = COLUMNS

    def __init__(
        self, keys: Keys, table: str, *, serves: bool, beside: KeyedStorage | None = None
    ) -> None:
        self._keys = keys
        self.properties = {**self.properties, "format-version": str(keys.version)}
        self._listed: dict[str, list[ManifestEntry]] = {}
        self._dead: dict[tuple[str, str], list[int]] = {}
        super().__init__(beside or KeyedStorage(keys), table, serves=serves)

    # -------------------------------------------------------------------------------- as a reader

    def visible_rows(self) -> list[SourceRecord]:
        return [row.record for row in self._rows()]

    def data_files(self, snapshot: Snapshot) -> tuple[LiveFile, ...]:
        return tuple(LiveFile(e.data_file.file_path) for e in self._of(snapshot, deletes=False))

    def _rows(self) -> Iterator[_Row]:
        """Raises ``Violation`` where a data file has two delete files (KEY-6)."""
        head = self.metadata.current_snapshot()
        if head is None:
            return
        deletes = self._of(head, deletes=True)
        about = Counter(sole_referenced_data_file(entry.data_file) for entry in deletes)
        for entry in self._of(head, deletes=False):
            path = entry.data_file.file_path
            if about[path] > 1:
                raise Violation(Kind.DOUBLE, f"{path} has {about[path]} delete files")
            dead = {
                place
                for each in deletes
                if (each.sequence_number or 0) >= (entry.sequence_number or 0)
                for place in self._dead_in(each.data_file, path)
            }
            for place, record in enumerate(self.storage.files.get(path, ())):
                if place not in dead:
                    yield _Row(path, place, record)

    def _of(self, snapshot: Snapshot, *, deletes: bool) -> list[ManifestEntry]:
        found, file_io = [], MemoryIO(self.storage)
        try:
            for manifest in manifests_v3.read_manifest_list(file_io, snapshot.manifest_list):
                path = manifest.manifest_path
                if path not in self._listed:
                    self._listed[path] = list(manifests_v3.read_live_entries(file_io, manifest))
                found += self._listed[path]
        except FileNotFoundError as error:
            what = f"{self.table} refers to what is gone: {error}"
            raise Violation(Kind.LOSS, what) from error
        return [e for e in found if (e.data_file.content is not DataFileContent.DATA) is deletes]

    def _dead_in(self, file: DataFile, path: str) -> list[int]:
        """By pyiceberg, not by the code that wrote it."""
        known = self._dead.get((file.file_path, path))
        if known is None:
            whole = self.storage.content(file.file_path)
            known = _vector(whole, path) if _is_puffin(file) else _positions(whole, path)
            self._dead[file.file_path, path] = known
        return known

    # -------------------------------------------------------------------------------- as a writer

    def append_foreign(self) -> None:
        """A snapshot without files, as somebody else makes it."""
        head = self.metadata.current_snapshot()
        table, snapshot_id = self._foreign(), self.metadata.new_snapshot_id()
        written = SnapshotFiles(table, snapshot_id)
        listed = written.write_manifest_list((), head, self.metadata.next_sequence_number())
        self._add(table, snapshot_id, listed, Operation.APPEND)

    def compact(self) -> None:
        """All live rows as one file; of two times one the delete files stay, about nothing."""
        head = self.metadata.current_snapshot()
        if head is None:
            return
        self._upgrade()
        gone = frozenset(entry.data_file.file_path for entry in self._of(head, deletes=False))
        records, table = self.visible_rows(), self._foreign()
        merged = [self.storage.write(f"{self.location}/compacted-", records)] if records else []
        files, snapshot_id = to_manifest_data_files(table, merged), self.metadata.new_snapshot_id()
        written, number = SnapshotFiles(table, snapshot_id), self.metadata.next_sequence_number()
        if number % 2:
            listed = written.write_manifest_list_without(
                gone, files, head, number, deletions=Deletions()
            )
        else:
            listed = written.write_manifest_list(files, None, number)
        self._add(table, snapshot_id, listed, Operation.REPLACE)

    def _add(self, table: Table, snapshot_id: int, listed: Any, operation: Operation) -> None:
        snapshot = next_snapshot(
            self.metadata,
            self.metadata.current_snapshot(),
            listed,
            snapshot_id=snapshot_id,
            summary=Summary(operation),
        )
        branch = branch_update(table.metadata, MAIN, snapshot_id)
        self.call(((), (AddSnapshotUpdate(snapshot=snapshot), branch)))

    def _upgrade(self) -> None:
        """As an engine does that knows version 3."""
        if self._keys.upgraded and self.metadata.format_version == 2:
            before = self.metadata.model_dump(by_alias=True)
            replaced = {"metadata-file": self.at, "timestamp-ms": self.metadata.last_updated_ms}
            self.metadata = TableMetadataV3(
                **before
                | {"format-version": manifests_v3.VERSION, "next-row-id": 0}
                | {"metadata-log": [*before["metadata-log"], replaced]}
            )
            self._written()


def _is_puffin(file: DataFile) -> bool:
    return file.file_format is FileFormat.PUFFIN


def _vector(whole: bytes, path: str) -> list[int]:
    for vector in deletion_vectors_from_puffin_file(PuffinFile(whole)):
        if vector.referenced_data_file == path:
            return [int(place) for place in vector.to_vector().to_pylist()]
    return []


def _positions(whole: bytes, path: str) -> list[int]:
    rows = pq.read_table(io.BytesIO(whole)).to_pylist()
    return [row["pos"] for row in rows if row["file_path"] == path]
