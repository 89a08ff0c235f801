"""Chooses which of a sink's own data files are to become fewer and larger ones (rule T8).

Only files below the sink's own folder: who else writes into the table looks after its files by
itself, and the audit goes on telling the sinks' rows apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    FileFormat,
    ManifestContent,
    ManifestEntry,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.identifiers import SinkName
from headgate.tables.iceberg import row_ids
from headgate.tables.iceberg.keyed.delete_files import referenced

FILES_MIN = 20
BYTES_MAX = 1024 * 1024 * 1024
"""Rewritten for one commit."""

SMALL_OF_TARGET = 0.75
_FIRST_ROW = [field.field_id for field in DATA_FILE_TYPE[3].fields].index(142)


@dataclass(frozen=True, slots=True)
class Wanted:
    """From so many small files on a partition is compacted, into files of this size.

    ``but``: paths of files that were found unfit for it.
    """

    target_bytes: int
    files_min: int = FILES_MIN
    bytes_max: int = BYTES_MAX
    but: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A live data file of the sink. ``first_row_id``: of its rows, in tables of version 3."""

    path: str
    spec_id: int
    partition: Any
    records: int
    size_bytes: int
    sequence_number: int
    first_row_id: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """``portions``: of one partition each, what becomes one file. ``deletes``: the delete files
    that there are. ``left``: why small files were left alone, and how many."""

    snapshot_id: int | None
    portions: tuple[tuple[SmallFile, ...], ...]
    deletes: frozenset[str]
    left: tuple[str, ...]
    live_files: int


def sinks_folder(table: Table, sink: SinkName) -> str:
    """Where the sink's data files lie in this table, without a slash at the end."""
    named = table.properties.get(TableProperties.WRITE_DATA_PATH, "").rstrip("/")
    return f"{named or table.metadata.location + '/data'}/headgate/{sink}"


def chosen(table: Table, sink: SinkName, branch: str, wanted: Wanted) -> Choice:
    """What of the branch's head is worth being compacted. Raises what storage raises."""
    ref = table.metadata.refs.get(branch)
    head = table.metadata.snapshot_by_id(ref.snapshot_id) if ref else None
    if head is None:
        return Choice(None, (), frozenset(), (), 0)
    data, deletes = live_entries(table, head)
    beneath = _Deletes(deletes)
    left: Counter[str] = Counter()
    partitions: dict[Any, list[SmallFile]] = defaultdict(list)
    small_bytes = wanted.target_bytes * SMALL_OF_TARGET
    folder = sinks_folder(table, sink) + "/"
    for entry in data:
        file = entry.data_file
        if file.file_size_in_bytes >= small_bytes or file.file_path in wanted.but:
            continue
        if not file.file_path.startswith(folder):
            continue
        if reason := _unfit(table, entry, beneath):
            left[reason] += 1
        else:
            partitions[_key(file.partition)].append(_small(table, entry))
    portions = list(_portions(partitions.values(), wanted))
    return Choice(
        head.snapshot_id,
        tuple(_bounded(portions, wanted.bytes_max)),
        beneath.paths,
        tuple(f"{count} small files {reason}" for reason, count in sorted(left.items())),
        len(data),
    )


def live_entries(table: Table, head: Snapshot) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """Data files and delete files of a snapshot."""
    data: list[ManifestEntry] = []
    deletes: list[ManifestEntry] = []
    numbered = isinstance(table.metadata, TableMetadataV3)
    for manifest in row_ids.listed(table.io, head.manifest_list):
        of_data = manifest.content == ManifestContent.DATA
        entries = (
            row_ids.live_entries(table.io, manifest)
            if numbered or not of_data
            else manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        )
        (data if of_data else deletes).extend(entries)
    return data, deletes


def tier(files: Sequence[SmallFile], files_min: int) -> Sequence[SmallFile]:
    """The smallest ones, up to the last that is no larger than all smaller ones together.

    So a file is written again only when it at least doubles: as often as the logarithm of its
    size, however long the sink runs.
    """
    by_size = sorted(files, key=lambda file: (file.size_bytes, file.path))
    below, taken = 0, 0
    for count, file in enumerate(by_size, start=1):
        if count >= files_min and (file.size_bytes <= below or count == 1):
            taken = count
        below += file.size_bytes
    return by_size[:taken]


def _portions(
    partitions: Iterable[list[SmallFile]], wanted: Wanted
) -> Iterator[tuple[SmallFile, ...]]:
    for files in partitions:
        portion: list[SmallFile] = []
        size_bytes = 0
        oldest_first = sorted(
            tier(files, wanted.files_min), key=lambda file: (file.sequence_number, file.path)
        )
        for file in oldest_first:
            portion.append(file)
            size_bytes += file.size_bytes
            if size_bytes >= wanted.target_bytes:
                yield tuple(portion)
                portion, size_bytes = [], 0
        if len(portion) > 1:
            yield tuple(portion)


def _bounded(
    portions: list[tuple[SmallFile, ...]], bytes_max: int
) -> Iterator[tuple[SmallFile, ...]]:
    """Those with the most files first, as many as the bytes allow; one at least."""
    left = bytes_max
    for number, portion in enumerate(sorted(portions, key=len, reverse=True)):
        size_bytes = sum(file.size_bytes for file in portion)
        if number == 0 or size_bytes <= left:
            yield portion
            left -= size_bytes


def _unfit(table: Table, entry: ManifestEntry, beneath: _Deletes) -> str:
    """Why a file stays as it is; empty where nothing speaks against it."""
    file = entry.data_file
    if file.file_format != FileFormat.PARQUET:
        return "are not Parquet"
    if file.spec_id != table.metadata.default_spec_id:
        return "are of an older partition spec"
    if beneath.touch(file):
        return "have rows that others marked as deleted"
    if isinstance(table.metadata, TableMetadataV3) and file[_FIRST_ROW] is None:
        return "have no row ids yet: the next commit gives them some"
    return ""


def _small(table: Table, entry: ManifestEntry) -> SmallFile:
    file = entry.data_file
    return SmallFile(
        path=file.file_path,
        spec_id=file.spec_id,
        partition=file.partition,
        records=file.record_count,
        size_bytes=file.file_size_in_bytes,
        sequence_number=entry.sequence_number or 0,
        first_row_id=file[_FIRST_ROW] if isinstance(table.metadata, TableMetadataV3) else None,
    )


def _key(partition: Any) -> tuple[Any, ...]:
    return tuple(partition[place] for place in range(len(partition)))


class _Deletes:
    """The delete files of a snapshot. What they may touch, in doubt all, is left alone."""

    def __init__(self, entries: Sequence[ManifestEntry]) -> None:
        files = [entry.data_file for entry in entries]
        self.paths = frozenset(file.file_path for file in files)
        named = [referenced(file) for file in files]
        self._of_files = {path for path in named if path}
        self._wide = {
            (file.spec_id, _key(file.partition))
            for file, path in zip(files, named, strict=True)
            if not path
        }

    def touch(self, file: Any) -> bool:
        if file.file_path in self._of_files:
            return True
        everywhere = any(not partition for _, partition in self._wide)
        return everywhere or (file.spec_id, _key(file.partition)) in self._wide
