"""A ledger's coordinator, with one routed table that things happen to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.following import deciding, secondary
from protocol.values import ALICE, P0, P1, SINK, data_file, record, view

from headgate.control_protocol.commit_record import PendingCommit, Suspended
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import TableStatus, WriteStatus, WrittenRange
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.inputs_and_actions import SecondariesRead
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings

ORDERS, UUID = "lake.orders", "uuid-orders"
CLICKS = "lake.clicks"
ASIDE = "lake.trips_quarantine"


def table(
    name: str = ORDERS, uuid: str = UUID, lineage: Lineage = Lineage.FRESH, head: int | None = None
) -> TableView:
    fresh = replace(view(None, uuid=uuid), table=name, location=f"s3://{name}")
    return replace(fresh, lineage=lineage, head=head)


def pending(epoch: int, number: int, rows: int = 2, name: str = ORDERS) -> PendingCommit:
    number_of = record(epoch, number, Offsets()).transaction
    uuid = UUID if name == ORDERS else f"uuid-{name}"
    return PendingCommit(
        number_of, ALICE, uuid, name, f"{name}/{epoch}.{number}.avro", 9, rows, 10**15
    )


def ledgers(
    *pending_commits: PendingCommit,
    suspended: tuple[Suspended, ...] = (),
    settings: CoordinatorSettings = SETTINGS,
) -> Coordinator:
    """One that has not begun."""
    stored = replace(deciding(EPOCH - 1, 4, *pending_commits), suspended=suspended)
    made = Coordinator(view(stored), settings)
    made.follow(secondary(ASIDE))
    made.state = replace(made.state, identity=replace(made.state.identity, routed=True))
    return made


def collecting(
    *pending_commits: PendingCommit, suspended: tuple[Suspended, ...] = ()
) -> Coordinator:
    made = ledgers(*pending_commits, suspended=suspended)
    made.until(Phase.COLLECTING)
    return made


def announces(
    made: Coordinator,
    rows: int = 3,
    *,
    at: str | None = ORDERS,
    number: int = 1,
    troubles: Mapping[str, str] | None = None,
) -> None:
    """A status of records that were routed to one table, or, without one, into the quarantine."""
    term = made.term
    begin, idle, transaction = (
        term.progress.offsets[P0],
        term.progress.offsets[P1],
        term.previous_transaction_number,
    )
    name = at or ASIDE
    path = f"s3://{name}/data/headgate/{SINK}/{EPOCH}-c1/{transaction}/{number}.parquet"
    uuid = UUID if at else ""
    tables = (TableStatus(name, (data_file(path, rows),), uuid, 2 if at else 0),)
    claims = {
        P0: WrittenRange(OffsetRange(begin, begin + rows), rows if at else 0, 0 if at else rows),
        P1: WrittenRange(OffsetRange(idle, idle)),
    }
    said = WriteStatus(number, claims, tables, troubles=troubles or {})
    made.hears(said, ALICE, transaction=transaction)
    made.waits(0)


def reads(
    made: Coordinator, *tables: TableView, troubles: Mapping[str, HeadgateError] | None = None
) -> None:
    made.pending = None
    views = {found.table: found for found in tables}
    made.looks(read=SecondariesRead(views, troubles or {}))
