"""Delivers to secondary tables what the primary table has decided, and acknowledges it (PENDING-4
to PENDING-8).

Each round reads the primary table, then the secondary tables, and delivers what is pending for
them; another round reads what came of it. The next END waits for that until
``Timer.DELIVERY``, and the first START of an epoch waits for the secondary tables that its claim
claims (PENDING-9).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.commit_record_codec import PENDING_COMMITS_MAX
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.ports import (
    CommitAttempt,
    Lineage,
    Refused,
    Staging,
    TableView,
    Unknown,
)
from headgate.coordinator.inputs_and_actions import (
    AcknowledgeDelivered,
    Action,
    CommitTable,
    DeliveriesAnswered,
    DeliverPendingCommits,
    Look,
    ManifestsStaged,
    SecondariesRead,
    StageManifests,
    TidyStagedManifests,
)
from headgate.coordinator.phase_steps import (
    Step,
    append_actions_of_phase,
    ask_look,
    enter_phase,
    recover_from_table,
    secondaries_named_by_start,
    step_down,
    term_of,
    wait_and_retry,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import has_rival_moved_tag, newest_epoch
from headgate.coordinator.secondary_pending_commits import (
    are_secondaries_consistent_with_primary,
    are_secondaries_own_and_not_ahead,
    build_deliveries,
    empty_pending_commit,
    expired_commits_for_record,
    find_overdue_commits,
    find_undelivered_commits,
    is_unfenced_against_expired,
    pending_commits_without,
)
from headgate.coordinator.state import Lingering, State, Term, Timer
from headgate.coordinator.status_validation import (
    ValidationResult,
    is_attempt_too_old,
    oldest_file_age_ms,
)
from headgate.coordinator.table_checks import AT_ONCE, is_tag_renewal_due
from headgate.coordinator.table_suspension import (
    build_suspensions_or_raise,
    commits_of_receiving_tables,
    count_refused_stagings,
    pending_commits_of_tables,
    reopen_resumed_tables,
    resuming_tables_needing_empty_commit,
    suspend_overdue_tables,
    suspend_troubled_tables,
    suspend_undeliverable_tables,
    suspended_tables_log_lines,
    suspended_tables_not_resuming,
)

# Sends empty deliveries to tables without new rows, so that their valid-through advances (FRESH-2).


def tables_behind_in_valid_through(
    state: State, through_ms: int | None, touched: Collection[str]
) -> tuple[TableView, ...]:
    """Return the tables to be refreshed, those that are furthest behind first.

    ``touched`` receive a delivery anyway, as do those for which something is pending.
    """
    term, least_ms = term_of(state), state.identity.refresh_ms
    if not least_ms or through_ms is None:
        return ()
    busy = {
        *touched,
        *secondaries_named_by_start(state),
        *term.suspensions.suspended,
        *(pending_commit.table for pending_commit in term.delivery.pending),
    }
    known = {
        name: record.valid_through_ms or 0
        for name, view in term.delivery.secondaries.items()
        if name not in busy and (record := view.record) and record.primary == term.primary.view.uuid
    }
    late = sorted((at_ms, name) for name, at_ms in known.items() if through_ms - at_ms >= least_ms)
    return tuple(term.delivery.secondaries[name] for _, name in late[:AT_ONCE])


# From a verdict to a decision that names what is pending for secondary tables: manifests first
# (PENDING-2, PENDING-3, PENDING-8).


_TOO_OLD = "the files to be drafted are so old that they may have been cleaned up: begins again"
_TOO_MANY = "more is pending than the table's record can name: begins again, and delivers first"


def find_expiring_commits(state: State, now_ms: int) -> tuple[PendingCommit, ...]:
    """PENDING-8: return the pending commits that the next decision names as expired, and that
    nobody delivers then."""
    if not term_of(state).delivery.pending:
        return ()
    wall_ms = state.wall_ms(now_ms)
    return find_overdue_commits(
        term_of(state).delivery.pending, wall_ms, state.settings.claim_age_max_ms
    )


def _find_commits_of_replaced_tables(state: State) -> tuple[PendingCommit, ...]:
    """PENDING-8: return the pending commits of routed tables that the last read shows to be other
    tables now."""
    term, apart = (
        term_of(state),
        {*secondaries_named_by_start(state), *suspended_tables_not_resuming(term_of(state))},
    )
    known = {
        name: view.uuid for name, view in term.delivery.secondaries.items() if name not in apart
    }
    return tuple(d for d in term.delivery.pending if known.get(d.table, d.secondary) != d.secondary)


def record_with_pending_and_expired(
    state: State, record: CommitRecord, now_ms: int
) -> CommitRecord:
    """PENDING-3: add the pending commits that are left to the record, in their order."""
    term = term_of(state)
    stored = term.primary.view.record
    if not (term.delivery.pending or (stored and stored.expired)):
        return record
    gone = pending_commits_of_tables(term.delivery.pending, term.suspensions.forgotten)
    late = tuple(
        dict.fromkeys(
            (*find_expiring_commits(state, now_ms), *_find_commits_of_replaced_tables(state), *gone)
        )
    )
    return record.with_pending(
        pending_commits_without(term.delivery.pending, late),
        expired_commits_for_record(stored, late),
    )


def has_unfenced_expired_commit(state: State) -> bool:
    """PENDING-8: return whether the record names an expired pending commit whose secondary table
    has not moved since."""
    term = term_of(state)
    expired = term.primary.view.record.expired if term.primary.view.record else ()
    return bool(expired) and any(
        is_unfenced_against_expired(known, expired, term.delivery.pending)
        for name, known in term.delivery.secondaries.items()
        if name
        not in term.suspensions.suspended  # a resumed table is delivered to before it takes rows
    )


class TouchReason(Enum):
    """Says why a secondary table's tag moves though no rows come for it; the first one counts."""

    RESUMED = "it takes rows again once this is delivered (SUSPEND-5)"
    KEPT_NEAR = "its tag stays near the branch's head (QUARANTINE-2)"
    FENCED = "a delivery that has expired finds the tag moved (PENDING-8)"
    BEHIND = "it learns how far it is complete (FRESH-2)"


@dataclass(frozen=True, slots=True)
class Touch:
    table: TableView
    reason: TouchReason


def tables_due_for_empty_commit(
    state: State, record: CommitRecord, receiving: Collection[str], now_ms: int
) -> tuple[Touch, ...]:
    """Return the tables that receive an empty pending commit with this decision, and why.

    ``receiving`` have rows in it. What a claim claims is no such table: START waits for those
    (``claims_needed_of_secondaries``, PENDING-9).
    """
    term, named = term_of(state), secondaries_named_by_start(state)
    suspended = term.suspensions.suspended
    resuming = (
        resuming_tables_needing_empty_commit(term, record.pending_commits) if suspended else ()
    )
    found = [Touch(each, TouchReason.RESUMED) for each in resuming]
    for name, secondary in {**named, **term.delivery.secondaries}.items():
        if name in receiving or name in suspended:
            continue
        if name in named and is_tag_renewal_due(state, name, now_ms):
            found.append(Touch(secondary, TouchReason.KEPT_NEAR))
        elif is_unfenced_against_expired(secondary, record.expired, record.pending_commits):
            found.append(Touch(secondary, TouchReason.FENCED))
    touched = {*receiving, *(each.table.table for each in found)}
    behind = tables_behind_in_valid_through(state, record.valid_through_ms, touched)
    return (*found, *(Touch(each, TouchReason.BEHIND) for each in behind))


def stage_or_commit(
    state: State, attempt: CommitAttempt, verdict: ValidationResult, now_ms: int
) -> Step:
    """PENDING-2: write the manifests of secondary tables before the decision; decide at once
    without any."""
    term = term_of(state)
    touched = tables_due_for_empty_commit(
        state, attempt.record, verdict.secondary_files.keys(), now_ms
    )
    renewals = (empty_pending_commit(attempt.record, each.table) for each in touched)
    pending_commits = (*attempt.record.pending_commits, *renewals)
    if len(pending_commits) > PENDING_COMMITS_MAX:
        return recover_from_table(state, _TOO_MANY)
    attempt = replace(attempt, record=attempt.record.with_pending(pending_commits))
    wall_ms = state.wall_ms(now_ms)
    drafts = tuple(
        Staging(
            table=term.delivery.secondaries[name],
            transaction=attempt.record.transaction,
            coordinator=attempt.record.coordinator,
            files=files,
            since_ms=max(
                0,
                wall_ms - oldest_file_age_ms(state, term.delivery.secondaries[name], files, now_ms),
            ),
        )
        for name, files in verdict.secondary_files.items()
    )
    if not drafts:
        decided = replace(term, delivery=replace(term.delivery, drafts=()))
        moved = enter_phase(state, Phase.COMMITTING, term=decided, attempt=attempt)
        return moved, (CommitTable(attempt),)
    drafting = replace(term, delivery=replace(term.delivery, decision=attempt, drafts=drafts))
    return enter_phase(state, Phase.DRAFTING, term=drafting), (StageManifests(drafts),)


def on_staged(state: State, given: ManifestsStaged, now_ms: int) -> Step:
    """PENDING-3: decide; the drafts are pending as soon as the primary table's commit has landed,
    and not before."""
    term = term_of(state)
    attempt = term.delivery.decision
    assert attempt is not None
    asked = {draft.table.table for draft in term.delivery.drafts}
    state, suspending = count_refused_stagings(state, given.troubles, asked)
    if given.troubles:
        return _on_staging_failed(state, given.troubles, suspending, now_ms)
    term = term_of(state)
    if is_attempt_too_old(state, attempt, now_ms):  # TOKEN-1: the answer may have taken long
        return recover_from_table(state, _TOO_OLD)
    pending_commits = (*attempt.record.pending_commits, *given.pending_commits)
    if len(pending_commits) > PENDING_COMMITS_MAX:
        return recover_from_table(state, _TOO_MANY)
    attempt = replace(attempt, record=attempt.record.with_pending(pending_commits))
    decided = replace(term, delivery=replace(term.delivery, decision=None))
    moved = enter_phase(state, Phase.COMMITTING, term=decided, attempt=attempt, failures=0)
    return moved, (CommitTable(attempt),)


def _on_staging_failed(
    state: State,
    troubles: Mapping[str, HeadgateError],
    suspending: Mapping[str, HeadgateError],
    now_ms: int,
) -> Step:
    """SUSPEND-1: judge again, without the tables that cannot take the drafts; where none has a
    ``suspending`` trouble, ask once more."""
    if not suspending:
        return wait_and_retry(state, now_ms, "; ".join(map(str, troubles.values())))
    found = build_suspensions_or_raise(state, suspending, state.wall_ms(now_ms))
    recovering, actions = recover_from_table(
        state, f"no manifest for {', '.join(sorted(troubles))}: begins again"
    )
    return replace(recovering, suspicion=recovering.suspicion.with_troubled_tables(found)), (
        *suspended_tables_log_lines(found),
        *actions,
    )


def reread_before_restaging(state: State, now_ms: int) -> Step:
    """Read the secondary tables after a failure to write the manifests: they may have changed."""
    term = term_of(state)
    assert term.delivery.decision is not None
    if is_attempt_too_old(state, term.delivery.decision, now_ms):
        return recover_from_table(state, _TOO_OLD)
    names = tuple(dict.fromkeys(draft.table.table for draft in term.delivery.drafts))
    return ask_look(state, Look(tables=names))


def on_read_for_staging(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """Ask for the same drafts again, if the tables are still the same."""
    term = term_of(state)
    if given.troubles:
        state, suspending = count_refused_stagings(state, given.troubles, given.troubles)
        return _on_staging_failed(state, given.troubles, suspending, now_ms)
    for draft in term.delivery.drafts:
        name = draft.table.table
        if state.identity.routed and name not in given.views:
            return recover_from_table(state, f"{name} cannot be read: begins again")
        now = given.views.get(name, draft.table)
        if now.uuid != draft.table.uuid or now.lineage is Lineage.TAG_MISSING:
            return recover_from_table(
                state, f"{draft.table.table} is another table now: begins again"
            )
    return state, (StageManifests(term.delivery.drafts),)


# Decides when a secondary table is delivered to: at once, or after its pending commits have
# gathered (LINGER-1).
#
# Only the epoch that decided knows since when a table's pending commits gather. A claim delivers to
# all that it finds.


LINGERING_MAX = 1_000
"""The primary table's record names each pending commit; where more gather, all are due."""


def commits_due_for_delivery(state: State, now_ms: int) -> tuple[PendingCommit, ...]:
    """Return what is to be delivered now. A table that was resumed takes rows only once that is
    there."""
    term = term_of(state)
    pending = commits_of_receiving_tables(term)
    gathering = {
        name
        for name, each in term.delivery.lingering.items()
        if now_ms < each.due_ms and name not in term.suspensions.suspended
    }
    return tuple(
        pending_commit for pending_commit in pending if pending_commit.table not in gathering
    )


def term_with_lingering_commits(state: State, now_ms: int) -> Term:
    """Return the term with the time at which each table whose pending commits gather is delivered.

    Called when the newest transaction was just decided. A table that could not be delivered before
    is due already. Where too many gather all are due, and what comes next does not gather: it
    counts for PENDING-7.
    """
    term, apart = term_of(state), secondaries_named_by_start(state)
    fresh = {
        d.table
        for d in term.delivery.pending
        if d.transaction == term.closing_transaction_id and d.manifest
    }
    before = {
        d.table for d in term.delivery.pending if d.transaction != term.closing_transaction_id
    }
    begun = {
        name: Lingering(now_ms + every_ms, term.closing_transaction_id)
        for name in fresh - before - apart.keys()
        if (every_ms := _linger_ms(state, name))
    }
    known = {name: each for name, each in term.delivery.lingering.items() if name in before}
    waiting = begun.keys() | {name for name, each in known.items() if now_ms < each.due_ms}
    if (
        sum(pending_commit.table in waiting for pending_commit in commits_of_receiving_tables(term))
        > LINGERING_MAX
    ):
        due = {n: replace(each, due_ms=min(each.due_ms, now_ms)) for n, each in known.items()}
        return replace(term, delivery=replace(term.delivery, lingering=due))
    kept = {
        n: replace(e, newest=term.closing_transaction_id) if n in waiting else e
        for n, e in known.items()
    }
    return replace(term, delivery=replace(term.delivery, lingering={**kept, **begun}))


def commits_perhaps_tried_before(
    term: Term, pending: Collection[PendingCommit]
) -> tuple[PendingCommit, ...]:
    """Return the pending commits that somebody has tried to deliver, as far as this epoch knows.

    Not those of the transaction that was just decided, nor those that gathered.
    """
    return tuple(
        pending_commit
        for pending_commit in pending
        if pending_commit.transaction != term.closing_transaction_id
        and not (
            (gathered := term.delivery.lingering.get(pending_commit.table))
            and pending_commit.transaction <= gathered.newest
        )
    )


def _linger_ms(state: State, table: str) -> int:
    paces = state.identity.paces
    return next((each.every_ms for each in paces if re.fullmatch(each.match, table)), 0)


TRIED_MAX = 200
"""The primary table's record is repeated in each of its snapshots: it can bear this many
undelivered pending commits."""
_REASONS_MAX = 3
_NAMED_MAX = 3


def begin_delivering(state: State, now_ms: int) -> Step:
    """Wait for deliveries of what was just decided; older pending commits are tried only once."""
    term = term_of(state)
    fresh = all(
        pending_commit.transaction == term.closing_transaction_id
        for pending_commit in commits_due_for_delivery(state, now_ms)
    )
    patience_ms = state.settings.delivery_timeout_ms if fresh else 0
    waiting = replace(term, delivery=replace(term.delivery, asked=False))
    delivering = enter_phase(state, Phase.DELIVERING, term=waiting, failures=0)
    return _look_at_tables(delivering.with_deadline(Timer.DELIVERY, now_ms + patience_ms), now_ms)


def _look_at_tables(state: State, now_ms: int) -> Step:
    """Read the primary table, and then those that START names or that are to be delivered now."""
    return ask_look(state, Look(primary=True, tables=_tables_to_read(state, now_ms)))


def recover_unless_primary_as_decided(state: State, view: TableView, now_ms: int) -> Step:
    """PENDING-4: deliver only what a fresh read shows under the primary table's tag."""
    term = term_of(state)
    ours = term.primary.view.record
    assert ours is not None
    if view.uuid == term.primary.view.uuid and has_rival_moved_tag(ours, view):
        return step_down(state, newest_epoch((view,)), now_ms)
    # Both: a promoted or restored database has the same tag name and another history (PENDING-4).
    same = (view.uuid, view.tag) == (term.primary.view.uuid, term.primary.view.tag)
    intact = view.lineage is Lineage.CONTAINS_TAG and ours.is_same_commit(view.record)
    if not (same and intact):
        return recover_from_table(state, "the table is not as it was decided: begins again")
    return replace(state, term=replace(term, primary=term.primary.with_view(view))), ()


def _tables_to_read(state: State, now_ms: int) -> tuple[str, ...]:
    """Return the secondary tables that START names, and all that are to be delivered now."""
    pending = (pending_commit.table for pending_commit in commits_due_for_delivery(state, now_ms))
    return tuple(dict.fromkeys((*secondaries_named_by_start(state), *pending)))


def on_secondaries_read(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """PENDING-7: acknowledge what a read of the secondary table shows, never what a commit
    answered."""
    before = term_of(state)
    named = secondaries_named_by_start(state) if state.identity.routed else given.views
    ours = {name: view for name, view in given.views.items() if name in named}
    routed = {name: view for name, view in given.views.items() if name not in named}
    kept = {name: view for name, view in routed.items() if name not in before.suspensions.suspended}
    known = before.delivery.secondaries
    # QUARANTINE-1: a claim finds out whether it may go on with the other one.
    replaced = any(view.uuid != known.get(name, view).uuid for name, view in ours.items())
    if replaced or not (
        are_secondaries_consistent_with_primary(ours, before.primary.view, before.delivery.pending)
        and are_secondaries_own_and_not_ahead(kept, before.primary.view)
    ):
        return recover_from_table(
            state, "a secondary table is not as it was delivered to: begins again"
        )
    state, suspended = suspend_troubled_tables(state, given, {}, now_ms)
    # Before the next two: a resumed table opens by what is pending now (SUSPEND-5), and one that
    # has received all at last is not overdue (SUSPEND-3).
    state = replace(state, term=strike_commits_delivered_by_read(term_of(state), given, now_ms))
    spent = _actions_to_delete_key_files(before, term_of(state))
    state, opened = reopen_resumed_tables(state, given.views)
    many = _has_too_many_pending(state, now_ms)
    state, weary = suspend_overdue_tables(
        state, given, commits_due_for_delivery(state, now_ms), now_ms, too_many_pending=many
    )
    after, actions = _deliver_or_go_on(state, given, now_ms)
    return after, (*suspended, *opened, *weary, *spent, *actions)


def _deliver_or_go_on(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """Deliver what is next; not to a suspended table, for that would hide what is
    wrong with it (SUSPEND-1)."""
    term = term_of(state)
    wanted = build_deliveries(
        term.primary.view,
        commits_due_for_delivery(state, now_ms),
        given.views,
        find_expiring_commits(state, now_ms),
    )
    tried = () if wanted else _commits_tried_in_vain(state, now_ms)
    unread = sum(pending_commit.table not in given.views for pending_commit in tried)
    waits = bool(wanted) or unread >= TRIED_MAX or _does_start_name_unread_claim(state, given)
    if not waits or (term.delivery.asked and _is_delivery_wait_over(state, now_ms)):
        going, actions = _go_on_to_transaction(state, now_ms)
        return going, (*_unread_log_lines(given), *actions)
    if term.delivery.asked or not wanted:
        due = commits_due_for_delivery(state, now_ms)
        names = sorted({pending_commit.table for pending_commit in due})
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        causes = [given.unread[name] for name in names if name in given.unread]
        because = f": {_join_some(causes)}" if causes else ""
        why = f"not delivered yet to {', '.join(names[:_NAMED_MAX])}{more}{because}"
        return _wait_and_retry_delivery(state, now_ms, why)
    asked = replace(state, term=replace(term, delivery=replace(term.delivery, asked=True)))
    return asked, (DeliverPendingCommits(wanted, state.settings.delivery_timeout_ms),)


def _unread_log_lines(given: SecondariesRead) -> tuple[LogLine, ...]:
    if not given.unread:
        return ()
    text = f"not read, so not delivered to: {_join_some(list(given.unread.values()))}"
    return (LogLine(text, trouble=True, event=LogEvent.DELIVERY_UNCONFIRMED),)


def _does_start_name_unread_claim(state: State, given: SecondariesRead) -> bool:
    """PENDING-9: return whether the first START would name a claimed table that did not answer.

    It says how far that table is, so an older delivery must not land there any more.
    """
    term = term_of(state)
    unread = secondaries_named_by_start(state).keys() - given.views.keys()
    return not term.has_heard_first_start and any(
        pending_commit.is_claim and pending_commit.table in unread
        for pending_commit in term.delivery.pending
    )


def strike_commits_delivered_by_read(term: Term, given: SecondariesRead, now_ms: int) -> Term:
    """Return the term with the secondary tables as they are now, without pending commits that they
    show as delivered."""
    secondaries = {
        name: given.views.get(name, known) for name, known in term.delivery.secondaries.items()
    }
    moved = {
        name: now_ms
        for name, view in secondaries.items()
        if view.tag != term.delivery.secondaries[name].tag
    }
    moved = {**term.delivery.moved_at_ms, **moved}
    # Only by views that were read: an answer "landed" that the catalog does not keep would take the
    # rows out of every record, and nobody would deliver them again.
    pending_commits = find_undelivered_commits(
        term.delivery.pending, given.views, term.primary.view.uuid
    )
    return replace(
        term,
        delivery=replace(
            term.delivery, secondaries=secondaries, pending=pending_commits, moved_at_ms=moved
        ),
    )


def _actions_to_delete_key_files(before: Term, after: Term) -> tuple[AcknowledgeDelivered, ...]:
    """Ask to delete key files of pending commits that a read, not an answer, shows as delivered."""
    # Tables in one location were once staged for under one path: each file goes with the last.
    named = _named_manifests(after)
    struck = tuple(
        pending_commit
        for pending_commit in before.delivery.pending
        if pending_commit.deletes and pending_commit.manifest not in named
    )
    return (AcknowledgeDelivered(struck),) if struck else ()


def on_deliveries_answered(state: State, given: DeliveriesAnswered, now_ms: int) -> Step:
    """Read the secondary tables again, whatever the answers were."""
    reasons = [o.reason for o in given.outcomes.values() if isinstance(o, Refused | Unknown)]
    event = LogEvent.DELIVERY_UNCONFIRMED
    text = f"delivery not confirmed: {_join_some(reasons)}"
    told = [LogLine(text, trouble=True, event=event)] if reasons else []
    state, suspended = suspend_undeliverable_tables(state, given, now_ms)
    asking, actions = ask_look(state, Look(tables=_tables_to_read(state, now_ms)))
    return asking, (*told, *suspended, *actions)


def _join_some(reasons: Sequence[str]) -> str:
    """Join the reasons in one line: a slow catalog is slow for each of hundreds of tables."""
    more = len(reasons) - _REASONS_MAX
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*reasons[:_REASONS_MAX], *rest])


def on_delivery_call_failed(state: State, now_ms: int, reason: str) -> Step:
    """Retry after a failed read or call, as long as deliveries are waited for."""
    if _is_delivery_wait_over(state, now_ms):
        return _go_on_to_transaction(state, now_ms)
    return _wait_and_retry_delivery(state, now_ms, reason)


def retry_delivery(state: State, now_ms: int) -> Step:
    """Begin another round (PENDING-4) after the wait, unless it took too long."""
    if _is_delivery_wait_over(state, now_ms):
        return _go_on_to_transaction(state, now_ms)
    delivery = replace(term_of(state).delivery, asked=False)
    return _look_at_tables(replace(state, term=replace(term_of(state), delivery=delivery)), now_ms)


def _is_delivery_wait_over(state: State, now_ms: int) -> bool:
    return state.is_due(Timer.DELIVERY, now_ms) and not _must_delivery_come_first(state, now_ms)


def _must_delivery_come_first(state: State, now_ms: int) -> bool:
    """Return whether delivery must come first: of claims, or because too much is pending
    (PENDING-7)."""
    claims = any(
        pending_commit.is_claim for pending_commit in commits_due_for_delivery(state, now_ms)
    )
    return claims or _has_too_many_pending(state, now_ms)


def _has_too_many_pending(state: State, now_ms: int) -> bool:
    return len(_commits_tried_in_vain(state, now_ms)) >= TRIED_MAX


def _commits_tried_in_vain(state: State, now_ms: int) -> list[PendingCommit]:
    tried = commits_perhaps_tried_before(term_of(state), commits_due_for_delivery(state, now_ms))
    # Nobody delivers to these before the next decision names what expires there: a wait for them
    # would put that decision off.
    late = (*find_expiring_commits(state, now_ms), *_find_commits_of_replaced_tables(state))
    undecided = {pending_commit.secondary for pending_commit in late}
    return [each for each in tried if each.secondary not in undecided]


def _wait_and_retry_delivery(state: State, now_ms: int, why: str) -> Step:
    waiting, actions = wait_and_retry(state, now_ms, why)
    until_ms = state.deadlines.get(Timer.DELIVERY)
    at_ms = waiting.deadlines[Timer.RETRY]
    if until_ms is not None and not _must_delivery_come_first(state, now_ms):
        waiting = waiting.with_deadline(Timer.RETRY, max(now_ms, min(at_ms, until_ms)))
    return waiting, actions


def _go_on_to_transaction(state: State, now_ms: int) -> Step:
    """Move on to the first START of the epoch, or to the transaction that is open."""
    state = state.with_deadline(Timer.DELIVERY, None)
    term = replace(term_of(state), delivery=replace(term_of(state).delivery, asked=False))
    if not term.has_heard_first_start:
        starting = enter_phase(state, Phase.STARTING, term=term, failures=0)
        return starting, append_actions_of_phase(starting)
    troubles, known = tuple(_describe_pending(state, term, now_ms)), term.delivery.told
    told: tuple[Action, ...] = tuple(
        LogLine(text, trouble=True, event=LogEvent.DELIVERY_PENDING)
        for text in troubles
        if text not in known
    )
    return enter_phase(
        state,
        Phase.OPEN,
        term=replace(term, delivery=replace(term.delivery, told=troubles)),
        failures=0,
    ), told


def _describe_pending(state: State, term: Term, now_ms: int) -> Iterable[str]:
    """Describe the rows that are still pending: not the empty pending commits, which only move a
    tag."""
    pending = [
        pending_commit
        for pending_commit in commits_due_for_delivery(replace(state, term=term), now_ms)
        if pending_commit.record_count
    ]
    if not pending:
        return
    wall_ms, age_max_ms = state.wall_ms(now_ms), state.settings.claim_age_max_ms
    rows = sum(pending_commit.record_count for pending_commit in pending)
    yield f"{rows} rows stay pending for {_tables_of(pending)}, and are tried again"
    if old := find_overdue_commits(pending, wall_ms, age_max_ms // 2):
        rows = sum(pending_commit.record_count for pending_commit in old)
        yield (
            f"{rows} rows pending for {_tables_of(old)} expire soon (coordinator.claim_age_max_ms)"
        )


def _tables_of(pending_commits: Iterable[PendingCommit]) -> str:
    return ", ".join(sorted({pending_commit.table for pending_commit in pending_commits}))


def newly_expired_log_lines(
    after: CommitRecord, before: CommitRecord | None
) -> tuple[LogLine, ...]:
    """PENDING-8: return lines on what nobody delivers any more."""
    known = before.expired if before else ()
    return tuple(
        LogLine(
            f"{pending_commit.description} of transaction {pending_commit.transaction} never "
            f"came into {pending_commit.table}: "
            "they were pending for too long, or the table is another one now",
            trouble=True,
            event=LogEvent.DELIVERY_EXPIRED,
        )
        for pending_commit in after.expired
        if pending_commit.manifest and pending_commit not in known
    )


def actions_to_tidy_staged_manifests(term: Term) -> tuple[Action, ...]:
    """Delete what dead coordinators drafted and never decided: all below this epoch.

    What expired was decided: its rows can be written again from there (SUSPEND-6).
    """
    kept = _named_manifests(term)
    return (TidyStagedManifests(term.epoch, kept),) if term.delivery.secondaries else ()


def _named_manifests(term: Term) -> frozenset[str]:
    expired = term.primary.view.record.expired if term.primary.view.record else ()
    return frozenset(
        pending_commit.manifest
        for pending_commit in (*term.delivery.pending, *expired)
        if pending_commit.manifest
    )
