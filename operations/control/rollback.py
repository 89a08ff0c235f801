"""Rolls back table and offsets together: a claim whose coordinator is a person (rule EPOCH-1).

One catalog call for each table adds an empty snapshot that continues the target snapshot, with its
offsets under a new epoch, and moves branch and tag there. The former head stays under a tag of its
own, and the same command goes back to it. The sink's tag never points to an old snapshot again: an
old coordinator's requirement would match it.

A plan is a list of tables with the primary one last. A single table is a list of one, and goes back
in one call. A ledger goes back together with every table that it has filled (ROLLBACK-1): no
catalog moves several tables in one call, so a claim on the ledger comes first, which names the
target. It fences the current coordinator, and the next coordinator stops at it. Then the tables go
back under that claim's transaction, and the ledger last. The same command finishes an interrupted
rollback: a table that already has the transaction is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import (
    CommitRecord,
    Replayed,
    require_rollback_finished,
)
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    ConfigurationError,
    DeletedBack,
    RetryLater,
    StopSink,
)
from headgate.control_protocol.identifiers import TransactionId
from headgate.control_protocol.ports import (
    CommitAttempt,
    Landed,
    Lineage,
    TableView,
    TopicState,
    Unknown,
)
from headgate.control_protocol.spark_batch_decision import without_query_offset
from headgate.control_protocol.table_format import RollbackSnapshot, TableSnapshot, TableSnapshots
from headgate.operations.access.kafka_connection import (
    open_reachable_source_topics,
    require_every_partition_led,
)
from headgate.operations.access.tables import open_primary, open_tagged_and_known_tables
from headgate.operations.control.deleted_rows_guard import (
    BRING_BACK_HINT,
    require_deleted_not_read_again,
)
from headgate.operations.control.operator_claim import (
    commit_claim_or_raise,
    make_claim,
    try_announce_command,
    with_secondary_claims,
)
from headgate.operations.control.set_offsets import (
    require_no_running_participants,
    require_record_of_unchanged_table,
)
from headgate.runtime.sink_tables import SinkTables, TableAtRest, open_tables_creating_nothing

KEPT_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class RemovedSnapshots:
    """The snapshots that leave a branch, newest first.

    ``target``: where the branch goes; ``None``: to nothing. ``unlisted``: how many rows
    people deleted from the table in all, if some of the snapshots have expired.
    """

    target: int | None
    snapshots: tuple[TableSnapshot, ...]
    unlisted: int = 0

    @property
    def restored_row_count(self) -> int:
        """Return how many rows that people deleted, or that have expired, would be back."""
        return sum(snapshot.deleted for snapshot in self.snapshots)

    @property
    def own_commit_records(self) -> tuple[CommitRecord, ...]:
        return tuple(snapshot.record for snapshot in self.snapshots if snapshot.record)

    @property
    def removed_row_count(self) -> int:
        return sum(record.records for record in self.own_commit_records)

    @property
    def foreign_snapshot_texts(self) -> tuple[str, ...]:
        return tuple(
            f"snapshot {each.snapshot_id} ({_describe_loss(each)})"
            for each in self.snapshots
            if each.deleted or each.by_others
        )


def _describe_loss(left: TableSnapshot) -> str:
    if left.deleted:
        return f"{count_of(left.deleted, 'deleted row')} would be back"
    return left.by_others


def find_removed_snapshots(
    snapshots: TableSnapshots, head: int | None, target: int
) -> RemovedSnapshots:
    """Return what leaves the branch of this head on the way to the snapshot."""
    kept = {snapshot.snapshot_id for snapshot in snapshots.ancestry(target)}
    reached = tuple(snapshots.ancestry(head))
    removed = tuple(s for s in reached if s.snapshot_id not in kept)
    gap = len(removed) == len(reached)
    return RemovedSnapshots(target, removed, snapshots.deleted_and_expired_row_count if gap else 0)


@dataclass(frozen=True, slots=True)
class RollbackTarget:
    """Where a sink's tables go: to the commit ``record`` of the primary table, which ``to`` names.

    ``snapshot``: the one that has the record; ``before``: the primary table's record now;
    ``primary``: its UUID; ``look_only``: nothing will be moved; ``deleted_back``: rows that people
    deleted may come back.
    """

    settings: SinkSettings
    to: str
    snapshot: int
    record: CommitRecord
    before: CommitRecord
    primary: str
    look_only: bool = False
    deleted_back: bool = False

    def includes_transaction(self, transaction: TransactionId) -> bool:
        """Return whether the transaction is at or before the target commit."""
        return transaction <= self.record.transaction


@dataclass(frozen=True, slots=True)
class TableRollback:
    """One table's way back, to ``target`` (``None``: to before its first rows).

    ``rows``: how many rows of the sink leave the branch; ``foreign``: snapshots of others that do;
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
        return f"{self.table}: to {where}; {count_of(self.rows, 'row leaves', 'rows leave')} it"


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """What a rollback would do to the tables as they were read; a plan changes nothing.

    ``tables``: those that a ledger has filled, then the primary one. ``record``: the primary
    table's, as it would be; ``dropped``: transactions of the sink whose rows would leave the
    branch; ``kept_as``: the tag that is the way back.
    """

    view: TableView
    goal: RollbackTarget
    tables: tuple[TableRollback, ...]
    record: CommitRecord
    dropped: tuple[str, ...]
    kept_as: str

    @property
    def secondary_rollbacks(self) -> tuple[TableRollback, ...]:
        return self.tables[:-1]

    @property
    def target_snapshot_id(self) -> int:
        """Return the snapshot that the primary table goes back to."""
        return self.goal.snapshot

    @property
    def removed_primary_row_count(self) -> int:
        """Return how many rows of ``dropped`` would leave the primary table."""
        return self.tables[-1].rows

    @property
    def foreign_snapshot_texts(self) -> tuple[str, ...]:
        """Describe the snapshots of others that would leave a branch, the primary table's first."""
        *secondaries, primary = self.tables
        return (*primary.foreign, *(text for each in secondaries for text in each.foreign))

    def __str__(self) -> str:
        back = self.record.transaction
        lines = [f"back to transaction {back}, snapshot {self.target_snapshot_id}"]
        lines.append(
            f"{count_of(len(self.dropped), 'commit leaves', 'commits leave')} the branch, with "
            f"{count_of(self.removed_primary_row_count, 'row')}"
        )
        lines += [str(table) for table in self.secondary_rollbacks]
        lines += [
            f"so does a snapshot of another writer: {snapshot}"
            for snapshot in self.foreign_snapshot_texts
        ]
        lines += [
            f"{at}: continues from {offset}" for at, offset in sorted(self.record.offsets.items())
        ]
        if others := sorted(name for name in self.record.secondaries if name):
            pending = sum(pending_commit.rows for pending_commit in self.record.pending_commits)
            lines.append(
                f"{', '.join(others)}: stays as it is, with {count_of(pending, 'row')} still "
                "pending"
            )
        if self.goal.look_only:
            lines.append("so a rollback would do; now nothing leaves the branch or moves")
        else:
            lines.append(f"the way back: headgate rollback SINK {self.kept_as}, for seven days")
        return "\n".join(lines)


def rollback_tag_name(sink: str, epoch: int) -> str:
    """Return the tag that keeps what a rollback left; no sink's own tag begins like this."""
    return f"headgate.{sink}.before-{epoch}"


def plan_rollback(
    settings: SinkSettings,
    to: str,
    *,
    drop_foreign: bool = False,
    deleted_back: bool = False,
    look_only: bool = False,
) -> RollbackPlan:
    """Plan the way to a transaction (``4.17``) or to the tag that a rollback kept.

    Nobody needs to stop to ``look_only`` (``make_rollback_branches``). ``deleted_back``: rows that
    people deleted come back; else they stand in the way (``DeletedBack``).

    Raises ``ConfigurationError`` for an invalid target, while participants are alive, for snapshots
    of others in between, and for records that the source no longer holds; ``DeletedBack``; and
    ``RetryLater`` and ``StopSink`` as ``offsets set`` does.
    """
    with open_tables_creating_nothing(settings) as opened:
        format_ = opened.require_rollback_format()
        if not look_only:
            require_no_running_participants(settings)
        with closing(opened.open_primary()) as primary:
            view = primary.read()
        before = require_record_of_unchanged_table(settings, view)
        if before.going_back != to:
            require_rollback_finished(before, settings.name)
        snapshots = format_.snapshots_of(opened.reader)
        if snapshots.snapshot(view.head or 0) is None:
            raise RetryLater("the table has moved on since it was read", "try again")
        target, record = _target_snapshot_and_record(opened, snapshots, to)
        name = settings.table.identifier
        goal = RollbackTarget(
            settings, to, target.snapshot_id, record, before, view.uuid, look_only, deleted_back
        )
        removed = find_removed_snapshots(snapshots, view.head, goal.snapshot)
        if not removed.snapshots:
            raise ConfigurationError(f"the table is at {to} already", "name an earlier transaction")
        own = _plan_table(goal, name, snapshots, removed)
        if not deleted_back:
            require_deleted_not_read_again(
                settings, before.offsets, record.offsets, before.topic_ids
            )
        secondaries = _plan_secondaries(goal, opened, view) if settings.tables else ()
    plan = RollbackPlan(
        view=view,
        goal=goal,
        tables=(*secondaries, own),
        record=before.with_position_of(record),
        dropped=tuple(
            str(each.transaction) for each in removed.own_commit_records if each.going_back is None
        ),
        kept_as=rollback_tag_name(
            settings.name, before.transaction.epoch + (before.going_back is None)
        ),
    )
    if plan.foreign_snapshot_texts and not drop_foreign:
        raise ConfigurationError(
            f"others have written since {to}: {'; '.join(plan.foreign_snapshot_texts)}",
            "--drop-foreign also removes their snapshots from the branch",
        )
    with open_reachable_source_topics(settings) as topics:
        require_source_holds_records_after(record, topics.describe())
    return plan


def carry_out_rollback(settings: SinkSettings, plan: RollbackPlan) -> None:
    """Commit once for each table, on the table as it was when the plan was made.

    With secondary tables the fence comes first, and the primary table last. Raises ``RetryLater``
    if a commit was refused, or if it is unknown whether it landed.
    """
    failed = RetryLater(
        f"sink {settings.name} was not rolled back", "look with headgate status, and try again"
    )
    view, goal = plan.view, plan.goal
    if plan.secondary_rollbacks:
        view = _ensure_rollback_fence(plan, failed)
        assert view.record is not None, "the claim is under the tag"
        goal = replace(goal, before=view.record)
        _roll_back_secondaries(goal, plan)
    assert view.record is not None, "planned on a record"
    claim = make_claim(
        view.record,
        "rollback",
        offsets=plan.record.offsets,
        topic_ids=plan.record.topic_ids,
        valid_through_ms=plan.record.valid_through_ms,
        cohorts=plan.record.cohorts,
        recreated_topics=plan.record.recreated_topics,
        **(_pending_fields_after_rollback(settings.quarantine, goal) if settings.tables else {}),
    )
    back = RollbackSnapshot(plan.target_snapshot_id, plan.kept_as, KEPT_MS)
    commit_claim_or_raise(
        settings, view, with_secondary_claims(settings.quarantine, claim), failed, rollback_to=back
    )


def _ensure_rollback_fence(plan: RollbackPlan, error_if_not_landed: RetryLater) -> TableView:
    """ROLLBACK-1: put the claim that tables are going back under the ledger's tag, unless it is
    there."""
    goal, settings = plan.goal, plan.goal.settings
    if goal.before.going_back is not None:
        return plan.view
    fence = make_claim(goal.before, "rollback", going_back=goal.to)
    commit_claim_or_raise(settings, plan.view, fence, error_if_not_landed)
    with open_primary(settings) as primary:
        view = primary.read()
    if not fence.is_same_commit(view.record):
        raise RetryLater(
            f"{error_if_not_landed.message}: another process has claimed the ledger",
            error_if_not_landed.hint,
        )
    return view


def _pending_fields_after_rollback(
    settings: QuarantineSettings, goal: RollbackTarget
) -> Mapping[str, Any]:
    """Return the ledger's pending commits there: the quarantine's as of now (O4), and no others."""
    quarantine, before = settings.table, goal.before
    expired = (
        d
        for d in before.expired
        if d.table == quarantine or goal.includes_transaction(d.transaction)
    )
    return {
        "going_back": None,
        "pending_commits": tuple(d for d in before.pending_commits if d.table == quarantine),
        "expired": tuple(dict.fromkeys((*goal.record.expired, *expired))),
    }


def make_rollback_branches(settings: SinkSettings, plan: RollbackPlan, branch: str) -> None:
    """O5: show the resulting tables on a branch for seven days; nothing else changes.

    Raises as ``SupportsRollback.make_branch``.
    """
    with open_tables_creating_nothing(settings) as tables:
        format_ = tables.require_rollback_format()
        for each in reversed(plan.tables):  # the primary one first: it says whether there is a sink
            if each.target is not None:
                format_.make_branch(tables.table_spec_of(each.table), branch, each.target, KEPT_MS)
    try_announce_command(settings, f"rollback --to-branch {branch}")


def require_source_holds_records_after(
    record: CommitRecord, topics: Mapping[str, TopicState]
) -> None:
    """Raise ``ConfigurationError`` if the source has lost what would be read again, and
    ``Unreachable`` while a partition has no leader."""
    read_again = without_query_offset(record.offsets)  # QUERY-2
    of = {at.topic for at in read_again}
    require_every_partition_led({name: now for name, now in topics.items() if name in of})
    for at, offset in sorted(read_again.items()):
        topic = topics.get(at.topic)
        log = topic.partitions.get(at.partition) if topic else None
        if topic is None or log is None:
            raise ConfigurationError(
                f"{at} is not in the source any more", "its rows would be lost"
            )
        if record.topic_ids.get(at.topic, topic.topic_id) != topic.topic_id:
            raise ConfigurationError(
                f"{at.topic} was re-created since, so that its offsets name other records",
                "its rows would be lost",
            )
        if offset < log.begin:
            raise ConfigurationError(
                f"{at}: records [{offset}, {log.begin}) would be read again, and the source has "
                "lost them",
                "choose a later transaction; these rows are nowhere else",
            )


def _target_snapshot_and_record(
    tables: SinkTables, snapshots: TableSnapshots, to: str
) -> tuple[TableSnapshot, CommitRecord]:
    """Return the commit that is meant; a ledger's must be on its branch, unless a tag keeps it."""
    settings, kept = tables.settings, snapshots.snapshot_of_ref(to)
    if kept is not None:
        if kept.record is not None:
            return kept, kept.record
        raise StopSink(f"{to} keeps no commit of sink {settings.name}", "name a transaction")
    for snapshot in (
        snapshots.ancestry(snapshots.head) if settings.tables else snapshots.newest_first()
    ):
        if snapshot.record is not None and str(snapshot.record.transaction) == to:
            return snapshot, snapshot.record
    raise ConfigurationError(
        f"the table holds no commit {to!r} of sink {settings.name}",
        "headgate status shows the last ones, as EPOCH.NUMBER; older ones have expired",
    )


# Plans and moves the tables that a ledger has filled (rule ROLLBACK-1).


def _plan_secondaries(
    goal: RollbackTarget, opened: SinkTables, view: TableView
) -> tuple[TableRollback, ...]:
    """Plan the way back of every table that the ledger has filled.

    Raises ``ConfigurationError`` for one that cannot go there, ``RetryLater`` while rows are
    pending.
    """
    settings, before = goal.settings, goal.before
    sure = {*view.filled, *(pending_commit.table for pending_commit in before.pending_commits)}
    answers = dict(open_tagged_and_known_tables(opened, sure))
    rests = {name: each for name, each in answers.items() if isinstance(each, TableAtRest)}
    tables = {name: opened.snapshots_of(each) for name, each in rests.items()}
    suspended = {each.table for each in before.suspended}
    if stuck := suspended | (view.filled.keys() - tables.keys() - {settings.quarantine.table}):
        raise ConfigurationError(
            f"{', '.join(sorted(stuck))}: suspended, gone, or not to be read, and cannot "
            "go back with the other tables",
            "fix it, grant the right to read it, and resume it first: "
            "headgate tables SINK resume TABLE",
        )
    _require_nothing_pending(goal, opened)
    for name, snapshots in tables.items():
        _require_unchanged(goal, name, snapshots, view.filled.get(name))
    return tuple(_plan_secondary(goal, name, tables[name]) for name in sorted(tables))


def _require_unchanged(
    goal: RollbackTarget, name: str, snapshots: TableSnapshots, filled_uuid: str | None
) -> None:
    settings, now = goal.settings, snapshots.view
    delivered = now.record is not None and now.record.primary == goal.primary
    if (
        now.lineage is not Lineage.CONTAINS_TAG
        or not delivered
        or filled_uuid not in (None, now.uuid)
    ):
        raise ConfigurationError(
            f"{name} is not as sink {settings.name} left it",
            "start the sink: it suspends the table and says why (headgate tables SINK)",
        )


def _require_nothing_pending(goal: RollbackTarget, opened: SinkTables) -> None:
    """Refuse while rows are pending: a delivery could follow the rollback, or miss on the way
    back."""
    quarantine = goal.settings.quarantine.table
    undelivered = opened.read_undelivered_commits(goal.before)
    pending = {
        pending_commit.table
        for pending_commit in undelivered
        if pending_commit.manifest and pending_commit.table != quarantine
    }
    if pending and not goal.look_only:
        raise RetryLater(
            f"{', '.join(sorted(pending))}: rows are still pending for it",
            "start the sink until headgate tables shows that nothing is pending, and stop it again",
        )


def _plan_secondary(goal: RollbackTarget, name: str, snapshots: TableSnapshots) -> TableRollback:
    removed = _find_removed_or_none_if_done(goal, name, snapshots)
    if removed is None:
        return TableRollback(name, None, done=True)
    planned = _plan_table(goal, name, snapshots, removed)
    return replace(planned, foreign=tuple(f"{name}: {text}" for text in planned.foreign))


def _plan_table(
    goal: RollbackTarget, name: str, snapshots: TableSnapshots, removed: RemovedSnapshots
) -> TableRollback:
    if not goal.deleted_back:
        _require_deleted_stay_deleted(name, removed)
    _require_target_between_deliveries(goal, name, snapshots, removed)
    return TableRollback(
        name, removed.target, removed.removed_row_count, removed.foreign_snapshot_texts
    )


def _require_deleted_stay_deleted(name: str, removed: RemovedSnapshots) -> None:
    """COMPACTION-1, EXPIRY-3: raise ``DeletedBack`` if the target still has rows that people
    deleted, or that have expired."""
    if rows := max(removed.restored_row_count, removed.unlisted):
        until = "up to " if removed.unlisted else ""
        raise DeletedBack(
            f"{name}: {until}{count_of(rows, 'row')} that people deleted (headgate delete), or "
            "that have expired, would be back",
            BRING_BACK_HINT,
        )


def _find_removed_or_none_if_done(
    goal: RollbackTarget, name: str, snapshots: TableSnapshots
) -> RemovedSnapshots | None:
    """Return what leaves the table's branch; ``None`` if an earlier try has moved it."""
    reached = list(snapshots.ancestry(snapshots.head))
    records = [snapshot.record for snapshot in reached]
    if goal.before.going_back is not None and any(map(goal.before.is_same_commit, records)):
        return None
    if (kept := snapshots.snapshot_of_ref(goal.to)) is not None:
        return find_removed_snapshots(snapshots, snapshots.head, kept.snapshot_id)
    if goal.record.going_back is not None and any(map(goal.record.is_same_commit, records)):
        raise ConfigurationError(
            f"{name}: the tag {goal.to} is gone, which kept what the rollback left",
            "name a transaction: what left this table cannot come back by itself",
        )
    later = [
        number
        for number, record in enumerate(records)
        if record
        and record.primary == goal.primary
        and not goal.includes_transaction(record.transaction)
    ]
    count = max(later) + 1 if later else 0
    target = reached[later[-1]].parent if later else reached[0].snapshot_id
    if target is not None and snapshots.snapshot(target) is None:
        raise ConfigurationError(
            f"{name}: its snapshot of transaction {goal.record.transaction} has expired",
            "name a later transaction",
        )
    gap = target is None and not reached[-1].first
    return RemovedSnapshots(
        target, tuple(reached[:count]), snapshots.deleted_and_expired_row_count if gap else 0
    )


def _require_target_between_deliveries(
    goal: RollbackTarget, name: str, snapshots: TableSnapshots, removed: RemovedSnapshots
) -> None:
    """PENDING-5: refuse a target inside a delivery of several transactions: it has no snapshot
    there."""
    newest, uuid = _record_at_target(snapshots, removed.target), snapshots.uuid
    decided = [
        pending_commit
        for pending_commit in goal.record.pending_commits
        if pending_commit.secondary == uuid
        and pending_commit.manifest
        and pending_commit not in goal.before.expired
        and not (newest and newest.has_received(pending_commit, goal.primary))
    ]
    if decided and not goal.look_only:
        delivered = (
            min(record.transaction for record in removed.own_commit_records)
            if removed.own_commit_records
            else None
        )
        raise ConfigurationError(
            f"{name} took rows of {decided[0].transaction} and later ones in one commit"
            + (f", {delivered}" if delivered else ""),
            "name a transaction before or after them; with delivery_linger_ms, create such a "
            "point with headgate pause, wait for that interval, and stop the sink",
        )


def _record_at_target(snapshots: TableSnapshots, target: int | None) -> CommitRecord | None:
    """Return the record that the table has at its target."""
    return next((each.record for each in snapshots.ancestry(target) if each.record), None)


def _roll_back_secondaries(goal: RollbackTarget, plan: RollbackPlan) -> None:
    """Move every table that is not back yet, under the transaction of the ledger's claim.

    Raises ``RetryLater`` if one was not moved, or if that is unknown: repeat the command.
    """
    with open_tables_creating_nothing(goal.settings) as tables:
        for planned in plan.secondary_rollbacks:
            if not planned.done:
                back = RollbackSnapshot(planned.target, plan.kept_as, KEPT_MS)
                _roll_back_table(goal, tables, planned, back)


def _roll_back_table(
    goal: RollbackTarget, tables: SinkTables, planned: TableRollback, back: RollbackSnapshot
) -> None:
    snapshots = tables.read_snapshots(planned.table)
    if _plan_secondary(goal, planned.table, snapshots) != planned:
        raise _unfinished_error(goal, f"{planned.table} was changed meanwhile")
    staying = _record_at_target(snapshots, planned.target)
    claim = _secondary_claim(goal, staying.replayed if staying else None)
    outcome = tables.roll_back(CommitAttempt(snapshots.view, claim), back)
    if isinstance(outcome, Landed):
        return
    landed = isinstance(outcome, Unknown) and claim.is_same_commit(
        tables.read_snapshots(planned.table).view.record
    )
    if not landed:
        raise _unfinished_error(goal, f"{planned.table}: {outcome.reason}")


def _secondary_claim(goal: RollbackTarget, replayed: Replayed | None) -> CommitRecord:
    """Return what each table's record says: like a delivery's (PENDING-5), with the target's
    offsets."""
    fence, record = goal.before, goal.record
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
        primary=goal.primary,
        replayed=replayed,
        cohorts=record.cohorts,
    )


def _unfinished_error(goal: RollbackTarget, why: str) -> RetryLater:
    return RetryLater(
        f"sink {goal.settings.name} is not wholly rolled back: {why}",
        "run the same command again; until it has ended no participant commits (HG-260)",
    )
