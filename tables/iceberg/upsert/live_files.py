"""The content of a snapshot: live data files, and the delete files beneath them, by data file.

Manifests never change, so each is read once while a head lists it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
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

from headgate.tables.iceberg import manifests_v3
from headgate.tables.iceberg.upsert.position_deletes import (
    Target,
    path_and_content_offset,
    read_dead_positions,
    read_vectors_of_puffin_file,
    sole_referenced_data_file,
)
from headgate.tables.storage.file_io import with_whole_reads


@dataclass(frozen=True, slots=True)
class Head:
    """The base that a resolution is made for.

    ``deletes``: by data file, the delete files that are about it alone. ``shared``: others'
    position delete files on several data files. ``listed``: the entries of each manifest of
    deletes; ``vectors``: the deletion vectors of each Puffin file.
    """

    snapshot_id: int | None = None
    data: Mapping[str, Target] = field(default_factory=dict)
    deletes: Mapping[str, list[ManifestEntry]] = field(default_factory=dict)
    shared: tuple[ManifestEntry, ...] = ()
    listed: Mapping[str, list[ManifestEntry]] = field(default_factory=dict)
    vectors: Mapping[str, list[DataFile]] = field(default_factory=dict)

    @classmethod
    def from_entries(
        cls,
        snapshot_id: int,
        data: Mapping[str, Target],
        listed: Mapping[str, list[ManifestEntry]],
    ) -> Head:
        alone: dict[str, list[ManifestEntry]] = defaultdict(list)
        shared = []
        entries = [entry for of_manifest in listed.values() for entry in of_manifest]
        for entry in entries:
            if (path := sole_referenced_data_file(entry.data_file)) is not None:
                alone[path].append(entry)
            elif entry.data_file.content == DataFileContent.POSITION_DELETES:
                shared.append(entry)
        return cls(
            snapshot_id, data, alone, tuple(shared), listed, _vectors_by_puffin_file(entries)
        )

    def equality_deletes(self) -> Iterator[DataFile]:
        """Yield those that cannot be turned into positions without reading the rows."""
        for entry in (entry for of_manifest in self.listed.values() for entry in of_manifest):
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                yield entry.data_file


@dataclass(slots=True)
class DeadRows:
    """The content of delete files, each of which is read once: they never change."""

    _said: dict[tuple[str, int], Mapping[str, BitMap64]] = field(default_factory=dict)

    def dead_positions_of(self, io: FileIO, head: Head, path: str) -> BitMap64:
        """Return the positions of a live data file that delete files of the head mark as dead.

        Rows that equality deletes hide are not among them: they stay hidden beneath.
        """
        dead = BitMap64()
        born = head.data[path].sequence_number
        for entry in (*head.deletes.get(path, ()), *head.shared):
            if (entry.sequence_number or 0) >= born:
                dead |= self._read_dead_rows(io, head, entry).get(path, BitMap64())
        return dead

    def remember_delete_file(
        self, delete_file: tuple[str, int], data_path: str, dead: BitMap64
    ) -> None:
        """Remember the content of a delete file just made: it need not be read back."""
        self._said[delete_file] = {data_path: dead}

    def forget_all_but(self, live: Collection[tuple[str, int]]) -> None:
        self._said = {of: said for of, said in self._said.items() if of in live}

    def _read_dead_rows(
        self, io: FileIO, head: Head, entry: ManifestEntry
    ) -> Mapping[str, BitMap64]:
        of = path_and_content_offset(entry.data_file)
        if of not in self._said and entry.data_file.file_format == FileFormat.PUFFIN:
            # One request each would be thousands, after a commit that touched many data files.
            unread = [
                file
                for file in head.vectors[of[0]]
                if path_and_content_offset(file) not in self._said
            ]
            self._said |= read_vectors_of_puffin_file(io, unread)
        elif of not in self._said:
            self._said[of] = read_dead_positions(io, entry.data_file)
        return self._said[of]


@dataclass(slots=True)
class Heads:
    """Reads the heads of one table, and keeps what the last one still refers to."""

    _data: dict[str, list[Target]] = field(default_factory=dict)
    _deletes: dict[str, list[ManifestEntry]] = field(default_factory=dict)
    dead_rows: DeadRows = field(default_factory=DeadRows)

    def read_head(self, table: Table, snapshot: Snapshot | None) -> Head:
        """Read the head. Raises what storage raises."""
        if snapshot is None:
            return Head()
        io = with_whole_reads(table.io)
        manifests = manifests_v3.read_manifest_list(io, snapshot.manifest_list)
        of_data = [each for each in manifests if each.content == ManifestContent.DATA]
        of_deletes = [each for each in manifests if each.content == ManifestContent.DELETES]
        self._data = {each.manifest_path: self._read_targets(io, each) for each in of_data}
        self._deletes = {
            each.manifest_path: self._read_delete_entries(io, each) for each in of_deletes
        }
        entries = [entry for listed in self._deletes.values() for entry in listed]
        self.dead_rows.forget_all_but(
            {path_and_content_offset(entry.data_file) for entry in entries}
        )
        data = {each.path: each for targets in self._data.values() for each in targets}
        return Head.from_entries(snapshot.snapshot_id, data, self._deletes)

    def _read_targets(self, io: FileIO, manifest: ManifestFile) -> list[Target]:
        known = self._data.get(manifest.manifest_path)
        if known is not None:
            return known
        return [
            Target.from_data_file(entry.data_file, entry.sequence_number or 0)
            for entry in manifests_v3.read_live_entries(io, manifest)
        ]

    def _read_delete_entries(self, io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
        known = self._deletes.get(manifest.manifest_path)
        return list(manifests_v3.read_live_entries(io, manifest)) if known is None else known


def _vectors_by_puffin_file(entries: Iterable[ManifestEntry]) -> dict[str, list[DataFile]]:
    found: dict[str, list[DataFile]] = defaultdict(list)
    for file in (entry.data_file for entry in entries):
        if file.file_format == FileFormat.PUFFIN:
            found[file.file_path].append(file)
    return found
