"""Writes manifests and manifest lists of format version 3, which give every row a permanent id.

Iceberg's spec (section *Row Lineage*): a list numbers the data manifests that are new to it, a
manifest's number goes on to those of its files that have none, in their order. pyiceberg 0.12 skips
the numbers, so merging its entries would renumber old rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, Self, cast

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriterV2,
    PartitionFieldSummary,
)
from pyiceberg.typedef import TableVersion

from headgate.tables.iceberg import read_manifest_entries

VERSION: Final = 3

_LIST = MANIFEST_LIST_FILE_SCHEMAS[VERSION]
_OF_MANIFEST = [field.field_id for field in _LIST.fields].index(520)
_OF_FILE = [field.field_id for field in DATA_FILE_TYPE[VERSION].fields].index(142)

_LIST_TYPES = MappingProxyType({-1: ManifestFile, 508: PartitionFieldSummary})
_LIST_ENUMS = MappingProxyType({517: ManifestContent})


def read_manifest_list(io: FileIO, manifest_list: str) -> list[ManifestFile]:
    """Return the manifests of a list of any version, with the first row id of each."""
    source = io.new_input(manifest_list)
    with AvroFile[ManifestFile](source, _LIST, dict(_LIST_TYPES), dict(_LIST_ENUMS)) as reader:
        return list(reader)


def read_live_entries(io: FileIO, manifest: ManifestFile) -> Iterator[ManifestEntry]:
    """Yield the manifest's live files with all that they inherit from it, first row ids too.

    Files of a manifest without a number have none, whatever they say, as Java has it.
    """
    next_id = manifest[_OF_MANIFEST]
    for entry in read_manifest_entries.read_live_entries(io, manifest, VERSION):
        file = entry.data_file
        if next_id is None:
            clear_first_row_id(file)
        elif file[_OF_FILE] is None:
            file[_OF_FILE] = next_id
            next_id += file.record_count
        yield entry


def clear_first_row_id(file: DataFile) -> None:
    """Change the file into one whose rows have yet to be numbered."""
    file[_OF_FILE] = None


def manifest_without_first_row_id(manifest: ManifestFile) -> ManifestFile:
    """Return the manifest as a list of version 3 that has yet to number its rows knows it."""
    return ManifestFile(*(manifest[place] for place in range(_OF_MANIFEST)), None)


class ManifestWriter(ManifestWriterV2):
    """Writes data files. Its manifest has no number before a list gives it one."""

    @property
    def version(self) -> TableVersion:
        return VERSION

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return AvroOutputFile[ManifestEntry](
            output_file=self._output_file,
            file_schema=self._with_partition(VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )

    def to_manifest_file(self) -> ManifestFile:
        return manifest_without_first_row_id(super().to_manifest_file())


class ManifestListWriter(ManifestListWriterV2):
    """Numbers rows from ``first_row_id`` on; ``next_row_id`` is the first free one."""

    def __init__(
        self,
        output_file: OutputFile,
        snapshot_id: int,
        parent_snapshot_id: int | None,
        sequence_number: int,
        *,
        first_row_id: int,
        compression: AvroCompressionCodec,
    ) -> None:
        super().__init__(output_file, snapshot_id, parent_snapshot_id, sequence_number, compression)
        self._format_version = VERSION
        self._meta |= {"format-version": str(VERSION), "first-row-id": str(first_row_id)}
        self.next_row_id = first_row_id

    def __enter__(self) -> Self:
        self._writer = AvroOutputFile[ManifestFile](
            output_file=self._output_file,
            file_schema=_LIST,
            schema_name="manifest_file",
            metadata=self._meta,
        )
        self._writer.__enter__()
        return self

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        prepared = super().prepare_manifest(manifest_file)
        if prepared.content == ManifestContent.DATA and prepared[_OF_MANIFEST] is None:
            prepared[_OF_MANIFEST] = self.next_row_id
            rows = (prepared.existing_rows_count, prepared.added_rows_count)
            # Some files that merging brought together have ids already: their numbers are skipped.
            self.next_row_id += sum(cast("tuple[int, int]", rows))
        return prepared
