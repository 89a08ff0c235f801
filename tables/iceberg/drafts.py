"""Manifests that are written before a decision, and committed after it (rules D2, D5).

They carry no snapshot id: whoever lists one in a snapshot gives it that snapshot's id and sequence
number (Iceberg's spec, *Sequence Number Inheritance*), in version 3 the ids of its rows as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    construct_partition_summaries,
    write_manifest,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3

from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
    draft_folder,
)
from headgate.control_protocol.ports import Draft
from headgate.control_protocol.record import Debt
from headgate.tables.iceberg import row_ids
from headgate.tables.iceberg.manifests import CODEC, manifest_files, writable
from headgate.tables.iceberg.unreachable import STORAGE_THREADS
from headgate.tables.stores.listing import files_below

_UNASSIGNED = -1
_NONE, _NOBODY = TransactionId(Epoch(0), TransactionNumber(0)), Sender("", "")


@dataclass(frozen=True, slots=True)
class Drafted:
    """A drafted manifest as the list of a snapshot names it, and the files in it."""

    manifest: ManifestFile
    files: list[ManifestDataFile]


def write_drafts(table: Table, sink: SinkName, draft: Draft) -> tuple[Debt, ...]:
    """Write one manifest per partition spec of the files. Raises what storage raises."""
    per_spec: dict[int, list[ManifestDataFile]] = defaultdict(list)
    for file in manifest_files(table, draft.files):
        per_spec[file.spec_id].append(file)
    transaction, coordinator = draft.transaction, draft.coordinator
    folder = draft_folder(table.metadata.location, sink, transaction.epoch, coordinator)
    debts = []
    for spec_id, files in per_spec.items():
        path = f"{folder}/{transaction.number}-s{spec_id}.avro"
        debts.append(
            Debt(
                transaction=transaction,
                coordinator=coordinator,
                follower=str(table.metadata.table_uuid),
                table=draft.table.table,
                manifest=path,
                size_bytes=_write(table, spec_id, files, path),
                rows=sum(file.record_count for file in files),
                since_ms=draft.since_ms,
            )
        )
    return tuple(debts)


def _write(table: Table, spec_id: int, files: Sequence[ManifestDataFile], path: str) -> int:
    output = table.io.new_output(path)
    spec, schema = table.specs()[spec_id], table.schema()
    nobodys = cast("int", None)
    with (
        row_ids.ManifestWriter(spec, schema, output, nobodys, CODEC)
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


def read_draft(table: Table, debt: Debt, snapshot_id: int) -> Drafted:
    """The manifest for the list of this snapshot. Raises what storage raises.

    Counts and summaries are of its entries: the debt's numbers are for people.
    """
    spec_id = _spec_id(table.io, debt.manifest)
    files = drafted_files(table.io, debt.manifest)
    listed = _listed(debt, spec_id, snapshot_id, files, summaries=_summaries(table, spec_id, files))
    numbered = isinstance(table.metadata, TableMetadataV3)
    return Drafted(row_ids.unnumbered(listed) if numbered else listed, files)


def drafted_files(io: FileIO, manifest: str) -> list[ManifestDataFile]:
    """The data files of a drafted manifest, for who only looks."""
    spec_id = _spec_id(io, manifest)
    bare = _listed(Debt(_NONE, _NOBODY, "", "", manifest), spec_id, 0, [])
    entries = list(row_ids.live_entries(io, row_ids.unnumbered(bare)))
    for entry in entries:
        entry.data_file.spec_id = spec_id
    return [entry.data_file for entry in entries]


def _spec_id(io: FileIO, manifest: str) -> int:
    with AvroFile[ManifestEntry](io.new_input(manifest)) as reader:
        return int(reader.header.meta["partition-spec-id"])


def _summaries(
    table: Table, spec_id: int, files: Sequence[ManifestDataFile]
) -> list[PartitionFieldSummary] | None:
    """They save readers work; there are none where the column of a partition field is gone."""
    spec = table.specs().get(spec_id)
    if spec is None or not writable(table, spec):
        return None
    return construct_partition_summaries(spec, table.schema(), [file.partition for file in files])


def _listed(
    debt: Debt,
    spec_id: int,
    snapshot_id: int,
    files: Sequence[ManifestDataFile],
    *,
    summaries: list[PartitionFieldSummary] | None = None,
) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=debt.manifest,
        manifest_length=debt.size_bytes,
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


def undecided(table: Table, sink: SinkName, before: Epoch, owed: frozenset[str]) -> list[str]:
    """Manifests that coordinators of earlier epochs drafted and never decided (D2).

    An earlier epoch decides nothing any more. What it decided is owed, was paid, or has lapsed:
    what no snapshot lists and nobody is owed belongs to nobody. Only where storage can be listed.
    """
    root = f"{table.metadata.location}/metadata/headgate/{sink}"
    old = [path for path, epoch in _drafts_under(table, root) if epoch < before]
    loose = {path for path in old if path not in owed}
    if not loose:
        return []
    with ThreadPoolExecutor(STORAGE_THREADS) as threads:
        listed = threads.map(lambda s: s.manifests(table.io), table.metadata.snapshots)
        for manifests in listed:
            loose -= {manifest.manifest_path for manifest in manifests}
    return sorted(loose)


def _drafts_under(table: Table, root: str) -> Iterator[tuple[str, Epoch]]:
    for location, _ in files_below(table.io, root):
        path = location[len(root) + 1 :]
        folder, _, name = path.rpartition("/")
        epoch = folder.partition("-")[0]
        if epoch.isdecimal():
            yield f"{root}/{folder}/{name}", Epoch(int(epoch))
