"""Reads the entries of a manifest one by one.

pyiceberg's own reader decodes a manifest as a whole. With column statistics that is some kilobytes
for each file, and a merged manifest lists tens of thousands.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    _inherit_from_manifest,
)
from pyiceberg.typedef import TableVersion

_DATA_FILE = 2


def read_live_entries(
    io: FileIO, manifest: ManifestFile, version: TableVersion = DEFAULT_READ_VERSION
) -> Iterator[ManifestEntry]:
    """Fetch the manifest, and return what decodes its live entries as they are asked for.

    ``version``: the format version whose fields they have; fields that the manifest lacks are null.
    """
    with open_manifest(io, manifest.manifest_path, version) as entries:  # there is nothing to close
        return (
            _inherit_from_manifest(entry, manifest)
            for entry in entries
            if entry.status != ManifestEntryStatus.DELETED
        )


def open_manifest(io: FileIO, path: str, version: TableVersion) -> AvroFile[ManifestEntry]:
    """Return a manifest to be entered, which fetches its bytes, and then read entry by entry."""
    return AvroFile[ManifestEntry](
        io.new_input(path),
        MANIFEST_ENTRY_SCHEMAS[version],
        {-1: ManifestEntry, _DATA_FILE: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )
