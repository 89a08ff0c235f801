"""A coordinator whose lead has two followers, and what each of them is owed."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.values import (
    ALICE,
    P0,
    P1,
    RIVAL,
    SINK,
    TABLE,
    data_file,
    folder,
    offsets,
    record,
    view,
)

from headgate.control_protocol.events import Claim, TableStatus, WriteStatus
from headgate.control_protocol.identifiers import Sender, TransactionId
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.record import CommitRecord, Debt
from headgate.coordinator.actions import PayDebts
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.transitions import Phase

ONE, OTHER = "lake.one", "lake.other"
UUIDS = {ONE: "uuid-one", OTHER: "uuid-other", "lake.trips_quarantine": "uuid-q"}
LEAD = "uuid-1"


def follower(
    name: str,
    epoch: int = EPOCH - 1,
    number: int = 4,
    *,
    lead: str | None = LEAD,
    snapshot: int = 50,
) -> TableView:
    """It was paid up to this transaction."""
    paid = replace(record(epoch, number, offsets(10, 20), RIVAL), lead=lead)
    found = view(paid, snapshot=snapshot, uuid=UUIDS[name])
    return replace(found, table=name, location=f"s3://{name}")


def owed(name: str, epoch: int, number: int, rows: int = 2, since_ms: int = 10**15) -> Debt:
    number_of = record(epoch, number, Offsets()).transaction
    path = f"{name}/{epoch}.{number}.avro"
    return Debt(number_of, RIVAL, UUIDS[name], name, path, 100, rows, since_ms)


def deciding(epoch: int = EPOCH - 1, number: int = 4, *debts: Debt) -> CommitRecord:
    """What the lead's record says."""
    return replace(record(epoch, number, offsets(10, 20), RIVAL), followers=UUIDS, debts=debts)


def following(
    *debts: Debt,
    followers: tuple[TableView, ...] | None = None,
    settings: CoordinatorSettings = SETTINGS,
) -> Coordinator:
    """One that has not begun; the lead's record names these debts."""
    made = Coordinator(view(deciding(EPOCH - 1, 4, *debts)), settings)
    made.follow(*((follower(ONE), follower(OTHER)) if followers is None else followers))
    return made


def announces(coordinator: Coordinator, rows: int = 3, aside: dict[str, int] | None = None) -> None:
    """A status with rows for the lead and for followers, whose files are all that they are owed."""
    term = coordinator.term
    transaction = term.closing
    begin, other = term.offsets[P0], term.offsets[P1]
    wanted = {ONE: 2, OTHER: 1} if aside is None else aside
    count = rows + sum(wanted.values())
    claim = Claim(OffsetRange(begin, begin + count), rows, quarantined=sum(wanted.values()))
    files = (data_file(f"{folder(EPOCH, transaction)}/{begin}.parquet", rows),) if rows else ()
    idle = Claim(OffsetRange(other, other))
    tables = [TableStatus(TABLE, files)]
    tables += [
        TableStatus(name, (data_file(f"{_folder(name, transaction)}/{begin}.parquet", held),))
        for name, held in wanted.items()
        if held
    ]
    number = transaction * 10
    said = WriteStatus(number, {P0: claim, P1: idle}, tuple(tables))
    coordinator.hears(said, ALICE, transaction=transaction)
    coordinator.waits(0)


def _folder(name: str, transaction: int) -> str:
    return f"s3://{name}/data/headgate/{SINK}/{EPOCH}-c1/{transaction}"


def drafting(settings: CoordinatorSettings = SETTINGS) -> Coordinator:
    """One that has judged a status with rows for both followers."""
    made = following(settings=settings)
    made.until(Phase.COLLECTING)
    announces(made)
    return made


def paying(settings: CoordinatorSettings = SETTINGS) -> Coordinator:
    """One that has decided, and said so: the lead is read before the followers are paid."""
    made = drafting(settings)
    made.until(Phase.PAYING)
    return made


def paid_by(coordinator: Coordinator) -> dict[str, list[TransactionId]]:
    """What the payments that it wants are for."""
    return {
        payment.base.table: [debt.transaction for debt in payment.debts]
        for payment in coordinator.only(PayDebts).payments
    }


def at(epoch: int, number: int) -> TransactionId:
    return record(epoch, number, Offsets()).transaction


ZOMBIE = Sender("worker-9", "z1")
