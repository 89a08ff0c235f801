"""A coordinator whose lead has two secondary tables, and what each of them is pending."""

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

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.events import TableStatus, WriteStatus, WrittenRange
from headgate.control_protocol.identifiers import Sender, TransactionId
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import TableView
from headgate.coordinator.inputs_and_actions import DeliverPendingCommits
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings

ONE, OTHER = "lake.one", "lake.other"
UUIDS = {ONE: "uuid-one", OTHER: "uuid-other", "lake.trips_quarantine": "uuid-q"}
PRIMARY = "uuid-1"


def secondary(
    name: str,
    epoch: int = EPOCH - 1,
    number: int = 4,
    *,
    primary: str | None = PRIMARY,
    snapshot: int = 50,
) -> TableView:
    """It was delivered up to this transaction."""
    delivered = replace(record(epoch, number, offsets(10, 20), RIVAL), primary=primary)
    found = view(delivered, snapshot=snapshot, uuid=UUIDS[name])
    return replace(found, table=name, location=f"s3://{name}")


def pending(
    name: str, epoch: int, number: int, rows: int = 2, since_ms: int = 10**15
) -> PendingCommit:
    number_of = record(epoch, number, Offsets()).transaction
    path = f"{name}/{epoch}.{number}.avro"
    return PendingCommit(number_of, RIVAL, UUIDS[name], name, path, 100, rows, since_ms)


def deciding(
    epoch: int = EPOCH - 1, number: int = 4, *pending_commits: PendingCommit
) -> CommitRecord:
    """What the primary table's record says."""
    return replace(
        record(epoch, number, offsets(10, 20), RIVAL),
        secondaries=UUIDS,
        pending_commits=pending_commits,
    )


def following(
    *pending_commits: PendingCommit,
    secondaries: tuple[TableView, ...] | None = None,
    settings: CoordinatorSettings = SETTINGS,
) -> Coordinator:
    """One that has not begun; the primary table's record names these pending commits."""
    made = Coordinator(view(deciding(EPOCH - 1, 4, *pending_commits)), settings)
    made.follow(*((secondary(ONE), secondary(OTHER)) if secondaries is None else secondaries))
    return made


def announces(coordinator: Coordinator, rows: int = 3, aside: dict[str, int] | None = None) -> None:
    """A status with rows for the primary table and for secondary tables, whose files are all that
    they are pending."""
    term = coordinator.term
    transaction = term.previous_transaction_number
    begin, other = term.progress.offsets[P0], term.progress.offsets[P1]
    wanted = {ONE: 2, OTHER: 1} if aside is None else aside
    count = rows + sum(wanted.values())
    claim = WrittenRange(OffsetRange(begin, begin + count), rows, quarantined=sum(wanted.values()))
    files = (data_file(f"{folder(EPOCH, transaction)}/{begin}.parquet", rows),) if rows else ()
    idle = WrittenRange(OffsetRange(other, other))
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
    """One that has judged a status with rows for both secondary tables."""
    made = following(settings=settings)
    made.until(Phase.COLLECTING)
    announces(made)
    return made


def delivering(settings: CoordinatorSettings = SETTINGS) -> Coordinator:
    """One that has decided, and said so: the primary table is read before the secondary tables are
    delivered to."""
    made = drafting(settings)
    made.until(Phase.DELIVERING)
    return made


def delivered_by(coordinator: Coordinator) -> dict[str, list[TransactionId]]:
    """What the deliveries that it wants are for."""
    return {
        delivery.base.table: [
            pending_commit.transaction for pending_commit in delivery.pending_commits
        ]
        for delivery in coordinator.only(DeliverPendingCommits).deliveries
    }


def at(epoch: int, number: int) -> TransactionId:
    return record(epoch, number, Offsets()).transaction


ZOMBIE = Sender("worker-9", "z1")
