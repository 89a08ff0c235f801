"""A keyed table that fills through ``IcebergTable``, and the fold of its source as the oracle.

Records are written as participants write them: row files per partition of the table, key files for
those that delete.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import SetSnapshotRefUpdate
from support.iceberg_files import write_files

from headgate.control_protocol.commit_record import CommitRecord, KeyCounts
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
    tag_name,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Landed, Refused
from headgate.tables.iceberg import manifests_v3
from headgate.tables.iceberg.maintenance.compaction_plan import sink_data_folder
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import (
    CREATED_MS,
    TableDeclaration,
    create_table_if_missing,
    require_key_field_ids,
)
from headgate.tables.iceberg.upsert.key_files import (
    OFFSET,
    PARTITION,
    key_file_schema,
    write_key_file,
)
from headgate.tables.iceberg.upsert.position_deletes import sole_referenced_data_file
from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows

SINK = SinkName("sink")
NAME = "db.t"
COLUMNS = {
    "id": "long not null",
    "name": "string not null",
    "zone": "string",
    "n": "long",
    "from_partition": "int",
    "from_offset": "long",
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """A record of the source: it puts this row there, or (without one) deletes its key's."""

    key: tuple[Any, ...]
    zone: str | None = None
    partition: int = 0


@dataclass
class Source:
    """The partitions' logs. ``fold``: what the table is when it has taken all up to ``offsets``."""

    key: tuple[str, ...] = ("id",)
    offsets: dict[int, int] = field(default_factory=dict)
    fold: dict[tuple[Any, ...], Row] = field(default_factory=dict)

    def rows(self, events: Sequence[Event]) -> tuple[list[Row], list[Row]]:
        """Rows and deletes, each with the record's coordinates; the fold goes along."""
        rows, deletes = [], []
        for event in events:
            offset = self.offsets.get(event.partition, 0)
            self.offsets[event.partition] = offset + 1
            named = dict(zip(self.key, event.key, strict=True))
            self.fold.pop(event.key, None)
            if event.zone is None:
                deletes.append(named | {PARTITION: event.partition, OFFSET: offset})
                continue
            row = {"id": 0, "name": "", "zone": event.zone, "n": offset} | named
            row |= {"from_partition": event.partition, "from_offset": offset}
            rows.append(row)
            self.fold[event.key] = row
        return rows, deletes

    def expected_rows(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(row.values()) for row in self.fold.values()), key=repr)


@dataclass
class KeyedWorld:
    """One sink of a keyed table. ``catalog`` may lie between the sink and the real one."""

    catalog: Catalog
    source: Source
    table: IcebergTable
    number: int = 0
    coordinator: str = "one"

    @classmethod
    def create(
        cls,
        catalog: Catalog,
        version: int,
        partition_by: Sequence[str] = (),
        key: tuple[str, ...] = ("id",),
        **properties: str,
    ) -> KeyedWorld:
        made = {"format-version": str(version), CREATED_MS: "0"}  # older than any file of a test
        declaration = TableDeclaration(COLUMNS, partition_by, {**made, **properties}, key=key)
        create_table_if_missing(catalog, NAME, declaration)
        world = cls(catalog, Source(key), keyed_table(catalog, key))
        assert isinstance(world.table.commit(world.attempt(())), Landed)
        return world

    def load(self) -> Table:
        return self.catalog.load_table(NAME)

    def restart(self, coordinator: str) -> None:
        """Another coordinator goes on: whatever was in memory is gone."""
        self.coordinator = coordinator
        self.table = keyed_table(self.catalog, self.source.key)

    def upgrade_to_3(self) -> None:
        """To version 3, as an engine does that knows it; pyiceberg refuses to."""
        file = Path(self.load().metadata_location.removeprefix("file://"))
        metadata = json.loads(file.read_text()) | {"format-version": 3, "next-row-id": 0}
        file.write_text(json.dumps(metadata))

    def delete_files(self) -> dict[str, list[DataFile]]:
        """Of the head, by the data file that each is about."""
        snapshot = self.load().current_snapshot()
        assert snapshot
        io, found = self.load().io, defaultdict(list)
        for manifest in manifests_v3.read_manifest_list(io, snapshot.manifest_list):
            if manifest.content is ManifestContent.DELETES:
                for entry in manifests_v3.read_live_entries(io, manifest):
                    found[sole_referenced_data_file(entry.data_file) or ""].append(entry.data_file)
        return found

    def files(self, events: Sequence[Event]) -> tuple[WrittenFile, ...]:
        """What a status of these records names."""
        rows, deletes = self.source.rows(events)
        return write_status_files(self.load(), self.source.key, rows, deletes)

    def attempt(self, files: Sequence[WrittenFile]) -> CommitAttempt:
        offsets = {TopicPartition("topic", p): at for p, at in self.source.offsets.items()}
        record = CommitRecord(
            sink=SINK,
            group_id="group",
            transaction=TransactionId(Epoch(1), TransactionNumber(self.number)),
            coordinator=Sender("member", self.coordinator),
            offsets=Offsets(offsets),
            records=sum(file.records for file in files if file.kind is FileKind.ROWS),
        )
        self.number += 1
        return CommitAttempt(self.table.read(), record, tuple(files))

    def commit(self, *statuses: Sequence[Event]) -> KeyCounts:
        """The records of these statuses, in their order, by one call that lands."""
        return self.land(self.attempt([f for events in statuses for f in self.files(events)]))

    def again(self, attempt: CommitAttempt) -> CommitAttempt:
        """The same files on the head as it is now."""
        return CommitAttempt(self.table.read(), attempt.record, attempt.files)

    def roll_back(self, snapshot_id: int) -> None:
        """The branch and the sink's tag stand on an older snapshot again, as an operator has it."""
        tag = tag_name(SINK, MAIN_BRANCH)
        self.catalog.commit_table(
            self.load(),
            (),
            (
                SetSnapshotRefUpdate(ref_name=MAIN_BRANCH, type="branch", snapshot_id=snapshot_id),  # type: ignore[call-arg]
                SetSnapshotRefUpdate(ref_name=tag, type="tag", snapshot_id=snapshot_id),  # type: ignore[call-arg]
            ),
        )

    def land(self, attempt: CommitAttempt) -> KeyCounts:
        """OUTCOME-2: the same files again on the new head, until they are in."""
        outcome: CommitOutcome = Refused("not tried yet")
        while isinstance(outcome, Refused):
            outcome = self.table.commit(attempt)
            attempt = self.again(attempt)
        assert isinstance(outcome, Landed), outcome
        assert outcome.view.record is not None
        assert outcome.view.record.keys is not None
        return outcome.view.record.keys


def write_status_files(
    table: Table, key: tuple[str, ...], rows: Sequence[Row], deletes: Sequence[Row]
) -> tuple[WrittenFile, ...]:
    """Write the files of one status."""
    files: tuple[WrittenFile, ...] = ()
    if rows:
        arrow = schema_to_pyarrow(table.schema(), include_field_ids=False)
        below = sink_data_folder(table, SINK)
        files += write_files(table, pa.Table.from_pylist(list(rows), arrow), below)
    if deletes:
        columns = key_file_schema(
            table.schema(), require_key_field_ids(table.schema(), key), with_topic=False
        )
        path = f"{table.location()}/data/keys-{uuid.uuid4()}.parquet"
        files += (write_key_file(table.io, path, pa.Table.from_pylist(list(deletes), columns)),)
    return files


def keyed_table(catalog: Catalog, key: tuple[str, ...], **limits: int) -> IcebergTable:
    by = KeyedBy(key, "from_partition", "from_offset", **limits)
    return IcebergTable(catalog, NAME, SINK, threads=False, keyed=KeyedRows(by))


def rows_of(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as ``Source.expected_rows`` has them."""
    return sorted((tuple(row[name] for name in COLUMNS) for row in rows.to_pylist()), key=repr)
