"""Rolls back the tables that a ledger has filled, each with a call of its own (rule D10).

No catalog moves several tables in one call. So a claim on the ledger comes first, which names the
target: it fences the current coordinator, and the next coordinator stops at it. Then the tables go
back under that claim's transaction, and the ledger last. The same command finishes an interrupted
rollback: a table that already has the transaction is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import decode, deleted_rows
from headgate.control_protocol.errors import ConfigurationError, RetryLater
from headgate.control_protocol.identifiers import TransactionId
from headgate.control_protocol.ports import CommitAttempt, Landed, Lineage, TableView, Unknown
from headgate.operations.access.routed_tables import filled_tables
from headgate.operations.access.table import iceberg_of, opened_catalog
from headgate.operations.control.deleted_rows_guard import refuse_rows_back
from headgate.operations.control.rollback_impact import Leaving, leaving_for, line
from headgate.runtime.sink_tables import SinkTables, TableAtRest
from headgate.tables.iceberg.commit_request import GoingBack
from headgate.tables.iceberg.history import summary_of
from headgate.tables.iceberg.table import IcebergTable


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a sink's tables go: to the commit ``record`` of the ledger, which ``to`` names.

    ``before`` is the ledger's record now, ``primary`` its UUID; ``looks``: nothing will be moved;
    ``deleted_back``: rows that people deleted may come back.
    """

    settings: SinkSettings
    to: str
    record: CommitRecord
    before: CommitRecord
    primary: str
    looks: bool = False
    deleted_back: bool = False

    def reaches(self, transaction: TransactionId) -> bool:
        """Return whether the transaction is at or before the target commit."""
        return transaction <= self.record.transaction


@dataclass(frozen=True, slots=True)
class TableBack:
    """One table's way back, to ``target`` (``None``: to before its first rows).

    ``done``: an earlier try has moved it there.
    """

    table: str
    target: int | None
    rows: int = 0
    foreign: tuple[str, ...] = ()
    done: bool = False

    def __str__(self) -> str:
        if self.done:
            return f"{self.table}: is back already"
        where = "before its first rows" if self.target is None else f"snapshot {self.target}"
        return f"{self.table}: to {where}; {self.rows} rows leave it"


def plan_tables(going: Destination, opened: SinkTables, view: TableView) -> tuple[TableBack, ...]:
    """Plan the way back of every table that the ledger has filled.

    Raises ``ConfigurationError`` for one that cannot go there, ``RetryLater`` while rows are
    pending.
    """
    settings, before = going.settings, going.before
    sure = {*view.filled, *(pending_commit.table for pending_commit in before.pending_commits)}
    found = dict(filled_tables(opened, sure))
    rests = {name: each for name, each in found.items() if isinstance(each, TableAtRest)}
    tables = {name: iceberg_of(each.reader).table for name, each in rests.items()}
    suspended = {each.table for each in before.suspended}
    if stuck := suspended | (view.filled.keys() - tables.keys() - {settings.quarantine.table}):
        raise ConfigurationError(
            f"{', '.join(sorted(stuck))}: suspended, gone, or not to be read, and cannot "
            "go back with "
            "the other tables",
            "fix it, grant the right to read it, and end its suspending first: "
            "headgate tables SINK resume TABLE",
        )
    _refuse_pending(going, opened)
    for name, table in tables.items():
        _refuse_changed(going, name, table, view.filled.get(name))
    return tuple(_plan(going, name, table) for name, table in sorted(tables.items()))


def _refuse_changed(going: Destination, name: str, table: Table, filled: str | None) -> None:
    settings = going.settings
    now = IcebergTable(table.catalog, name, settings.name, settings.table.branch).seen(table)
    delivered = now.record is not None and now.record.primary == going.primary
    if now.lineage is not Lineage.CONTAINS_TAG or not delivered or filled not in (None, now.uuid):
        raise ConfigurationError(
            f"{name} is not as sink {settings.name} left it",
            "start the sink: it suspends the table and says why (headgate tables SINK)",
        )


def _refuse_pending(going: Destination, opened: SinkTables) -> None:
    """Refuse while rows are pending: a delivery could follow the rollback, or miss on the way
    back."""
    aside = going.settings.quarantine.table
    undelivered = opened.undelivered(going.before)
    pending = {
        pending_commit.table
        for pending_commit in undelivered
        if pending_commit.manifest and pending_commit.table != aside
    }
    if pending and not going.looks:
        raise RetryLater(
            f"{', '.join(sorted(pending))}: rows are still pending for it",
            "start the sink until headgate tables shows that nothing is pending, and stop it again",
        )


def _plan(going: Destination, name: str, table: Table) -> TableBack:
    leaving = _leaving(going, name, table)
    if leaving is None:
        return TableBack(name, None, done=True)
    if not going.deleted_back:
        refuse_rows_back(name, leaving)
    _refuse_merged(going, name, table, leaving)
    foreign = tuple(f"{name}: {text}" for text in leaving.foreign)
    return TableBack(name, leaving.target, leaving.rows, foreign)


def _leaving(going: Destination, name: str, table: Table) -> Leaving | None:
    """Return what leaves the table's branch; ``None`` if an earlier try has moved it."""
    metadata, sink = table.metadata, going.settings.name
    ref = metadata.refs.get(going.settings.table.branch)
    snapshots = list(line(metadata, ref.snapshot_id if ref else None))
    records = [decode(sink, summary_of(snapshot)) for snapshot in snapshots]
    if going.before.going_back is not None and any(map(going.before.same_commit, records)):
        return None
    if (kept := metadata.refs.get(going.to)) is not None:
        return leaving_for(sink, metadata, ref.snapshot_id if ref else None, kept.snapshot_id)
    if going.record.going_back is not None and any(map(going.record.same_commit, records)):
        raise ConfigurationError(
            f"{name}: the tag {going.to} is gone, which kept what the rollback left",
            "name a transaction: what left this table cannot come back by itself",
        )
    later = [
        number
        for number, record in enumerate(records)
        if record and record.primary == going.primary and not going.reaches(record.transaction)
    ]
    count = max(later) + 1 if later else 0
    target = snapshots[later[-1]].parent_snapshot_id if later else snapshots[0].snapshot_id
    if target is not None and metadata.snapshot_by_id(target) is None:
        raise ConfigurationError(
            f"{name}: its snapshot of transaction {going.record.transaction} has expired",
            "name a later transaction",
        )
    gap = target is None and (snapshots[-1].sequence_number or 0) > 1
    untold = deleted_rows(sink, metadata.properties) if gap else 0
    return Leaving(sink, target, tuple(snapshots[:count]), untold)


def _refuse_merged(going: Destination, name: str, table: Table, leaving: Leaving) -> None:
    """D5: refuse a target inside a delivery of several transactions: it has no snapshot there."""
    newest = _newest(going, table, leaving.target)
    decided = [
        pending_commit
        for pending_commit in going.record.pending_commits
        if pending_commit.secondary == str(table.metadata.table_uuid)
        and pending_commit.manifest
        and pending_commit not in going.before.expired
        and not (newest and newest.delivers(pending_commit, going.primary))
    ]
    if decided and not going.looks:
        delivered = min(found.transaction for found in leaving.own) if leaving.own else None
        raise ConfigurationError(
            f"{name} took rows of {decided[0].transaction} and later ones in one commit"
            + (f", {delivered}" if delivered else ""),
            "name a transaction before or after them; with delivery_linger_ms, create "
            "such a point with "
            "headgate pause, wait for that interval, and stop the sink",
        )


def _newest(going: Destination, table: Table, target: int | None) -> CommitRecord | None:
    """Return the record that the table has at its target."""
    records = (decode(going.settings.name, summary_of(s)) for s in line(table.metadata, target))
    return next(filter(None, records), None)


def take_back(going: Destination, tables: tuple[TableBack, ...], kept: tuple[str, int]) -> None:
    """Move every table that is not back yet, under the transaction of the ledger's claim.

    ``kept``: the tag of the way back, and its age. Raises ``RetryLater`` if one was not moved, or
    if that is unknown: repeat the command.
    """
    with opened_catalog(going.settings) as catalog:
        for planned in tables:
            if not planned.done:
                _take_back(going, catalog, planned, GoingBack(planned.target, *kept))


def _take_back(going: Destination, catalog: Catalog, planned: TableBack, back: GoingBack) -> None:
    settings = going.settings
    table = IcebergTable(catalog, planned.table, settings.name, settings.table.branch)
    view, loaded = table.read(), catalog.load_table(planned.table)
    if _plan(going, planned.table, loaded) != planned:
        raise _unfinished(going, f"{planned.table} was changed meanwhile")
    stays = _newest(going, loaded, planned.target)
    claim = replace(_claim(going), replayed=stays.replayed if stays else None)
    outcome = table.commit(CommitAttempt(view, claim), back)
    if isinstance(outcome, Landed):
        return
    if not (isinstance(outcome, Unknown) and claim.same_commit(table.read().record)):
        raise _unfinished(going, f"{planned.table}: {outcome.reason}")


def _claim(going: Destination) -> CommitRecord:
    """Return what each table's record says: like a delivery's (D5), with the target's offsets."""
    fence, record = going.before, going.record
    return CommitRecord(
        sink=fence.sink,
        group_id=fence.group_id,
        transaction=fence.transaction,
        coordinator=fence.coordinator,
        offsets=record.offsets,
        topic_ids=record.topic_ids,
        valid_through_ms=record.valid_through_ms,
        command=fence.command,
        actor=fence.actor,
        primary=going.primary,
        generations=record.generations,
    )


def _unfinished(going: Destination, why: str) -> RetryLater:
    return RetryLater(
        f"sink {going.settings.name} is not wholly rolled back: {why}",
        "run the same command again; until it has ended no participant commits (HG-260)",
    )
