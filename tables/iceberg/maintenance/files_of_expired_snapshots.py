"""Finds the files that only the removed snapshots of a table refer to.

As Java's ``ReachableFileCleanup``: a file goes when a removed snapshot refers to it and no retained
one does, whatever line either is on. Everything is read and decided before anything is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

STORAGE_THREADS = 8
_CHUNK = 64

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")


def find_files_only_reachable_from(
    table: Table, removed: Sequence[Snapshot], time_max_s: float
) -> list[str]:
    """Return their paths in the order to delete in: a file that refers to others goes before them.

    Raises ``TimeoutError`` when it is not known within ``time_max_s``, and what storage raises.
    """
    gone = {snapshot.snapshot_id for snapshot in removed}
    retained = [s for s in table.metadata.snapshots if s.snapshot_id not in gone]
    with ThreadPoolExecutor(STORAGE_THREADS) as threads:
        reading = _Reading(table.io, threads, time.monotonic() + time_max_s)
        manifests, others = reading.split_manifests_by_use(removed, retained)
        files = reading.files_only_live_in(manifests, others)
    lists = {s.manifest_list for s in removed} - {s.manifest_list for s in retained}
    return [
        *sorted(files),
        *sorted(manifest.manifest_path for manifest in manifests),
        *sorted(lists),
        *sorted(statistics_files_of(table.metadata, gone)),
    ]


def find_referenced_files(
    table: Table, snapshots: Sequence[Snapshot], time_max_s: float
) -> set[str]:
    """Return all files that these snapshots refer to, and the table's statistics.

    Raises as ``find_files_only_reachable_from``.
    """
    metadata = table.metadata
    paths = {
        file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)
    }
    return paths | _find_reachable_files(table.io, snapshots, time_max_s)


def has_all_files(io: FileIO, snapshot: Snapshot, time_max_s: float) -> bool:
    """Return whether nobody has deleted a file that the snapshot refers to.

    Raises what storage raises, and ``TimeoutError``.
    """
    try:
        paths = _find_reachable_files(io, [snapshot], time_max_s)
    except FileNotFoundError:
        return False
    with ThreadPoolExecutor(STORAGE_THREADS) as threads:
        return all(threads.map(lambda path: io.new_input(path).exists(), sorted(paths)))


def _find_reachable_files(io: FileIO, snapshots: Sequence[Snapshot], time_max_s: float) -> set[str]:
    paths = {snapshot.manifest_list for snapshot in snapshots}
    with ThreadPoolExecutor(STORAGE_THREADS) as threads:
        reading = _Reading(io, threads, time.monotonic() + time_max_s)
        manifests = {
            manifest for listed in reading.read_manifest_lists(snapshots) for manifest in listed
        }
        paths |= {manifest.manifest_path for manifest in manifests}
        return paths.union(*reading.live_paths_per_manifest(manifests))


class _ManifestsByUse(NamedTuple):
    only_removed: set[ManifestFile]
    retained: set[ManifestFile]
    """All of them if there are any of the others."""


@dataclass(frozen=True, slots=True)
class _Reading:
    io: FileIO
    threads: Executor
    until_s: float

    def split_manifests_by_use(
        self, removed: Sequence[Snapshot], retained: Sequence[Snapshot]
    ) -> _ManifestsByUse:
        """Return manifests that only removed snapshots list; if there are any, also all retained
        ones."""
        ours = {manifest for listed in self.read_manifest_lists(removed) for manifest in listed}
        others: set[ManifestFile] = set()
        # The oldest first: it mostly lists all that the removed ones did, and then no other is
        # read.
        for listed in self.read_manifest_lists(
            sorted(retained, key=lambda s: s.sequence_number or 0)
        ):
            ours.difference_update(listed)
            others.update(listed)
            if not ours:
                break
        return _ManifestsByUse(ours, others)

    def files_only_live_in(self, ours: set[ManifestFile], others: set[ManifestFile]) -> set[str]:
        """Return data and delete files that are live in ``ours`` and not in ``others``."""
        files = {path for live in self.live_paths_per_manifest(ours) for path in live}
        oldest = min((m.sequence_number or 0 for m in ours), default=0)

        def order_to_read_in(manifest: ManifestFile) -> tuple[bool, int]:
            """Order manifests: those merged from ours were written soon after them."""
            sequence_number = manifest.sequence_number or 0
            return sequence_number < oldest, sequence_number

        for live in (
            self.live_paths_per_manifest(sorted(others, key=order_to_read_in)) if files else ()
        ):
            files.difference_update(live)
            if not files:
                break
        return files

    def read_manifest_lists(self, snapshots: Sequence[Snapshot]) -> Iterator[list[ManifestFile]]:
        return self._read_in_chunks(lambda snapshot: snapshot.manifests(self.io), snapshots)

    def live_paths_per_manifest(self, manifests: Iterable[ManifestFile]) -> Iterator[list[str]]:
        def read_live_paths(manifest: ManifestFile) -> list[str]:
            entries = manifest.fetch_manifest_entry(self.io, discard_deleted=True)
            return [entry.data_file.file_path for entry in entries]

        return self._read_in_chunks(read_live_paths, list(manifests))

    def _read_in_chunks(
        self, read: Callable[[_Item], _Read], items: Sequence[_Item]
    ) -> Iterator[_Read]:
        for begin in range(0, len(items), _CHUNK):
            if time.monotonic() > self.until_s:
                raise TimeoutError("the manifests are too many to be read in the time for it")
            yield from self.threads.map(read, items[begin : begin + _CHUNK])


def statistics_files_of(metadata: TableMetadata, gone_snapshot_ids: set[int]) -> set[str]:
    files = [*metadata.statistics, *metadata.partition_statistics]
    retained = {file.statistics_path for file in files if file.snapshot_id not in gone_snapshot_ids}
    return {
        file.statistics_path for file in files if file.snapshot_id in gone_snapshot_ids
    } - retained
