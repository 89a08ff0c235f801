"""Paying the followers what the lead has decided, and striking it off (rules D4 to D8).

Each round reads the lead, then the followers, and pays those that are owed something; another
round reads what came of it. The next END waits for that until ``pay_until_ms``, and the first START
of an epoch waits for the followers that its claim claims (D9).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.ports import Lineage, Refused, TableView, Unknown
from headgate.control_protocol.record import CommitRecord
from headgate.coordinator.actions import (
    Action,
    DescribeFollowers,
    FollowersRead,
    PayDebts,
    PaymentsAnswered,
    ReadTable,
    StrikeOff,
    Tell,
    TidyDrafts,
)
from headgate.coordinator.debts import followed, in_order, overdue, payments, unpaid
from headgate.coordinator.drafting import lapsing
from headgate.coordinator.fencing import rival
from headgate.coordinator.moves import Step, move, recover, superseded, term_of, wait
from headgate.coordinator.pacing import owed_now, tried
from headgate.coordinator.parking import examined, reopened, unpayable, wearied
from headgate.coordinator.recovery import newest_epoch
from headgate.coordinator.speech import addressed, say
from headgate.coordinator.state import State, Term
from headgate.coordinator.transitions import Phase

DEBTS_MAX = 200
"""The lead's record is repeated in each of its snapshots: it can bear this many unpaid debts."""
_REASONS_MAX = 3


def begin_paying(state: State, now_ms: int) -> Step:
    """Wait for payments of what was just decided; older debts are tried only once."""
    term = term_of(state)
    fresh = all(debt.transaction == term.closing_id for debt in owed_now(state, now_ms))
    patience_ms = state.settings.pay_timeout_ms if fresh else 0
    paying = replace(term, pay_until_ms=now_ms + patience_ms, asked=False)
    return move(state, Phase.PAYING, term=paying, failures=0), (ReadTable(),)


def lead_read(state: State, view: TableView, now_ms: int) -> Step:
    """D4: pay only what a fresh read shows under the lead's tag."""
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
    return read, (DescribeFollowers(_named(read, now_ms)),)


def _named(state: State, now_ms: int) -> tuple[str, ...]:
    """Return the followers that START names, and all that are to be paid now."""
    owed = (debt.table for debt in owed_now(state, now_ms))
    return tuple(dict.fromkeys((*addressed(state), *owed)))


def followers_read(state: State, given: FollowersRead, now_ms: int) -> Step:
    """D7: strike off what a read of the follower shows, never what a commit answered."""
    before = term_of(state)
    named = addressed(state) if state.identity.routed else given.views
    ours = {name: view for name, view in given.views.items() if name in named}
    routed = {name: view for name, view in given.views.items() if name not in named}
    kept = {name: view for name, view in routed.items() if name not in before.parked}
    if not (in_order(ours, before.view, before.debts) and followed(kept, before.view)):
        return recover(state, "a follower is not as it was paid: begins again")
    state, parked = examined(state, given, {}, now_ms)
    state = replace(state, term=struck_off(term_of(state), given, now_ms))
    spent = _spent(before, term_of(state))
    state, opened = reopened(state, given.views)
    many = _too_many(state, now_ms)
    state, weary = wearied(state, given, owed_now(state, now_ms), now_ms, many=many)
    after, actions = _next_payments(state, given, now_ms)
    return after, (*parked, *opened, *weary, *spent, *actions)


def _next_payments(state: State, given: FollowersRead, now_ms: int) -> Step:
    """Pay the next debts; not to a parked table, for that would hide what is wrong with it (I1)."""
    term = term_of(state)
    wanted = payments(term.view, owed_now(state, now_ms), given.views, lapsing(state, now_ms))
    if not wanted or (term.asked and _patience_is_over(state, now_ms)):
        return _goes_on(state, now_ms)
    if term.asked:
        return _waits(state, now_ms, "followers are owed still")
    asked = replace(state, term=replace(term, asked=True))
    return asked, (PayDebts(wanted, state.settings.pay_timeout_ms),)


def struck_off(term: Term, given: FollowersRead, now_ms: int) -> Term:
    """Return the term with the followers as they are now, without debts that they show as paid."""
    followers = {name: given.views.get(name, known) for name, known in term.followers.items()}
    moved = {
        name: now_ms if view.tag != term.followers[name].tag else term.moved_at_ms.get(name, 0)
        for name, view in followers.items()
    }
    debts = unpaid(term.debts, given.views, term.view.uuid)
    return replace(term, followers=followers, debts=debts, moved_at_ms=moved)


def _spent(before: Term, after: Term) -> tuple[StrikeOff, ...]:
    """Return the key files to delete: those of debts that a read, not an answer, shows as paid."""
    struck = tuple(debt for debt in before.debts if debt.deletes and debt not in after.debts)
    return (StrikeOff(struck),) if struck else ()


def payments_answered(state: State, given: PaymentsAnswered, now_ms: int) -> Step:
    """Read the followers again, whatever the answers were."""
    reasons = [o.reason for o in given.outcomes.values() if isinstance(o, Refused | Unknown)]
    event = LogEvent.DELIVERY_UNCONFIRMED
    told = [Tell(_unconfirmed(reasons), trouble=True, event=event)] if reasons else []
    state, parked = unpayable(state, given, now_ms)
    return state, (*told, *parked, DescribeFollowers(_named(state, now_ms)))


def _unconfirmed(reasons: Sequence[str]) -> str:
    """Join the reasons in one line: a slow catalog is slow for each of hundreds of tables."""
    more = len(reasons) - _REASONS_MAX
    rest = [f"and {more} more"] if more > 0 else []
    return f"payment not confirmed: {'; '.join([*reasons[:_REASONS_MAX], *rest])}"


def failed(state: State, now_ms: int, reason: str) -> Step:
    """Retry after a failed read or call, as long as payments are waited for."""
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
    over = term.pay_until_ms is not None and now_ms >= term.pay_until_ms
    return over and not _endless(state, now_ms)


def _endless(state: State, now_ms: int) -> bool:
    """Return whether payment must come first: followers are claimed, or owed too much (D7)."""
    claims = any(debt.claim for debt in owed_now(state, now_ms))
    return claims or _too_many(state, now_ms)


def _too_many(state: State, now_ms: int) -> bool:
    return len(tried(term_of(state), owed_now(state, now_ms))) >= DEBTS_MAX


def _waits(state: State, now_ms: int, why: str) -> Step:
    waiting, actions = wait(state, now_ms, why)
    until_ms = term_of(state).pay_until_ms
    at_ms = waiting.retry_at_ms
    if until_ms is not None and at_ms is not None and not _endless(state, now_ms):
        waiting = replace(waiting, retry_at_ms=max(now_ms, min(at_ms, until_ms)))
    return waiting, actions


def _goes_on(state: State, now_ms: int) -> Step:
    """Move on to the first START of the epoch, or to the transaction that is open."""
    term = replace(term_of(state), pay_until_ms=None, asked=False)
    if not term.started:
        starting = move(state, Phase.STARTING, term=term, failures=0)
        return starting, say(starting)
    troubles, known = tuple(_troubles(state, term, now_ms)), term.owed_told
    told: tuple[Action, ...] = tuple(
        Tell(text, trouble=True, event=LogEvent.DELIVERY_PENDING)
        for text in troubles
        if text not in known
    )
    return move(state, Phase.OPEN, term=replace(term, owed_told=troubles), failures=0), told


def _troubles(state: State, term: Term, now_ms: int) -> Iterable[str]:
    """Describe the rows that are still owed: not the empty debts, which only move a tag."""
    owed = [debt for debt in owed_now(replace(state, term=term), now_ms) if debt.records]
    if not owed:
        return
    wall_ms, age_max_ms = now_ms + state.wall_ahead_ms, state.settings.claim_age_max_ms
    rows = sum(debt.records for debt in owed)
    tables = ", ".join(sorted({debt.table for debt in owed}))
    yield f"{rows} rows stay owed to {tables}, and are tried again"
    old = sum(debt.records for debt in overdue(owed, wall_ms, age_max_ms // 2))
    if old:
        yield f"{old} rows owed to {tables} lapse soon (coordinator.claim_age_max_ms)"


def told_lapsed(after: CommitRecord, before: CommitRecord | None) -> tuple[Tell, ...]:
    """D8: log what nobody pays any more."""
    known = before.lapsed if before else ()
    return tuple(
        Tell(
            f"{debt.said} of transaction {debt.transaction} never came into {debt.table}: "
            "they were owed for too long, or the table is another one now",
            trouble=True,
            event=LogEvent.DELIVERY_EXPIRED,
        )
        for debt in after.lapsed
        if debt.manifest and debt not in known
    )


def tidied(term: Term) -> tuple[Action, ...]:
    """Delete what dead coordinators drafted and never decided: all below this epoch.

    What lapsed was decided: its rows can be written again from there (I6).
    """
    lapsed = term.view.record.lapsed if term.view.record else ()
    kept = frozenset(debt.manifest for debt in (*term.debts, *lapsed) if debt.manifest)
    return (TidyDrafts(term.epoch, kept),) if term.followers else ()
