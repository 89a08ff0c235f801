"""A sink of many tables on SQLite, committed and delivered as a coordinator does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from support.iceberg_files import write_files
from unit.operations.filled_table import ARROW, SCHEMA, catalog_properties

from headgate.config.load import parse
from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed, Staging, TopicState
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.coordinator.secondary_pending_commits import build_deliveries
from headgate.operations.audit.audit import audit
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SINK, AT = SinkName("shop"), TopicPartition("shop", 0)
LEDGER, ORDERS, CLICKS, LATE = "db.ledger", "db.orders", "db.clicks", "db.late"
FILE = """
name = "shop"
[source]
topics = ["shop"]
group_id = "headgate-shop"
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[catalog.properties]
type = "sql"
uri = "{uri}"
warehouse = "{warehouse}"
[tables]
ledger = "db.ledger"
[[tables.route]]
field = "kind"
to = "db.{{field}}"
[tables.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
[spark]
writer = "in-process"
"""
QUARANTINE = '[quarantine]\npolicy = "quarantine"\n'
Rows = Mapping[str, Sequence[int]]
"""By table the offsets of its rows."""


def shop_settings(home: Path, more: str = QUARANTINE) -> SinkSettings:
    """Return the settings of the shop whose catalog is in this folder."""
    known = catalog_properties(home)
    return parse(FILE.format(uri=known["uri"], warehouse=known["warehouse"]) + more)


def without_quarantine(settings: SinkSettings) -> SinkSettings:
    """Return the settings of the same sink that stops at bad and unmatched records."""
    stopping = replace(settings.tables, unmatched=Disposal.FAIL)
    return replace(settings, tables=stopping, quarantine=QuarantineSettings(policy=Disposal.FAIL))


class Shop:
    """A sink of many tables, committed and delivered as a coordinator does it."""

    def __init__(self, catalog: Catalog, settings: SinkSettings) -> None:
        self.catalog, self.settings = catalog, settings
        catalog.create_namespace("db")
        create_table_if_missing(catalog, LEDGER, TableDeclaration({"nothing": "string"}))
        create_table_if_missing(catalog, settings.quarantine.table, quarantine_declaration())
        self.ledger = IcebergTable(catalog, LEDGER, SINK)
        self.next_offset = 0
        self.claims(1)

    def table(self, name: str) -> IcebergTable:
        return IcebergTable(self.catalog, name, SINK)

    def record(self, number: int, rows: int = 0, **other: Any) -> CommitRecord:
        life = Sender(f"member-{self.epoch}", f"life-{self.epoch}")
        return CommitRecord(
            sink=SINK,
            group_id="headgate-shop",
            transaction=TransactionId(Epoch(self.epoch), TransactionNumber(number)),
            coordinator=life,
            offsets=Offsets({AT: self.next_offset}),
            topic_ids={"shop": TopicId("topic-id-1")},
            records=rows,
            **other,
        )

    def claims(self, epoch: int) -> None:
        self.epoch, self.number = epoch, 0
        view = self.ledger.read()
        if view.record:
            self.next_offset = view.record.offsets[AT]
        assert isinstance(self.ledger.commit(CommitAttempt(view, self.record(0))), Landed)

    def decides(self, rows: Rows, **other: Any) -> tuple[PendingCommit, ...]:
        """The ledger's commit of the next transaction; nobody is delivered yet."""
        self.number += 1
        number = sum(map(len, rows.values()))
        self.next_offset += number
        record = self.record(self.number, number)
        pending_commits = tuple(
            pending_commit
            for name, at in rows.items()
            for pending_commit in self.drafts(record, name, at)
        )
        view = self.ledger.read()
        pending = (*other.pop("still", ()), *pending_commits)
        if view.record:
            other = {
                "expired": view.record.expired,
                "secondaries": view.record.secondaries,
                **other,
            }
        attempt = CommitAttempt(view, replace(record, pending_commits=pending, **other))
        assert isinstance(self.ledger.commit(attempt), Landed)
        return pending_commits

    def drafts(
        self, record: CommitRecord, name: str, at: Sequence[int]
    ) -> tuple[PendingCommit, ...]:
        if not self.catalog.table_exists(name):
            self.catalog.create_table(name, SCHEMA)
        table = self.catalog.load_table(name)
        values = [{"topic": "shop", "partition": 0, "offset": offset} for offset in at]
        files = write_files(table, pa.Table.from_pylist(values, schema=ARROW))
        view = self.table(name).read()
        return self.table(name).stage(
            Staging(view, record.transaction, record.coordinator, tuple(files))
        )

    def diverts(
        self,
        meant_for: Mapping[str, Mapping[int, str | None]],
        rows: Rows | None = None,
        *,
        unmatched: str = "",
        topic_id: str = "topic-id-1",
    ) -> None:
        """A transaction whose records for some tables go to the quarantine instead (SUSPEND-1).

        ``unmatched``: why no table takes them (ROUTE-2). ``topic_id``: of the topic they are from.
        """
        aside = self.settings.quarantine.table
        self.number += 1
        number = sum(map(len, (rows or {}).values()))
        count = sum(map(len, meant_for.values()))
        self.next_offset += number + count
        record = self.record(self.number, number, quarantined=count)
        table = self.catalog.load_table(aside)
        values = [
            {
                "topic": "shop",
                "topic_id": topic_id,
                "partition": 0,
                "offset": offset,
                "value": None if value is None else value.encode(),
                "error_class": "route" if unmatched else "table",
                "message": unmatched or f"{name}: HG-102",
                "table_name": None if unmatched else name,
                "sink": str(SINK),
            }
            for name, found in meant_for.items()
            for offset, value in found.items()
        ]
        files = write_files(table, pa.Table.from_pylist(values, schema=table.schema().as_arrow()))
        view = self.table(aside).read()
        draft = Staging(view, record.transaction, record.coordinator, tuple(files))
        pending_commits = self.table(aside).stage(draft)
        for name, at in (rows or {}).items():
            pending_commits += self.drafts(record, name, at)
        attempt = CommitAttempt(
            self.ledger.read(), replace(record, pending_commits=pending_commits)
        )
        assert isinstance(self.ledger.commit(attempt), Landed)
        for name in (aside, *(rows or {})):
            assert isinstance(self.table(name).commit(self.delivery(name, pending_commits)), Landed)

    def delivery(self, name: str, pending_commits: Sequence[PendingCommit]) -> CommitAttempt:
        (delivery,) = build_deliveries(
            self.ledger.read(), tuple(pending_commits), {name: self.table(name).read()}, ()
        )
        return delivery

    def commits(self, rows: Rows) -> None:
        """A transaction that is decided and delivered."""
        pending_commits = self.decides(rows)
        for name in rows:
            assert isinstance(self.table(name).commit(self.delivery(name, pending_commits)), Landed)

    def rows(self) -> dict[str, list[int]]:
        """What any reader sees."""
        return {
            name: sorted(self.catalog.load_table(name).scan().to_arrow()["offset"].to_pylist())
            for name in (ORDERS, CLICKS, LATE)
            if self.catalog.table_exists(name)
        }

    def assert_proven(self, records: int) -> None:
        report = audit(self.settings, with_source=False)
        assert report.findings == ()
        assert (report.rows, report.distinct) == (records, records)


def expire_all_but_refs(catalog: Catalog, name: str) -> None:
    """Remove all snapshots but those that a tag or branch needs."""
    table = catalog.load_table(name)
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    gone = [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in kept]
    table.maintenance.expire_snapshots().by_ids(gone).commit()


class Source:
    """One topic of twenty records."""

    def describe(self) -> dict[str, TopicState]:
        return {"shop": TopicState(TopicId("topic-id-1"), {0: OffsetRange(0, 20)})}
