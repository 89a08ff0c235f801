"""Manifests of delete files, of both versions, with what pyiceberg's own writers omit.

pyiceberg 0.12 writes no manifests of deletes, its version 2 has no field for the data file that a
delete file is about, and it declares ids of equality deletes longer than Java reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StringType, StructType

from headgate.control_protocol.commit_record import KeyCounts
from headgate.tables.iceberg import manifests_v3
from headgate.tables.iceberg.upsert.position_deletes import path_and_content_offset

_MANIFESTS_MAX = 100
_DATA_FILE, _PARTITION, _EQUALITY_IDS, _REFERENCED = 2, 102, 135, 143


@dataclass(frozen=True, slots=True)
class Deletions:
    """Delete files that a snapshot adds, and those of its parent that they replace (rule KEY-6).

    ``bytes_of``: what is still to be written, by path. ``beneath``: the entries of the parent's
    manifests of deletes, by path. ``counts``: the effects of a keyed table's records.
    """

    added: tuple[DataFile, ...] = ()
    retired: tuple[ManifestEntry, ...] = ()
    bytes_of: Mapping[str, bytes] = field(default_factory=dict)
    beneath: Mapping[str, Sequence[ManifestEntry]] = field(default_factory=dict)
    counts: KeyCounts = field(default_factory=KeyCounts)

    @property
    def changed_spec_ids(self) -> list[int]:
        """Return the partition specs whose manifests of deletes change."""
        retired = (entry.data_file for entry in self.retired)
        return sorted({file.spec_id for file in (*self.added, *retired)})

    def find_manifests_to_replace(
        self, manifests: Iterable[ManifestFile], spec_id: int
    ) -> set[str]:
        """Return the paths of the spec's manifests that list retiring files; of all, if they are
        many."""
        of_spec = [
            manifest.manifest_path
            for manifest in manifests
            if manifest.content == ManifestContent.DELETES and manifest.partition_spec_id == spec_id
        ]
        if len(of_spec) >= _MANIFESTS_MAX:
            return set(of_spec)
        retired = self._retired_paths_and_content_offsets()
        return {
            path
            for path in of_spec
            if any(
                path_and_content_offset(entry.data_file) in retired for entry in self.beneath[path]
            )
        }

    def write_entries(self, writer: ManifestWriter, spec_id: int, replaced: Iterable[str]) -> None:
        """Write the spec's new delete files, and all entries of the replaced manifests."""
        for file in self.added:
            if file.spec_id == spec_id:
                writer.add(ManifestEntry.from_args(data_file=file))
        retired = self._retired_paths_and_content_offsets()
        for entry in (entry for path in replaced for entry in self.beneath[path]):
            gone = path_and_content_offset(entry.data_file) in retired
            (writer.delete if gone else writer.existing)(entry)

    def _retired_paths_and_content_offsets(self) -> set[tuple[str, int]]:
        return {path_and_content_offset(entry.data_file) for entry in self.retired}


class DeleteManifestWriter(ManifestWriterV2):
    """Writes delete files that have version 3's fields in memory (see ``read_live_entries``)."""

    def __init__(
        self,
        version: TableVersion,
        spec: PartitionSpec,
        schema: Schema,
        output: OutputFile,
        *,
        snapshot_id: int,
        compression: AvroCompressionCodec,
    ) -> None:
        super().__init__(spec, schema, output, snapshot_id, compression)
        self._of_version = version

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def version(self) -> TableVersion:
        return self._of_version

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        partition = self._spec.partition_type(self._schema)
        return AvroOutputFile[ManifestEntry](
            output_file=self._output_file,
            file_schema=_entry_schema(self._of_version, partition),
            record_schema=_entry_schema(manifests_v3.VERSION, partition),
            schema_name="manifest_entry",
            metadata=self._meta,
        )

    def to_manifest_file(self) -> ManifestFile:
        made = super().to_manifest_file()
        return (
            made
            if self._of_version < manifests_v3.VERSION
            else manifests_v3.manifest_without_first_row_id(made)
        )


def _entry_schema(version: TableVersion, partition: StructType) -> Schema:
    columns = [
        _data_file_field_with_partition(field, partition)
        for field in DATA_FILE_TYPE[version].fields
    ]
    if version < manifests_v3.VERSION:
        named = NestedField(_REFERENCED, "referenced_data_file", StringType(), required=False)
        columns.append(named)
    entry = MANIFEST_ENTRY_SCHEMAS[version].fields
    data_file = NestedField(_DATA_FILE, "data_file", StructType(*columns), required=True)
    return Schema(*(data_file if field.field_id == _DATA_FILE else field for field in entry))


def _data_file_field_with_partition(field: NestedField, partition: StructType) -> NestedField:
    if field.field_id == _PARTITION:
        return NestedField(_PARTITION, field.name, partition, required=True)
    if field.field_id == _EQUALITY_IDS:
        element = cast("ListType", field.field_type).element_id
        ids = ListType(element, IntegerType(), element_required=True)
        return NestedField(_EQUALITY_IDS, field.name, ids, required=False)
    return field
