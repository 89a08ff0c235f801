"""What a snapshot holds: live data files, and the delete files beneath them, by data file.

Manifests never change, so that each is read once while a head lists it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap64

from headgate.tables.iceberg import row_ids
from headgate.tables.iceberg.keyed.delete_files import (
    Target,
    dead_in,
    identity,
    referenced,
    vectors_in,
)
from headgate.tables.stores.files import read_whole


@dataclass(frozen=True, slots=True)
class Head:
    """The base that a resolution is made for.

    ``deletes``: by data file, the delete files that are about it alone. ``shared``: others' files
    of positions in several data files. ``listed``: what each manifest of deletes lists.
    """

    snapshot_id: int | None = None
    data: Mapping[str, Target] = field(default_factory=dict)
    deletes: Mapping[str, list[ManifestEntry]] = field(default_factory=dict)
    shared: tuple[ManifestEntry, ...] = ()
    listed: Mapping[str, list[ManifestEntry]] = field(default_factory=dict)


@dataclass(slots=True)
class Heads:
    """Reads the heads of one table, and keeps what the last one still refers to."""

    _data: dict[str, list[Target]] = field(default_factory=dict)
    _deletes: dict[str, list[ManifestEntry]] = field(default_factory=dict)
    _dead: dict[tuple[str, int], dict[str, BitMap64]] = field(default_factory=dict)
    _beside: dict[str, list[DataFile]] = field(default_factory=dict)
    """The deletion vectors of each Puffin file."""

    def read(self, table: Table, snapshot: Snapshot | None) -> Head:
        """Raises what storage raises."""
        if snapshot is None:
            return Head()
        io = read_whole(table.io)
        manifests = row_ids.listed(io, snapshot.manifest_list)
        of_data = [each for each in manifests if each.content == ManifestContent.DATA]
        of_deletes = [each for each in manifests if each.content == ManifestContent.DELETES]
        self._data = {each.manifest_path: self._targets(io, each) for each in of_data}
        self._deletes = {each.manifest_path: self._entries(io, each) for each in of_deletes}
        entries = [entry for listed in self._deletes.values() for entry in listed]
        live = {identity(entry.data_file) for entry in entries}
        self._dead = {of: dead for of, dead in self._dead.items() if of in live}
        self._beside = _by_path(e.data_file for e in entries)
        alone: dict[str, list[ManifestEntry]] = defaultdict(list)
        shared = []
        for entry in entries:
            if (path := referenced(entry.data_file)) is not None:
                alone[path].append(entry)
            elif entry.data_file.content == DataFileContent.POSITION_DELETES:
                shared.append(entry)
        data = {each.path: each for targets in self._data.values() for each in targets}
        return Head(snapshot.snapshot_id, data, alone, tuple(shared), self._deletes)

    def dead(self, io: FileIO, head: Head, path: str) -> BitMap64:
        """The positions of a live data file that delete files of the head say are dead.

        Rows that equality deletes hide are not among them: they stay hidden beneath.
        """
        dead = BitMap64()
        born = head.data[path].sequence_number
        for entry in (*head.deletes.get(path, ()), *head.shared):
            if (entry.sequence_number or 0) >= born:
                dead |= self._dead_in(io, entry).get(path, BitMap64())
        return dead

    def remember(self, of: tuple[str, int], path: str, dead: BitMap64) -> None:
        """What a delete file says that was just made: it need not be read back."""
        self._dead[of] = {path: dead}

    def _targets(self, io: FileIO, manifest: ManifestFile) -> list[Target]:
        known = self._data.get(manifest.manifest_path)
        if known is not None:
            return known
        return [
            Target.of(entry.data_file, entry.sequence_number or 0)
            for entry in row_ids.live_entries(io, manifest)
        ]

    def _entries(self, io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
        known = self._deletes.get(manifest.manifest_path)
        return list(row_ids.live_entries(io, manifest)) if known is None else known

    def _dead_in(self, io: FileIO, entry: ManifestEntry) -> Mapping[str, BitMap64]:
        of = identity(entry.data_file)
        if of not in self._dead and entry.data_file.file_format == FileFormat.PUFFIN:
            # One request each would be thousands, where a commit had touched many data files.
            unread = [f for f in self._beside[of[0]] if identity(f) not in self._dead]
            self._dead |= vectors_in(io, unread)
        elif of not in self._dead:
            self._dead[of] = dead_in(io, entry.data_file)
        return self._dead[of]


def _by_path(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    found: dict[str, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.file_format == FileFormat.PUFFIN:
            found[file.file_path].append(file)
    return found
