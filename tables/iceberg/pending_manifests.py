"""Writes manifests before a decision, and commits them after it (rules PENDING-2, PENDING-5).

They carry no snapshot id: whoever lists one in a snapshot gives it that snapshot's id and sequence
number (Iceberg's spec, *Sequence Number Inheritance*), in version 3 the ids of its rows as well.
Key files are named by a manifest of their own, which no snapshot ever lists (rule KEY-2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    construct_partition_summaries,
    write_manifest,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.typedef import Record
from pyroaring import BitMap64

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import TableChanged
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    SinkName,
    staging_folder,
    table_staging_folder,
)
from headgate.control_protocol.ports import Staging
from headgate.tables.iceberg import manifests_v3, read_manifest_entries
from headgate.tables.iceberg.maintenance.compaction_plan import CandidateFile
from headgate.tables.iceberg.maintenance.files_of_expired_snapshots import STORAGE_THREADS
from headgate.tables.iceberg.manifests import CODEC, is_writable_spec, to_manifest_data_files
from headgate.tables.storage.file_store import files_below, new_unique_name

_UNASSIGNED = -1


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """A staged manifest as a snapshot's list names it, and its files."""

    manifest: ManifestFile
    files: list[ManifestDataFile]

    @property
    def written_files(self) -> list[WrittenFile]:
        """Return the files as a status named them, without Iceberg's own details."""
        return [
            WrittenFile(file.file_path, file.record_count, file.file_size_in_bytes)
            for file in self.files
        ]


def stage_pending_commits(
    table: Table, sink: SinkName, staging: Staging
) -> tuple[PendingCommit, ...]:
    """Write one manifest per partition spec of the files with rows, and one that names key files.

    Raises what storage raises.
    """
    per_spec: dict[int, list[ManifestDataFile]] = defaultdict(list)
    rows = [file for file in staging.files if file.kind is FileKind.ROWS]
    for file in to_manifest_data_files(table, rows):
        per_spec[file.spec_id].append(file)
    folder = staging_folder(
        _staging_folder_of(table, sink), staging.transaction.epoch, staging.coordinator
    )
    pending_commits = []
    for spec_id, files in per_spec.items():
        path = f"{folder}/{new_unique_name(f'{staging.transaction.number}-s{spec_id}')}.avro"
        size_bytes = _write_manifest_counting_bytes(table, table.specs()[spec_id], files, path)
        count = sum(file.record_count for file in files)
        pending_commits.append(
            replace(_to_pending_commit(table, staging, path, size_bytes), rows=count)
        )
    if named := [
        _key_file_as_data_file(table, file) for file in staging.files if file.kind is FileKind.KEYS
    ]:
        path = f"{folder}/{new_unique_name(f'{staging.transaction.number}-keys')}.avro"
        size_bytes = _write_manifest_counting_bytes(
            table, UNPARTITIONED_PARTITION_SPEC, named, path
        )
        count = sum(file.record_count for file in named)
        pending_commits.append(
            replace(_to_pending_commit(table, staging, path, size_bytes), deletes=count)
        )
    return tuple(pending_commits)


def _staging_folder_of(table: Table, sink: SinkName) -> str:
    return table_staging_folder(table.metadata.location, sink, str(table.metadata.table_uuid))


def _to_pending_commit(
    table: Table, staging: Staging, manifest: str, size_bytes: int
) -> PendingCommit:
    return PendingCommit(
        transaction=staging.transaction,
        coordinator=staging.coordinator,
        secondary=str(table.metadata.table_uuid),
        table=staging.table.table,
        manifest=manifest,
        size_bytes=size_bytes,
        since_ms=staging.since_ms,
    )


def _key_file_as_data_file(table: Table, file: WrittenFile) -> ManifestDataFile:
    return ManifestDataFile.from_args(
        _table_format_version=table.format_version,
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=file.records,
        file_size_in_bytes=file.size_bytes,
    )


def _write_manifest_counting_bytes(
    table: Table, spec: PartitionSpec, files: Sequence[ManifestDataFile], path: str
) -> int:
    output, schema = table.io.new_output(path), table.schema()
    nobodys = cast("int", None)
    with (
        manifests_v3.ManifestWriter(spec, schema, output, nobodys, CODEC)
        if isinstance(table.metadata, TableMetadataV3)
        else write_manifest(2, spec, schema, output, nobodys, CODEC)
    ) as writer:
        for file in files:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=None, data_file=file
                )
            )
    return int(writer.to_manifest_file().manifest_length)


def read_key_files_of(
    io: FileIO, pending_commits: Iterable[PendingCommit]
) -> list[tuple[PendingCommit, WrittenFile]]:
    """Return the key files that the pending commits name, in order. Raises what storage raises."""
    return [
        (pending_commit, _data_file_as_key_file(file))
        for pending_commit in pending_commits
        if pending_commit.deletes
        for file in read_staged_files(io, pending_commit.manifest)
    ]


def _data_file_as_key_file(file: ManifestDataFile) -> WrittenFile:
    return WrittenFile(file.file_path, file.record_count, file.file_size_in_bytes, FileKind.KEYS)


def read_staged_manifest(
    table: Table, pending_commit: PendingCommit, snapshot_id: int
) -> StagedManifest:
    """Return the manifest for the list of this snapshot. Raises what storage raises, and
    ``TableChanged`` for files of a partition spec that the table has no more.

    Counts and summaries come from its entries: the pending commit's numbers are for people.
    """
    spec_id, files = _read_spec_id_and_files(table.io, pending_commit.manifest)
    spec = table.specs().get(spec_id)
    if spec is None:  # no reader could read a snapshot that lists it
        raise TableChanged(
            f"{pending_commit.table}: partition spec {spec_id} of {pending_commit.description} "
            f"that transaction {pending_commit.transaction} decided is gone",
            "nothing of them is in the table: give it a former metadata file, which has the spec, "
            "or they expire (coordinator.claim_age_max_ms); expire snapshots without "
            "cleanExpiredMetadata while something is pending",
        )
    listed = _manifest_list_entry(
        pending_commit,
        spec_id,
        snapshot_id,
        files,
        summaries=_partition_summaries(table, spec, files),
    )
    numbered = isinstance(table.metadata, TableMetadataV3)
    return StagedManifest(
        manifests_v3.manifest_without_first_row_id(listed) if numbered else listed, files
    )


def read_staged_files(io: FileIO, manifest: str) -> list[ManifestDataFile]:
    """Return the files of a staged manifest, with rows or with keys, for read-only use."""
    return _read_spec_id_and_files(io, manifest)[1]


def _read_spec_id_and_files(io: FileIO, manifest: str) -> tuple[int, list[ManifestDataFile]]:
    """Fetch a staged manifest, once; return its partition spec and its files."""
    with read_manifest_entries.open_manifest(io, manifest, manifests_v3.VERSION) as staged:
        spec_id = int(staged.header.meta["partition-spec-id"])
        files = [entry.data_file for entry in staged]
    for file in files:
        manifests_v3.clear_first_row_id(file)
        file.spec_id = spec_id
    return spec_id, files


def _partition_summaries(
    table: Table, spec: PartitionSpec, files: Sequence[ManifestDataFile]
) -> list[PartitionFieldSummary] | None:
    """Return summaries, which save readers work; none if a partition field's column is gone."""
    if not is_writable_spec(table, spec):
        return None
    return construct_partition_summaries(spec, table.schema(), [file.partition for file in files])


def _manifest_list_entry(
    pending_commit: PendingCommit,
    spec_id: int,
    snapshot_id: int,
    files: Sequence[ManifestDataFile],
    *,
    summaries: list[PartitionFieldSummary] | None = None,
) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=pending_commit.manifest,
        manifest_length=pending_commit.size_bytes,
        partition_spec_id=spec_id,
        content=ManifestContent.DATA,
        sequence_number=_UNASSIGNED,
        min_sequence_number=_UNASSIGNED,
        added_snapshot_id=snapshot_id,
        added_files_count=len(files),
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=sum(file.record_count for file in files),
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=summaries,
        key_metadata=None,
    )


def find_undecided_manifests(
    table: Table, sink: SinkName, before_epoch: Epoch, pending_manifests: frozenset[str]
) -> list[str]:
    """Return manifests that coordinators of earlier epochs staged and never decided (PENDING-2).

    An earlier epoch decides nothing any more. What it decided was delivered, or is among the
    ``pending_manifests``, which include expired pending commits; any other manifest that no
    snapshot lists belongs to nobody. Only where storage can be listed, and only in this table's own
    folder: what lies beside it may be live in a table that was renamed, or shares the location. So
    may what was staged before each table had a folder; that is left to the orphan search.
    """
    root = _staging_folder_of(table, sink)
    old = [
        path for path, epoch in _staged_manifests_with_epochs(table, root) if epoch < before_epoch
    ]
    loose = {path for path in old if path not in pending_manifests}
    if not loose:
        return []
    # A delivered draft is a manifest of the table now, and is pending no more: all snapshots are
    # asked, not only the head's line, since a rollback may return to any of them.
    with ThreadPoolExecutor(STORAGE_THREADS) as threads:
        listed = threads.map(lambda s: s.manifests(table.io), table.metadata.snapshots)
        for manifests in listed:
            loose -= {manifest.manifest_path for manifest in manifests}
    return sorted(loose)


def _staged_manifests_with_epochs(table: Table, root: str) -> Iterator[tuple[str, Epoch]]:
    for location, _ in files_below(table.io, root):
        path = location[len(root) + 1 :]
        folder, _, name = path.rpartition("/")
        epoch = folder.partition("-")[0]
        if epoch.isdecimal():
            yield f"{root}/{folder}/{name}", Epoch(int(epoch))


# Data files that only expired pending commits name, as files that can be rewritten (SUSPEND-6).


def require_rewritable_files_by_partition(
    table: Table, manifests: Iterable[str], dead_positions: Mapping[str, BitMap64]
) -> tuple[tuple[CandidateFile, ...], ...]:
    """Return the files of each partition of the table.

    ``dead_positions``: by path, positions to leave out. Raises ``ValueError`` for a file that
    cannot be rewritten, and what storage raises.
    """
    partitions: dict[Any, list[CandidateFile]] = defaultdict(list)
    for file in (file for manifest in manifests for file in read_staged_files(table.io, manifest)):
        if file.spec_id != table.metadata.default_spec_id:
            raise ValueError(f"{file.file_path} is of an older partition spec")
        if file.file_format != FileFormat.PARQUET:
            raise ValueError(f"{file.file_path} is not Parquet")
        key = tuple(file.partition[place] for place in range(len(file.partition)))
        partitions[key].append(
            CandidateFile(
                path=file.file_path,
                spec_id=file.spec_id,
                partition=file.partition,
                records=file.record_count,
                size_bytes=file.file_size_in_bytes,
                sequence_number=0,
                dead=dead_positions.get(file.file_path, BitMap64()),
            )
        )
    return tuple(map(tuple, partitions.values()))
