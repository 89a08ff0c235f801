"""Rolls back table and offsets together: a claim whose coordinator is a person (rule C2).

One catalog call adds an empty snapshot that continues the target snapshot, with its offsets under a
new epoch, and moves branch and tag there. The former head stays under a tag of its own, and the
same command goes back to it. The sink's tag never points to an old snapshot again: an old
coordinator's requirement would match it. A ledger goes back together with everything it has filled
(D10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, refuse_unfinished
from headgate.control_protocol.commit_record_codec import decode
from headgate.control_protocol.errors import ConfigurationError, RetryLater, StopSink
from headgate.control_protocol.ports import TableView, TopicState
from headgate.operations.access.kafka import source_topics
from headgate.operations.access.table import (
    iceberg_of,
    open_primary,
    opened_reader,
    opened_table,
    refuse_other_kind,
)
from headgate.operations.control.deleted_rows_guard import refuse_read_again, refuse_rows_back
from headgate.operations.control.operator_claim import (
    claiming_secondaries,
    land,
    operators_claim,
    tell,
)
from headgate.operations.control.rollback_impact import leaving_for, line
from headgate.operations.control.rollback_many import Destination, TableBack, plan_tables, take_back
from headgate.operations.control.set_offsets import intact, require_stopped
from headgate.tables.iceberg.commit_request import GoingBack
from headgate.tables.iceberg.history import summary_of
from headgate.tables.iceberg.rollback_branches import make_branch

KEPT_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """What a rollback would do to the table as it was read; a plan changes nothing.

    ``dropped``: transactions of the sink whose rows would leave the branch; ``foreign``: snapshots
    of others that would. ``rows`` are those of ``dropped``, ``kept_as`` is the way back. ``tables``
    are those that a ledger has filled.
    """

    view: TableView
    target: int
    record: CommitRecord
    dropped: tuple[str, ...]
    foreign: tuple[str, ...]
    rows: int
    kept_as: str
    going: Destination
    tables: tuple[TableBack, ...] = ()

    def __str__(self) -> str:
        back = self.record.transaction
        told = [f"back to transaction {back}, snapshot {self.target}"]
        told.append(f"{len(self.dropped)} commits leave the branch, with {self.rows} rows")
        told += [str(table) for table in self.tables]
        told += [f"so does a snapshot of another writer: {snapshot}" for snapshot in self.foreign]
        told += [
            f"{at}: continues from {offset}" for at, offset in sorted(self.record.offsets.items())
        ]
        if aside := sorted(name for name in self.record.secondaries if name):
            pending = sum(pending_commit.rows for pending_commit in self.record.pending_commits)
            told.append(f"{', '.join(aside)}: stays as it is, and is still pending {pending} rows")
        told.append(f"the way back: headgate rollback SINK {self.kept_as}, for seven days")
        return "\n".join(told)


def kept_tag(sink: str, epoch: int) -> str:
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

    Nobody needs to stop to ``look_only`` (``show_on_branch``). ``deleted_back``: rows that people
    deleted come back; else they stand in the way (``DeletedBack``).

    Raises ``ConfigurationError`` for an invalid target, while participants are alive, for snapshots
    of others in between, and for records that the source no longer holds; ``DeletedBack``; and
    ``RetryLater`` and ``StopSink`` as ``offsets set`` does.
    """
    refuse_other_kind(settings)
    if not look_only:
        require_stopped(settings)
    with open_primary(settings) as primary:
        view = primary.read()
    before = intact(settings, view)
    if before.going_back != to:
        refuse_unfinished(before, settings.name)
    with opened_reader(settings) as opened:
        table = iceberg_of(opened.reader).table
        if table.metadata.snapshot_by_id(view.head or 0) is None:
            raise RetryLater("the table has moved on since it was read", "try again")
        target, record = _target(settings, table, to)
        leaving = leaving_for(settings.name, table.metadata, view.head, target.snapshot_id)
        if not leaving.snapshots:
            raise ConfigurationError(f"the table is at {to} already", "name an earlier transaction")
        name = settings.table.identifier
        if not deleted_back:
            refuse_rows_back(name, leaving)
            refuse_read_again(settings, before.offsets, record.offsets, before.topic_ids)
        going = Destination(settings, to, record, before, view.uuid, look_only, deleted_back)
        tables = plan_tables(going, opened, view) if settings.tables else ()
    foreign = (*leaving.foreign, *(text for each in tables for text in each.foreign))
    if foreign and not drop_foreign:
        raise ConfigurationError(
            f"others have written since {to}: {'; '.join(foreign)}",
            "--drop-foreign also removes their snapshots from the branch",
        )
    with source_topics(settings) as topics:
        refuse_lost(record, topics.describe())
    own = [found for found in leaving.own if found.going_back is None]
    return RollbackPlan(
        view=view,
        target=target.snapshot_id,
        record=replace(
            before,
            offsets=record.offsets,
            topic_ids=record.topic_ids,
            transaction=record.transaction,
            valid_through_ms=record.valid_through_ms,
        ),
        dropped=tuple(str(found.transaction) for found in own),
        foreign=foreign,
        rows=sum(found.records for found in own),
        kept_as=kept_tag(settings.name, before.transaction.epoch + (before.going_back is None)),
        going=going,
        tables=tables,
    )


def carry_out(settings: SinkSettings, plan: RollbackPlan) -> None:
    """Commit once, on the table as it was when the plan was made; with many tables, once for each.

    Raises ``RetryLater`` if it was refused, or if it is unknown whether it landed.
    """
    failed = RetryLater(
        f"sink {settings.name} was not rolled back", "look with headgate status, and try again"
    )
    view, changes = plan.view, dict[str, Any]()
    if settings.tables:
        view = _fenced(settings, plan, failed)
        assert view.record is not None, "the claim is under the tag"
        going = replace(plan.going, before=view.record)
        take_back(going, plan.tables, (plan.kept_as, KEPT_MS))
        changes = {"going_back": None, **_pending(settings, going)}
    assert view.record is not None, "planned on a record"
    claim = operators_claim(
        view.record,
        "rollback",
        offsets=plan.record.offsets,
        topic_ids=plan.record.topic_ids,
        valid_through_ms=plan.record.valid_through_ms,
        generations=plan.record.generations,
        **changes,
    )
    back = GoingBack(plan.target, plan.kept_as, KEPT_MS)
    land(settings, view, claiming_secondaries(settings, claim), failed, back=back)


def _fenced(settings: SinkSettings, plan: RollbackPlan, failed: RetryLater) -> TableView:
    """D10: put the claim that tables are going back under the ledger's tag, unless it is there."""
    going = plan.going
    if going.before.going_back is not None:
        return plan.view
    fence = operators_claim(going.before, "rollback", going_back=going.to)
    land(settings, plan.view, fence, failed)
    with open_primary(settings) as primary:
        view = primary.read()
    if not fence.same_commit(view.record):
        raise RetryLater(f"{failed.message}: another process has claimed the ledger", failed.hint)
    return view


def _pending(settings: SinkSettings, going: Destination) -> Mapping[str, Any]:
    """Return what the ledger has pending there: the quarantine as it is pending now (O4), tables
    nothing."""
    aside, before = settings.quarantine.table, going.before
    expired = (d for d in before.expired if d.table == aside or going.reaches(d.transaction))
    return {
        "pending_commits": tuple(
            pending_commit
            for pending_commit in before.pending_commits
            if pending_commit.table == aside
        ),
        "expired": tuple(dict.fromkeys((*going.record.expired, *expired))),
    }


def show_on_branch(settings: SinkSettings, plan: RollbackPlan, branch: str) -> None:
    """O5: show the resulting table on a branch for seven days; nothing else changes.

    Raises as ``make_branch``.
    """
    with opened_table(settings) as table:
        make_branch(table, branch, plan.target, KEPT_MS)
        for each in plan.tables:
            if each.target is not None:
                make_branch(table.catalog.load_table(each.table), branch, each.target, KEPT_MS)
    tell(settings, f"rollback --to-branch {branch}")


def refuse_lost(record: CommitRecord, topics: Mapping[str, TopicState]) -> None:
    """Raise ``ConfigurationError`` if the source has lost what would be read again."""
    for at, offset in sorted(record.offsets.items()):
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


def _target(settings: SinkSettings, table: Table, to: str) -> tuple[Snapshot, CommitRecord]:
    """Return the commit that is meant; a ledger's must be on its branch, unless a tag keeps it."""
    metadata = table.metadata
    ref, head = metadata.refs.get(to), metadata.refs.get(settings.table.branch)
    reached = line(metadata, head.snapshot_id if head else None)
    found = tuple(reached) if settings.tables else tuple(reversed(metadata.snapshots))
    if ref is not None:
        found = tuple(s for s in metadata.snapshots if s.snapshot_id == ref.snapshot_id)
    for snapshot in found:
        record = decode(settings.name, summary_of(snapshot))
        if record is not None and (ref is not None or str(record.transaction) == to):
            return snapshot, record
    if ref is not None:
        raise StopSink(f"{to} keeps no commit of sink {settings.name}", "name a transaction")
    raise ConfigurationError(
        f"the table holds no commit {to!r} of sink {settings.name}",
        "headgate status shows the last ones, as EPOCH.NUMBER; older ones have expired",
    )
