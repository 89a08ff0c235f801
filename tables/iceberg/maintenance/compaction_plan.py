"""Chooses which of a sink's own data files are rewritten: small ones, and worn ones (COMPACTION-1,
KEY-11).

A file is worn when many of its rows are dead. Only files below the sink's own folder: other writers
look after their own files, and the audit can still tell the sinks' rows apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    FileFormat,
    ManifestContent,
    ManifestEntry,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap64

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.identifiers import SinkName
from headgate.tables.iceberg import manifests_v3
from headgate.tables.iceberg.file_schema import data_location
from headgate.tables.iceberg.upsert.live_files import DeadRows, Head
from headgate.tables.iceberg.upsert.position_deletes import Target
from headgate.tables.storage.file_io import with_whole_reads

FILES_MIN = 20
DEAD_PER_THOUSAND = 200
BYTES_MAX = 1024 * 1024 * 1024
"""The limit for one commit."""

SMALL_OF_TARGET = 0.75
_FIRST_ROW = [field.field_id for field in DATA_FILE_TYPE[3].fields].index(142)


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """A partition with at least so many small files is compacted, into files of this size.

    ``dead_per_thousand``: a file with so many dead rows is rewritten, whatever its size. Files with
    a sequence number above ``sequence_number_max`` are not taken, so that a pass ends even beside
    commits. ``but``: paths of files that were found unfit for it.
    """

    target_bytes: int
    files_min: int = FILES_MIN
    bytes_max: int = BYTES_MAX
    but: frozenset[str] = frozenset()
    dead_per_thousand: int = DEAD_PER_THOUSAND
    sequence_number_max: int | None = None


@dataclass(frozen=True, slots=True)
class CandidateFile:
    """A live data file of the sink. ``first_row_id``: that of its rows, in tables of version 3.

    ``marked``: how many rows are dead by delete files about it alone; ``dead``: which rows are, by
    all delete files, read only for the chosen files.
    """

    path: str
    spec_id: int
    partition: Any
    records: int
    size_bytes: int
    sequence_number: int
    first_row_id: int | None = None
    marked: int = 0
    dead: BitMap64 = field(default_factory=BitMap64)

    @property
    def live_bytes(self) -> int:
        """Return the estimated size of its live rows."""
        return self.size_bytes * max(0, self.records - self.marked) // max(1, self.records)


@dataclass(frozen=True, slots=True)
class Choice:
    """``portions``: for one partition each, the files that become one. ``equality_deletes``: paths
    of those that exist. ``left``: why small files were left alone, and how many. ``dead_rows``
    holds the content of the delete files that were read. ``more``: one commit does not hold all
    that is worth it."""

    snapshot_id: int | None
    portions: tuple[tuple[CandidateFile, ...], ...]
    equality_deletes: frozenset[str]
    left: tuple[str, ...]
    live_files: int
    sequence_number: int = 0
    dead_rows: DeadRows = field(default_factory=DeadRows)
    more: bool = False


def sink_data_folder(table: Table, sink: SinkName) -> str:
    """Return where the sink's data files lie in this table, without a slash at the end."""
    return f"{data_location(table.properties, table.metadata.location)}/headgate/{sink}"


def choose_files_to_compact(
    table: Table, sink: SinkName, branch: str, limits: CompactionLimits
) -> Choice:
    """Choose the branch's files that are worth being compacted. Raises what storage raises."""
    ref = table.metadata.refs.get(branch)
    snapshot = table.metadata.snapshot_by_id(ref.snapshot_id) if ref else None
    if snapshot is None:
        return Choice(None, (), frozenset(), (), 0)
    data, head = read_data_files_and_deletes(table, snapshot)
    equality = list(head.equality_deletes())
    left: Counter[str] = Counter()
    partitions: dict[Any, list[CandidateFile]] = defaultdict(list)
    folder = sink_data_folder(table, sink) + "/"
    for entry in data:
        file = _to_candidate_file(table, entry, head)
        if (
            not (_is_small(file, limits) or _has_many_dead_rows(file, limits))
            or file.path in limits.but
        ):
            continue
        if not file.path.startswith(folder) or _came_after_pass_began(file, limits):
            continue
        if reason := _unfit_reason(table, entry.data_file, equality):
            left[reason] += 1
        else:
            partitions[_partition_key(file.partition)].append(file)
    worth = list(_portions_worth_rewriting(partitions.values(), limits))
    portions = list(_portions_within_bytes(worth, limits.bytes_max))
    dead_rows = DeadRows()
    return Choice(
        snapshot.snapshot_id,
        tuple(_with_dead_rows(table, head, dead_rows, portion) for portion in portions),
        frozenset(file.file_path for file in equality),
        tuple(
            f"{count_of(count, 'small file')} {reason}" for reason, count in sorted(left.items())
        ),
        len(data),
        snapshot.sequence_number or 0,
        dead_rows,
        more=len(portions) < len(worth),
    )


def read_data_files_and_deletes(
    table: Table, snapshot: Snapshot
) -> tuple[list[ManifestEntry], Head]:
    """Return the data files of a snapshot, and what deletes rows of them."""
    data: list[ManifestEntry] = []
    listed: dict[str, list[ManifestEntry]] = {}
    numbered = isinstance(table.metadata, TableMetadataV3)
    for manifest in manifests_v3.read_manifest_list(table.io, snapshot.manifest_list):
        if manifest.content != ManifestContent.DATA:
            listed[manifest.manifest_path] = list(
                manifests_v3.read_live_entries(table.io, manifest)
            )
        elif numbered:
            data.extend(manifests_v3.read_live_entries(table.io, manifest))
        else:
            data.extend(manifest.fetch_manifest_entry(table.io, discard_deleted=True))
    targets = (Target.from_data_file(entry.data_file, entry.sequence_number or 0) for entry in data)
    return data, Head.from_entries(
        snapshot.snapshot_id, {each.path: each for each in targets}, listed
    )


def _with_dead_rows(
    table: Table, head: Head, dead_rows: DeadRows, portion: tuple[CandidateFile, ...]
) -> tuple[CandidateFile, ...]:
    io = with_whole_reads(table.io)
    return tuple(
        replace(file, dead=dead_rows.dead_positions_of(io, head, file.path)) for file in portion
    )


def choose_size_tier(files: Sequence[CandidateFile], files_min: int) -> Sequence[CandidateFile]:
    """The smallest ones, up to the last that is no larger than all smaller ones together.

    So a file is written again only when it at least doubles: as often as the logarithm of its
    size, however long the sink runs.
    """
    by_size = sorted(files, key=lambda file: (file.live_bytes, file.path))
    below, taken = 0, 0
    for count, file in enumerate(by_size, start=1):
        if count >= files_min and (file.live_bytes <= below or count == 1):
            taken = count
        below += file.live_bytes
    return by_size[:taken]


def _portions_worth_rewriting(
    partitions: Iterable[list[CandidateFile]], limits: CompactionLimits
) -> Iterator[tuple[CandidateFile, ...]]:
    """Worn files among them: each delivers by its dead rows for being written again."""
    for files in partitions:
        portion: list[CandidateFile] = []
        live_bytes = 0
        worn = [file for file in files if _has_many_dead_rows(file, limits)]
        few = choose_size_tier(
            [file for file in files if _is_small(file, limits)], limits.files_min
        )
        taken = {file.path: file for file in (*worn, *few)}.values()
        for file in sorted(taken, key=lambda file: (file.sequence_number, file.path)):
            portion.append(file)
            live_bytes += file.live_bytes
            if live_bytes >= limits.target_bytes:
                yield tuple(portion)
                portion, live_bytes = [], 0
        if len(portion) > 1 or any(_has_many_dead_rows(file, limits) for file in portion):
            yield tuple(portion)


def _portions_within_bytes(
    portions: list[tuple[CandidateFile, ...]], bytes_max: int
) -> Iterator[tuple[CandidateFile, ...]]:
    """Those with the most files first, as many as the bytes allow; one at least."""
    left = bytes_max
    for number, portion in enumerate(sorted(portions, key=len, reverse=True)):
        size_bytes = sum(file.size_bytes for file in portion)
        if number == 0 or size_bytes <= left:
            yield portion
            left -= size_bytes


def _is_small(file: CandidateFile, limits: CompactionLimits) -> bool:
    return file.size_bytes < limits.target_bytes * SMALL_OF_TARGET


def _has_many_dead_rows(file: CandidateFile, limits: CompactionLimits) -> bool:
    return file.marked > 0 and file.marked * 1000 >= file.records * limits.dead_per_thousand


def _came_after_pass_began(file: CandidateFile, limits: CompactionLimits) -> bool:
    return (
        limits.sequence_number_max is not None and file.sequence_number > limits.sequence_number_max
    )


def _unfit_reason(table: Table, file: DataFile, equality_deletes: Iterable[DataFile]) -> str:
    """Return why a file stays as it is; empty if there is no reason."""
    if file.file_format != FileFormat.PARQUET:
        return "are not Parquet"
    if file.spec_id != table.metadata.default_spec_id:
        return "are of an older partition spec"
    if any(_may_delete_rows_of(delete, file) for delete in equality_deletes):
        return "have rows that others deleted by equality"
    if isinstance(table.metadata, TableMetadataV3) and file[_FIRST_ROW] is None:
        return "have no row ids yet: the next commit gives them some"
    return ""


def _may_delete_rows_of(delete: DataFile, file: DataFile) -> bool:
    """Return whether equality deletes may hide rows of the file; without a partition they may."""
    of, partition = _partition_key(delete.partition), _partition_key(file.partition)
    return not of or (delete.spec_id, of) == (file.spec_id, partition)


def _to_candidate_file(table: Table, entry: ManifestEntry, head: Head) -> CandidateFile:
    file = entry.data_file
    alone = head.deletes.get(file.file_path, ())
    return CandidateFile(
        path=file.file_path,
        spec_id=file.spec_id,
        partition=file.partition,
        records=file.record_count,
        size_bytes=file.file_size_in_bytes,
        sequence_number=entry.sequence_number or 0,
        first_row_id=file[_FIRST_ROW] if isinstance(table.metadata, TableMetadataV3) else None,
        marked=sum(delete.data_file.record_count for delete in alone),
    )


def _partition_key(partition: Any) -> tuple[Any, ...]:
    return tuple(partition[place] for place in range(len(partition)))
