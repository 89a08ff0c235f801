"""A catalog in memory that holds a real Iceberg table, and looks to the checkers like the fake one.

Metadata, snapshots, manifests are pyiceberg's; requirements are checked as a REST server does, or
in one world of two as pyiceberg's own catalogs do. Foreign writers work by pyiceberg's own API.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField
from simulation.memory_io import MemoryIO, MemoryStorage
from support.server_checks import as_on_the_wire
from support.verdicts import Kind, Violation

from headgate.control_protocol.testing import CommitFault, SourceRecord
from headgate.tables.iceberg import manifests_v3
from headgate.tables.iceberg.tag_lineage import summary_properties_of

MAIN = "main"
PROPERTIES = {
    "history.expire.max-snapshot-age-ms": str(-(10**12)),  # whatever the clock says, all is due
    "history.expire.min-snapshots-to-keep": "3",
    "commit.manifest.min-count-to-merge": "3",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "8",
}


@dataclass(frozen=True, slots=True)
class LiveFile:
    path: str


@dataclass(frozen=True)
class RealSnapshot:
    """As a ``FakeSnapshot``; its files are read when they are asked for."""

    real: Snapshot
    catalog: RealCatalog

    @property
    def snapshot_id(self) -> int:
        return self.real.snapshot_id

    @property
    def parent_id(self) -> int | None:
        return self.real.parent_snapshot_id

    @cached_property
    def summary(self) -> Mapping[str, str]:
        return summary_properties_of(self.real)

    @property
    def files(self) -> tuple[LiveFile, ...]:
        return self.catalog.data_files(self.real)


Call = tuple[Any, Any]
"""Requirements and updates on their way."""


class RealCatalog:
    columns = Schema(NestedField(1, "id", LongType(), required=False))
    properties = PROPERTIES

    def __init__(self, storage: MemoryStorage, table: str, *, serves: bool) -> None:
        """``serves``: it checks what a server can, and no more."""
        self.storage, self.table = storage, table
        self.reachable = True
        self.faults: deque[CommitFault] = deque()
        self.schema_faults = self.faults
        """A change of columns is a call like any other here: the next one takes the next fault."""
        self.in_the_air: list[tuple[Call, object]] = []
        self.foreign: dict[str, frozenset[str]] = {}
        """Refs that others made, and the files that were live under each."""
        self.taken_along: dict[str, object] = {}
        """Foreign refs that a removal took along, and by whom."""
        self.untold: set[str] = set()
        """Of these, the ones that no metadata file told of any more when their remover looked, or
        that went along after it had looked for the last time."""
        self.out_of_reach: set[object] = set()
        """Callers that did not reach the catalog when they called last."""
        self.cleaned: set[str] = set()
        """Files that were deleted as orphans."""
        self._looked_for: set[str] = set()
        self._applied_to: dict[str, str] = {}
        self._serves = serves
        self._versions = self._tables = 0
        self._entries: dict[str, tuple[str, ...]] = {}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._views: dict[int, RealSnapshot] = {}
        self._create()

    def _create(self) -> None:
        self._tables += 1
        self.location = f"memory://{self.table}-{self._tables}"
        made: TableMetadata = new_table_metadata(
            self.columns,
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
            self.location,
            dict(self.properties),
        )
        numbered = {"next_row_id": 0} if made.format_version == manifests_v3.VERSION else {}
        self.metadata: TableMetadata = made.model_copy(update=numbered)
        self._written()

    def _written(self) -> None:
        self._versions += 1
        self.at = f"{self.location}/metadata/{self._versions:05}.metadata.json"
        self.storage.versions[self.at] = self.metadata

    # ------------------------------------------------------------------------- what a catalog does

    def loaded(self, port: Any, io: MemoryIO) -> Table:
        self.out_of_reach.discard(port)
        log = {entry.metadata_file for entry in self.metadata.metadata_log}
        for name, by in list(self.taken_along.items()):
            if by is port and name not in self._looked_for:
                self._looked_for.add(name)
                self.untold |= {name} - {n for n, at in self._applied_to.items() if at in log}
        return Table(tuple(self.table.split(".")), self.metadata, self.at, io, port)

    def call(self, call: Call, by: object = None) -> CommitTableResponse:
        """The request arrives. Raises ``CommitFailedException`` and what pyiceberg refuses with."""
        self.check(call)
        _, updates = call
        try:
            after = update_table_metadata(self.metadata, updates, metadata_location=self.at)
        except ValueError as error:
            raise CommitFailedException(str(error)) from error
        taken = self.foreign.keys() & self.metadata.refs.keys() - after.refs.keys()
        self.taken_along.update(dict.fromkeys(taken, by))
        self._applied_to.update(dict.fromkeys(taken, self.at))
        if getattr(by, "closed", False):
            self.untold |= taken
        self.metadata = after
        self._written()
        return CommitTableResponse.model_construct(metadata=after, metadata_location=self.at)

    def check(self, call: Call) -> None:
        """Raises ``CommitFailedException`` where a requirement does not hold."""
        requirements, _ = call
        for requirement in as_on_the_wire(requirements) if self._serves else requirements:
            requirement.validate(self.metadata)

    def land_or_return_refusal(self, in_the_air_index: int = 0) -> str | None:
        try:
            self.call(*self.in_the_air.pop(in_the_air_index))
        except CommitFailedException as error:
            return str(error)
        return None

    # --------------------------------------------------------------------------- what others do

    def append_foreign(self) -> None:
        """A snapshot without files: rows of others are not the checkers' concern."""
        with self._foreign().transaction() as change, change.update_snapshot().fast_append():
            pass

    def compact(self) -> None:
        """All live files as one."""
        head = self.metadata.current_snapshot()
        if head is None:
            return
        io = MemoryIO(self.storage)
        live = [
            entry.data_file
            for manifest in head.manifests(io)
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        ]
        records = self.visible_rows()
        table = self._foreign()
        with table.transaction() as change, change.update_snapshot().overwrite() as overwrite:
            for file in live:
                overwrite.delete_data_file(file)
            if records:
                merged = self.storage.write(f"{self.location}/compacted-", records)
                overwrite.append_data_file(_manifest_file(merged.path, len(records)))

    def _foreign(self) -> Table:
        return self.loaded(_Foreign(self), MemoryIO(self.storage))

    def expire_snapshots(self, keep: int = 1) -> None:
        """Of each branch the newest stay, and whatever a ref holds; files of the others go."""
        kept = {ref.snapshot_id for ref in self.metadata.refs.values()}
        for head in self.branches.values():
            kept |= {snapshot.snapshot_id for snapshot in list(self.ancestry(head))[:keep]}
        gone = [s.snapshot_id for s in self.metadata.snapshots if s.snapshot_id not in kept]
        before = self.referred()
        if gone:
            self.call(((), (RemoveSnapshotsUpdate(snapshot_ids=gone),)))
            for path in before - self.referred():
                self.storage.delete(path)

    def roll_back(self, snapshot_id: int) -> None:
        self._set(MAIN, SnapshotRefType.BRANCH, snapshot_id)

    def tag_foreign(self, snapshot_id: int) -> None:
        name = f"release-{len(self.foreign)}"
        self._set(name, SnapshotRefType.TAG, snapshot_id)
        snapshot = self.metadata.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        self.foreign[name] = frozenset(self.live(snapshot))

    def delete_tag(self, tag: str) -> None:
        self.call(((), (RemoveSnapshotRefUpdate(ref_name=tag),)))

    def delete_property(self, name: str) -> None:
        self.call(((), (RemovePropertiesUpdate(removals=[name]),)))

    def recreate(self) -> None:
        self.foreign.clear()
        self._create()

    def _set(self, name: str, kind: SnapshotRefType, snapshot_id: int) -> None:
        update = SetSnapshotRefUpdate(ref_name=name, type=kind, snapshot_id=snapshot_id)  # type: ignore[call-arg]
        self.call(((), (update,)))

    # ---------------------------------------------------------------------------- what is in it

    @property
    def uuid(self) -> str:
        return str(self.metadata.table_uuid)

    @property
    def branches(self) -> dict[str, int]:
        return self._refs(SnapshotRefType.BRANCH)

    @property
    def tags(self) -> dict[str, int]:
        return self._refs(SnapshotRefType.TAG)

    def _refs(self, kind: SnapshotRefType) -> dict[str, int]:
        refs = self.metadata.refs.items()
        return {name: ref.snapshot_id for name, ref in refs if ref.snapshot_ref_type is kind}

    @property
    def snapshots(self) -> dict[int, RealSnapshot]:
        return {s.snapshot_id: self._seen(s) for s in self.metadata.snapshots}

    def _seen(self, snapshot: Snapshot) -> RealSnapshot:
        known = self._views.get(snapshot.snapshot_id)
        if known is None or known.real is not snapshot:
            known = self._views[snapshot.snapshot_id] = RealSnapshot(snapshot, self)
        return known

    def ancestry(self, snapshot_id: int | None) -> Iterator[RealSnapshot]:
        snapshots = self.snapshots
        while snapshot_id in snapshots:
            assert snapshot_id is not None
            yield snapshots[snapshot_id]
            snapshot_id = snapshots[snapshot_id].parent_id

    def files(self) -> tuple[LiveFile, ...]:
        head = self.metadata.current_snapshot()
        return self._seen(head).files if head else ()

    def visible_rows(self) -> list[SourceRecord]:
        return [row for file in self.files() for row in self.storage.files[file.path]]

    def new_snapshot(self, *_: object) -> RealSnapshot:
        """One that never lands."""
        never = Snapshot(
            snapshot_id=self.metadata.new_snapshot_id(), timestamp_ms=0, manifest_list=""
        )
        return RealSnapshot(never, self)

    def data_files(self, snapshot: Snapshot) -> tuple[LiveFile, ...]:
        return tuple(LiveFile(path) for path in self.live(snapshot))

    def live(self, snapshot: Snapshot) -> list[str]:
        return [path for m in self._manifests(snapshot) for path in self._paths(m)]

    def referred(self) -> set[str]:
        """Every file that a snapshot refers to."""
        paths: set[str] = set()
        for snapshot in self.metadata.snapshots:
            manifests = self._manifests(snapshot)
            paths.add(snapshot.manifest_list)
            paths.update(manifests, *(self._paths(manifest) for manifest in manifests))
        return paths

    def _manifests(self, snapshot: Snapshot) -> tuple[str, ...]:
        known = self._lists.get(snapshot.manifest_list)
        if known is None:
            try:
                known = self._lists[snapshot.manifest_list] = self._read(snapshot)
            except FileNotFoundError as error:
                what = f"{self.table} refers to what is gone: {error}"
                raise Violation(Kind.LOSS, what) from error
        return known

    def _read(self, snapshot: Snapshot) -> tuple[str, ...]:
        io = MemoryIO(self.storage)
        manifests = snapshot.manifests(io)
        for manifest in manifests:
            if manifest.manifest_path not in self._entries:
                entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
                paths = tuple(entry.data_file.file_path for entry in entries)
                self._entries[manifest.manifest_path] = paths
        return tuple(manifest.manifest_path for manifest in manifests)

    def _paths(self, manifest: str) -> tuple[str, ...]:
        return self._entries[manifest]


class _Foreign:
    """What a foreign writer's table calls: the catalog, without anything that goes wrong."""

    def __init__(self, catalog: RealCatalog) -> None:
        self._catalog = catalog

    def commit_table(self, _: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        return self._catalog.call((requirements, updates))

    @staticmethod
    def _delete_old_metadata(*_: object) -> None:
        """Metadata files are the sink's to delete."""


def _manifest_file(path: str, count: int) -> ManifestDataFile:
    file = ManifestDataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=count,
        file_size_in_bytes=100 * count,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = 0
    return file


def real_catalog(
    seed: int, beside: MemoryStorage | None = None, name: str = "lake.records"
) -> RealCatalog:
    """The sink's table; ``beside`` its storage, a secondary table."""
    return RealCatalog(MemoryStorage() if beside is None else beside, name, serves=seed % 2 == 0)
