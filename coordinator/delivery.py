"""Delivering the secondary tables what the primary table has decided, and striking it off (rules D4
to D8).

Each round reads the primary table, then the secondary tables, and delivers those that are pending
something; another round reads what came of it. The next END waits for that until
``deliver_until_ms``, and the first START of an epoch waits for the secondary tables that its claim
claims (D9).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.ports import Lineage, Refused, TableView, Unknown
from headgate.control_protocol.record import CommitRecord
from headgate.coordinator.actions import (
    AcknowledgeDelivered,
    Action,
    DeliveriesAnswered,
    DeliverPendingCommits,
    DescribeSecondaries,
    ReadTable,
    SecondariesRead,
    Tell,
    TidyDrafts,
)
from headgate.coordinator.drafting import expiring
from headgate.coordinator.fencing import rival
from headgate.coordinator.moves import Step, move, recover, superseded, term_of, wait
from headgate.coordinator.pacing import pending_now, tried
from headgate.coordinator.pending_commits import (
    deliveries,
    followed,
    in_order,
    overdue,
    undelivered,
)
from headgate.coordinator.recovery import newest_epoch
from headgate.coordinator.speech import addressed, say
from headgate.coordinator.state import State, Term
from headgate.coordinator.suspension import examined, reopened, unpayable, wearied
from headgate.coordinator.transitions import Phase

PENDING_COMMITS_MAX = 200
"""The primary table's record is repeated in each of its snapshots: it can bear this many
undelivered pending commits."""
_REASONS_MAX = 3


def begin_delivering(state: State, now_ms: int) -> Step:
    """Wait for deliveries of what was just decided; older pending commits are tried only once."""
    term = term_of(state)
    fresh = all(
        pending_commit.transaction == term.closing_id
        for pending_commit in pending_now(state, now_ms)
    )
    patience_ms = state.settings.delivery_timeout_ms if fresh else 0
    delivering = replace(term, deliver_until_ms=now_ms + patience_ms, asked=False)
    return move(state, Phase.DELIVERING, term=delivering, failures=0), (ReadTable(),)


def primary_read(state: State, view: TableView, now_ms: int) -> Step:
    """D4: deliver only what a fresh read shows under the primary table's tag."""
    term = term_of(state)
    ours = term.view.record
    assert ours is not None
    if view.uuid == term.view.uuid and rival(ours, view):
        return superseded(state, newest_epoch((view,)), now_ms)
    same = (view.uuid, view.tag) == (term.view.uuid, term.view.tag)
    intact = view.lineage is Lineage.CONTAINS_TAG and ours.same_commit(view.record)
    if not (same and intact):
        return recover(state, "the table is not as it was decided: begins again")
    overtaken = term.overtaken or view.head != term.view.head
    read = replace(state, term=replace(term, view=view, overtaken=overtaken))
    return read, (DescribeSecondaries(_named(read, now_ms)),)


def _named(state: State, now_ms: int) -> tuple[str, ...]:
    """Return the secondary tables that START names, and all that are to be delivered now."""
    pending = (pending_commit.table for pending_commit in pending_now(state, now_ms))
    return tuple(dict.fromkeys((*addressed(state), *pending)))


def secondaries_read(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """D7: acknowledge what a read of the secondary table shows, never what a commit answered."""
    before = term_of(state)
    named = addressed(state) if state.identity.routed else given.views
    ours = {name: view for name, view in given.views.items() if name in named}
    routed = {name: view for name, view in given.views.items() if name not in named}
    kept = {name: view for name, view in routed.items() if name not in before.suspended}
    if not (in_order(ours, before.view, before.pending_commits) and followed(kept, before.view)):
        return recover(state, "a secondary table is not as it was delivered to: begins again")
    state, suspended = examined(state, given, {}, now_ms)
    state = replace(state, term=acknowledged(term_of(state), given, now_ms))
    spent = _spent(before, term_of(state))
    state, opened = reopened(state, given.views)
    many = _too_many(state, now_ms)
    state, weary = wearied(state, given, pending_now(state, now_ms), now_ms, many=many)
    after, actions = _next_deliveries(state, given, now_ms)
    return after, (*suspended, *opened, *weary, *spent, *actions)


def _next_deliveries(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """Deliver to the next pending commits; not to a suspended table, for that would hide what is
    wrong with it (I1)."""
    term = term_of(state)
    wanted = deliveries(term.view, pending_now(state, now_ms), given.views, expiring(state, now_ms))
    if not wanted or (term.asked and _patience_is_over(state, now_ms)):
        return _goes_on(state, now_ms)
    if term.asked:
        return _waits(state, now_ms, "is pending for secondary tables still")
    asked = replace(state, term=replace(term, asked=True))
    return asked, (DeliverPendingCommits(wanted, state.settings.delivery_timeout_ms),)


def acknowledged(term: Term, given: SecondariesRead, now_ms: int) -> Term:
    """Return the term with the secondary tables as they are now, without pending commits that they
    show as delivered."""
    secondaries = {name: given.views.get(name, known) for name, known in term.secondaries.items()}
    moved = {
        name: now_ms if view.tag != term.secondaries[name].tag else term.moved_at_ms.get(name, 0)
        for name, view in secondaries.items()
    }
    pending_commits = undelivered(term.pending_commits, given.views, term.view.uuid)
    return replace(
        term, secondaries=secondaries, pending_commits=pending_commits, moved_at_ms=moved
    )


def _spent(before: Term, after: Term) -> tuple[AcknowledgeDelivered, ...]:
    """Return the key files to delete: those of pending commits that a read, not an answer, shows as
    delivered."""
    struck = tuple(
        pending_commit
        for pending_commit in before.pending_commits
        if pending_commit.deletes and pending_commit not in after.pending_commits
    )
    return (AcknowledgeDelivered(struck),) if struck else ()


def deliveries_answered(state: State, given: DeliveriesAnswered, now_ms: int) -> Step:
    """Read the secondary tables again, whatever the answers were."""
    reasons = [o.reason for o in given.outcomes.values() if isinstance(o, Refused | Unknown)]
    event = LogEvent.DELIVERY_UNCONFIRMED
    told = [Tell(_unconfirmed(reasons), trouble=True, event=event)] if reasons else []
    state, suspended = unpayable(state, given, now_ms)
    return state, (*told, *suspended, DescribeSecondaries(_named(state, now_ms)))


def _unconfirmed(reasons: Sequence[str]) -> str:
    """Join the reasons in one line: a slow catalog is slow for each of hundreds of tables."""
    more = len(reasons) - _REASONS_MAX
    rest = [f"and {more} more"] if more > 0 else []
    return f"delivery not confirmed: {'; '.join([*reasons[:_REASONS_MAX], *rest])}"


def failed(state: State, now_ms: int, reason: str) -> Step:
    """Retry after a failed read or call, as long as deliveries are waited for."""
    if _patience_is_over(state, now_ms):
        return _goes_on(state, now_ms)
    return _waits(state, now_ms, reason)


def again(state: State, now_ms: int) -> Step:
    """Begin another round (D4) after the wait, unless it took too long."""
    if _patience_is_over(state, now_ms):
        return _goes_on(state, now_ms)
    return replace(state, term=replace(term_of(state), asked=False)), (ReadTable(),)


def _patience_is_over(state: State, now_ms: int) -> bool:
    term = term_of(state)
    over = term.deliver_until_ms is not None and now_ms >= term.deliver_until_ms
    return over and not _endless(state, now_ms)


def _endless(state: State, now_ms: int) -> bool:
    """Return whether delivery must come first: secondary tables are claimed, or pending too much
    (D7)."""
    claims = any(pending_commit.claim for pending_commit in pending_now(state, now_ms))
    return claims or _too_many(state, now_ms)


def _too_many(state: State, now_ms: int) -> bool:
    return len(tried(term_of(state), pending_now(state, now_ms))) >= PENDING_COMMITS_MAX


def _waits(state: State, now_ms: int, why: str) -> Step:
    waiting, actions = wait(state, now_ms, why)
    until_ms = term_of(state).deliver_until_ms
    at_ms = waiting.retry_at_ms
    if until_ms is not None and at_ms is not None and not _endless(state, now_ms):
        waiting = replace(waiting, retry_at_ms=max(now_ms, min(at_ms, until_ms)))
    return waiting, actions


def _goes_on(state: State, now_ms: int) -> Step:
    """Move on to the first START of the epoch, or to the transaction that is open."""
    term = replace(term_of(state), deliver_until_ms=None, asked=False)
    if not term.started:
        starting = move(state, Phase.STARTING, term=term, failures=0)
        return starting, say(starting)
    troubles, known = tuple(_troubles(state, term, now_ms)), term.pending_told
    told: tuple[Action, ...] = tuple(
        Tell(text, trouble=True, event=LogEvent.DELIVERY_PENDING)
        for text in troubles
        if text not in known
    )
    return move(state, Phase.OPEN, term=replace(term, pending_told=troubles), failures=0), told


def _troubles(state: State, term: Term, now_ms: int) -> Iterable[str]:
    """Describe the rows that are still pending: not the empty pending commits, which only move a
    tag."""
    pending = [
        pending_commit
        for pending_commit in pending_now(replace(state, term=term), now_ms)
        if pending_commit.records
    ]
    if not pending:
        return
    wall_ms, age_max_ms = now_ms + state.wall_ahead_ms, state.settings.claim_age_max_ms
    rows = sum(pending_commit.records for pending_commit in pending)
    tables = ", ".join(sorted({pending_commit.table for pending_commit in pending}))
    yield f"{rows} rows stay pending for {tables}, and are tried again"
    old = sum(
        pending_commit.records for pending_commit in overdue(pending, wall_ms, age_max_ms // 2)
    )
    if old:
        yield f"{old} rows pending for {tables} expire soon (coordinator.claim_age_max_ms)"


def told_expired(after: CommitRecord, before: CommitRecord | None) -> tuple[Tell, ...]:
    """D8: log what nobody delivers any more."""
    known = before.expired if before else ()
    return tuple(
        Tell(
            f"{pending_commit.said} of transaction {pending_commit.transaction} never "
            f"came into {pending_commit.table}: "
            "they were pending for too long, or the table is another one now",
            trouble=True,
            event=LogEvent.DELIVERY_EXPIRED,
        )
        for pending_commit in after.expired
        if pending_commit.manifest and pending_commit not in known
    )


def tidied(term: Term) -> tuple[Action, ...]:
    """Delete what dead coordinators drafted and never decided: all below this epoch.

    What expired was decided: its rows can be written again from there (I6).
    """
    expired = term.view.record.expired if term.view.record else ()
    kept = frozenset(
        pending_commit.manifest
        for pending_commit in (*term.pending_commits, *expired)
        if pending_commit.manifest
    )
    return (TidyDrafts(term.epoch, kept),) if term.secondaries else ()
