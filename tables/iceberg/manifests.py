"""Writes the manifests and the manifest list of one snapshot; the protocol never reads them.

Iceberg's spec (sections *Manifests* and *Manifest Lists*) sets the format, pyiceberg writes it, and
``manifests_v3`` what version 3 has beyond that. Merging follows Java's ``MergeAppend`` and the
table's ``commit.manifest*`` properties, so that the cost of a commit does not grow with the number
of commits before it.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.conversions import from_bytes
from pyiceberg.io import OutputFile
from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType
from pyiceberg.utils.bin_packing import ListPacker
from pyiceberg.utils.properties import property_as_bool, property_as_int

from headgate.control_protocol.errors import StopSink, TableChanged
from headgate.control_protocol.events import WrittenFile
from headgate.tables.iceberg import manifests_v3
from headgate.tables.iceberg.data_file import FileDetail
from headgate.tables.iceberg.tag_lineage import summary_properties_of
from headgate.tables.iceberg.upsert.delete_manifests import DeleteManifestWriter, Deletions
from headgate.tables.storage.damaged_file_error import FileDamaged
from headgate.tables.storage.file_io import MemoryFile, delete_in_background, store_files

_VERSION: Final = 2
_OTHER_WRITER = "the participant that wrote it is of another version, or broken"
CODEC: Final[AvroCompressionCodec] = "deflate"
"""As in Java. pyiceberg uses ``write.avro.compression-codec``, which is meant for data files, and
whose codec some readers of manifests, or pyiceberg itself, may not know."""


def to_manifest_data_files(table: Table, files: Sequence[WrittenFile]) -> list[ManifestDataFile]:
    """Return the files as a manifest of ``table`` holds them.

    Raises ``TableChanged`` for a spec that the table does not have, ``StopSink`` for a file that is
    named twice or whose partition values do not fit its spec.
    """
    if len({file.path for file in files}) < len(files):
        raise StopSink(
            f"{_table_name(table)}: a commit names a data file twice; nothing was committed"
        )
    details = [detail_of(table, file) for file in files]
    types = {
        spec_id: _require_partition_types(table, spec_id)
        for spec_id in {d.spec_id for d in details}
    }
    return [
        _to_manifest_data_file(table, file, detail, types[detail.spec_id])
        for file, detail in zip(files, details, strict=True)
    ]


def detail_of(table: Table, file: WrittenFile) -> FileDetail:
    """Raises ``StopSink`` for a detail that cannot be read."""
    try:
        return FileDetail.decode(file.detail)
    except ValueError as error:
        raise StopSink(f"{_table_name(table)}: {file.path}: {error}", _OTHER_WRITER) from error


def _require_partition_types(table: Table, spec_id: int) -> list[PrimitiveType]:
    spec = table.specs().get(spec_id)
    if spec is None or not is_writable_spec(table, spec):
        raise TableChanged(
            f"{_table_name(table)}: partition spec {spec_id} of the written files is gone",
            "its columns were dropped meanwhile; restart the sink to write with the current spec",
        )
    fields = spec.partition_type(table.schema()).fields
    return [cast("PrimitiveType", field.field_type) for field in fields]


def _require_schema_of_spec(table: Table, spec: PartitionSpec) -> Schema:
    """Return the newest schema that has the spec's source columns, also those dropped since."""
    older = sorted(table.schemas().values(), key=lambda schema: schema.schema_id, reverse=True)
    for schema in (table.schema(), *older):
        if _has_sources_of(schema, spec):
            return schema
    raise TableChanged(
        f"{_table_name(table)}: no row of a file of partition spec {spec.spec_id} can be deleted: "
        "its columns were dropped, and the schemas that had them were removed",
        f"rewrite the files of spec {spec.spec_id} with another engine (in Spark: CALL "
        "system.rewrite_data_files with rewrite-all), then start the sink again",
    )


def is_writable_spec(table: Table, spec: PartitionSpec) -> bool:
    """Return whether the spec can be written: without its source column a field has no type."""
    return _has_sources_of(table.schema(), spec)


def _has_sources_of(schema: Schema, spec: PartitionSpec) -> bool:
    return all(field.source_id in schema.field_ids for field in spec.fields)


def _to_manifest_data_file(
    table: Table, file: WrittenFile, detail: FileDetail, types: Sequence[PrimitiveType]
) -> ManifestDataFile:
    try:
        values = zip(types, detail.partition, strict=True)
        partition = Record(*(None if v is None else from_bytes(t, v) for t, v in values))
        file_format = FileFormat(detail.file_format.upper())
    except Exception as error:
        raise StopSink(
            f"{_table_name(table)}: {file.path} does not fit partition spec {detail.spec_id}: "
            f"{error!r}",
            _OTHER_WRITER,
        ) from error
    result = ManifestDataFile.from_args(
        _table_format_version=table.format_version,
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=file_format,
        partition=partition,
        record_count=file.records,
        file_size_in_bytes=file.size_bytes,
        column_sizes=dict(detail.column_sizes),
        value_counts=dict(detail.value_counts),
        null_value_counts=dict(detail.null_value_counts),
        nan_value_counts=dict(detail.nan_value_counts),
        lower_bounds=dict(detail.lower_bounds),
        upper_bounds=dict(detail.upper_bounds),
        key_metadata=None,
        split_offsets=list(detail.split_offsets) or None,
        equality_ids=None,
        sort_order_id=detail.sort_order_id,
    )
    result.spec_id = detail.spec_id
    return result


@dataclass(frozen=True, slots=True)
class ManifestList:
    """A manifest list's path. ``first_row_id`` and ``added_rows``: the ids it gave (version 3)."""

    path: str
    first_row_id: int | None = None
    added_rows: int | None = None


class SnapshotFiles:
    """Writes what one snapshot needs under ``metadata/`` and remembers it, to take it back.

    All of it is built in memory and written at once: nothing refers to it before the call.
    """

    def __init__(self, table: Table, snapshot_id: int) -> None:
        self._table = table
        self._snapshot_id = snapshot_id
        self._written: dict[str, MemoryFile] = {}
        self._added_entries: dict[str, list[ManifestEntry]] = {}
        self._stored: list[str] = []
        metadata = table.metadata
        self._first_row_id = metadata.next_row_id if isinstance(metadata, TableMetadataV3) else None

    def write_manifest_list(
        self,
        added_files: Sequence[ManifestDataFile],
        parent: Snapshot | None,
        sequence_number: int,
        staged: Sequence[ManifestFile] = (),
        *,
        deletions: Deletions | None = None,
    ) -> ManifestList:
        """Write a manifest list with the parent's files, these, and the staged manifests.

        Staged ones are listed as they are: another delivery may be listing them at the same time.
        Raises what storage raises.
        """
        kept = [manifest for manifest in self._manifests_of(parent) if _has_live_entries(manifest)]
        if added_files or staged:
            added = self._write_added_manifests(added_files)
            kept = self._merge_small_manifests([*added, *kept])
            for merged in {m.manifest_path for m in added} - {m.manifest_path for m in kept}:
                del self._written[merged]
            kept = [*staged, *kept]
        if deletions is not None:
            kept = self._replace_delete_manifests(kept, deletions)
        return self._write_list_and_store_files(kept, parent, sequence_number)

    def _replace_delete_manifests(
        self, kept: list[ManifestFile], deletions: Deletions
    ) -> list[ManifestFile]:
        """Write one new manifest of deletes per spec, in place of those whose files retire."""
        for path, whole in deletions.bytes_of.items():
            self._written[path] = MemoryFile(path)
            self._written[path].whole = whole
        version = self._table.metadata.format_version
        for spec_id in deletions.changed_spec_ids:
            gone = deletions.find_manifests_to_replace(kept, spec_id)
            kept = [manifest for manifest in kept if manifest.manifest_path not in gone]
            spec = self._table.specs()[spec_id]
            schema = _require_schema_of_spec(self._table, spec)
            output = self._new_memory_output(f"{uuid.uuid4()}-m{len(self._written)}.avro")
            with DeleteManifestWriter(
                version, spec, schema, output, snapshot_id=self._snapshot_id, compression=CODEC
            ) as writer:
                deletions.write_entries(writer, spec_id, gone)
            kept.append(writer.to_manifest_file())
        return kept

    def write_manifest_list_without(
        self,
        removed_paths: frozenset[str],
        added_files: Sequence[ManifestDataFile],
        parent: Snapshot,
        sequence_number: int,
        *,
        deletions: Deletions,
    ) -> ManifestList:
        """Write a manifest list with the parent's files except the removed ones, and these."""
        kept = [
            self._rewrite_manifest_without(removed_paths, manifest)
            for manifest in self._manifests_of(parent)
            if _has_live_entries(manifest)
        ]
        kept = self._replace_delete_manifests(
            [*self._write_added_manifests(added_files), *kept], deletions
        )
        return self._write_list_and_store_files(kept, parent, sequence_number)

    def _rewrite_manifest_without(
        self, removed: frozenset[str], manifest: ManifestFile
    ) -> ManifestFile:
        """Return the manifest, rewritten if it lists removed files: it then records the removal."""
        if manifest.content != ManifestContent.DATA or not removed:
            return manifest
        entries = list(self._read_live_entries([manifest]))
        if not any(entry.data_file.file_path in removed for entry in entries):
            return manifest
        output = self._new_memory_output(f"{uuid.uuid4()}-m{len(self._written)}.avro")
        spec, schema = self._table.specs()[manifest.partition_spec_id], self._table.schema()
        with self._open_manifest_writer(spec, schema, output) as writer:
            for entry in entries:
                gone = entry.data_file.file_path in removed
                (writer.delete if gone else writer.existing)(entry)
        return writer.to_manifest_file()

    def _write_list_and_store_files(
        self, kept: list[ManifestFile], parent: Snapshot | None, sequence_number: int
    ) -> ManifestList:
        """Write the list of these manifests, and store it with all files written so far.

        Until now they were in memory.
        """
        output = self._new_memory_output(f"snap-{self._snapshot_id}-0-{uuid.uuid4()}.avro")
        of = (self._snapshot_id, parent.snapshot_id if parent else None, sequence_number)
        first = self._first_row_id
        if first is None:
            with write_manifest_list(_VERSION, output, *of, CODEC) as writer:
                if kept:
                    writer.add_manifests(kept)
            self._store_files()
            return ManifestList(output.location)
        with manifests_v3.ManifestListWriter(
            output, *of, first_row_id=first, compression=CODEC
        ) as numbering:
            if kept:
                numbering.add_manifests(kept)
        self._store_files()
        return ManifestList(output.location, first, numbering.next_row_id - first)

    def delete_written(self) -> None:
        """Delete what was written; only for a snapshot that can never land any more."""
        stored, self._stored = self._stored, []
        delete_in_background(self._table.io, stored)

    def _store_files(self) -> None:
        self._stored = list(self._written)
        store_files(self._table.io, {path: file.whole for path, file in self._written.items()})

    def _manifests_of(self, parent: Snapshot | None) -> list[ManifestFile]:
        if parent is None:
            return []
        if self._first_row_id is None:
            found = parent.manifests(self._table.io)
        else:
            found = manifests_v3.read_manifest_list(self._table.io, parent.manifest_list)
        if (
            not found
            and (count := summary_properties_of(parent).get("total-data-files", "0")) != "0"
        ):
            raise FileDamaged(parent.manifest_list, f"it lists nothing, of {count} data files")
        return found

    def _write_added_manifests(self, files: Sequence[ManifestDataFile]) -> list[ManifestFile]:
        per_spec: dict[int, list[ManifestDataFile]] = defaultdict(list)
        for file in files:
            per_spec[file.spec_id].append(file)
        added = []
        for spec_id, of_spec in per_spec.items():
            entries = [
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file
                )
                for file in of_spec
            ]
            added.append(self._write_manifest(spec_id, entries))
            self._added_entries[added[-1].manifest_path] = entries
        return added

    def _merge_small_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merge small data manifests of one spec, once there are enough of them."""
        properties = self._table.properties
        if not property_as_bool(properties, TableProperties.MANIFEST_MERGE_ENABLED, default=True):
            return manifests  # pyiceberg's default is off; Iceberg documents it as on
        per_spec: dict[int, list[ManifestFile]] = defaultdict(list)
        result = []
        for manifest in manifests:
            spec = self._table.specs().get(manifest.partition_spec_id)
            if (
                manifest.content == ManifestContent.DATA
                and spec
                and is_writable_spec(self._table, spec)
            ):
                per_spec[manifest.partition_spec_id].append(manifest)
            else:
                result.append(manifest)
        for spec_id, group in per_spec.items():
            result = [*self._merge_manifest_group(spec_id, group), *result]
        return result

    def _merge_manifest_group(self, spec_id: int, group: list[ManifestFile]) -> list[ManifestFile]:
        properties = self._table.properties
        target_bytes = property_as_int(
            properties,
            TableProperties.MANIFEST_TARGET_SIZE_BYTES,
            TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
        )
        count_min = property_as_int(
            properties,
            TableProperties.MANIFEST_MIN_MERGE_COUNT,
            TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT,
        )
        packer: ListPacker[ManifestFile] = ListPacker(cast("int", target_bytes), 1, False)  # noqa: FBT003 - pyiceberg's order
        merged: list[ManifestFile] = []
        for packed in packer.pack_end(group, lambda manifest: manifest.manifest_length):
            waits = group[0] in packed and len(packed) < cast("int", count_min)
            if len(packed) == 1 or waits:
                merged.extend(packed)
            else:
                merged.append(self._write_manifest(spec_id, self._read_live_entries(packed)))
        return merged

    def _read_live_entries(self, manifests: Iterable[ManifestFile]) -> Iterable[ManifestEntry]:
        io = self._table.io
        for manifest in manifests:
            if manifest.manifest_path in self._added_entries:
                yield from self._added_entries[manifest.manifest_path]
                continue
            entries: Iterable[ManifestEntry] = (
                manifest.fetch_manifest_entry(io, discard_deleted=True)
                if self._first_row_id is None
                else manifests_v3.read_live_entries(io, manifest)
            )
            found = 0
            for found, entry in enumerate(entries, 1):  # noqa: B007 - how many there were
                yield entry
            _require_all_entries_read(manifest, found)

    def _write_manifest(self, spec_id: int, entries: Iterable[ManifestEntry]) -> ManifestFile:
        output = self._new_memory_output(f"{uuid.uuid4()}-m{len(self._written)}.avro")
        spec, schema = self._table.specs()[spec_id], self._table.schema()
        with self._open_manifest_writer(spec, schema, output) as writer:
            for entry in entries:
                self._write_added_or_existing(writer, entry)
        return writer.to_manifest_file()

    def _open_manifest_writer(
        self, spec: PartitionSpec, schema: Schema, output: OutputFile
    ) -> ManifestWriter:
        if self._first_row_id is None:
            return write_manifest(_VERSION, spec, schema, output, self._snapshot_id, CODEC)
        return manifests_v3.ManifestWriter(spec, schema, output, self._snapshot_id, CODEC)

    def _write_added_or_existing(self, writer: ManifestWriter, entry: ManifestEntry) -> None:
        if entry.snapshot_id == self._snapshot_id:
            writer.add(entry)
        else:
            writer.existing(entry)

    def _new_memory_output(self, name: str) -> OutputFile:
        path = self._table.location_provider().new_metadata_location(name)
        self._written[path] = MemoryFile(path)
        return self._written[path]


def _require_all_entries_read(manifest: ManifestFile, found_count: int) -> None:
    """Raise ``FileDamaged`` for one that was cut off between its blocks: each holds one file."""
    added, existing = manifest.added_files_count, manifest.existing_files_count
    if added is not None and existing is not None and found_count < added + existing:
        why = f"it lists {found_count} of {added + existing} files"
        raise FileDamaged(manifest.manifest_path, why)


def _has_live_entries(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


def _table_name(table: Table) -> str:
    return ".".join(table.name())
