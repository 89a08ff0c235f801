"""Routed tables with trouble: they are suspended, while all others go on (I1 to I5).

A suspended table takes nothing: its records go to the quarantine, statuses with files of it are
refused once, and what is pending for it waits. The primary table's record says so, claims carry it
on, and only a person ends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from headgate.control_protocol.errors import (
    HeadgateError,
    HistoryUndecidable,
    MissingRights,
    SourceShared,
    TableMissing,
    TableRolledBack,
    TagMissing,
    TooManySuspended,
    Unreachable,
)
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.ports import Lineage, TableView, Unknown
from headgate.control_protocol.record import PendingCommit, Suspended
from headgate.coordinator.actions import DeliveriesAnswered, SecondariesRead, Tell
from headgate.coordinator.dropped import made_anew, parting
from headgate.coordinator.moves import term_of
from headgate.coordinator.pending_commits import overdue
from headgate.coordinator.recovery import refuse_shared
from headgate.coordinator.settings import CoordinatorSettings, RollbackPolicy
from headgate.coordinator.speech import addressed
from headgate.coordinator.state import State, Term

SUSPENDED_MAX = 100
"""The primary table's record and every START name them; beyond this it is not the tables'
trouble."""

REFUSALS_MAX = 3
"""Rights come and go while somebody changes them: they must be missing so often in a row."""

_WHY_CHARACTERS_MAX = 300
_INTACT = (Lineage.CONTAINS_TAG, Lineage.FRESH)


def refuse_lost(view: TableView, settings: CoordinatorSettings) -> None:
    """Raise the error of a table that lost rows below the ledger's offsets: they are gone (Q2)."""
    keep = settings.on_rollback is RollbackPolicy.KEEP_OFFSETS
    if view.lineage in (Lineage.ROLLED_BACK, Lineage.UNDECIDABLE) and not keep:
        back = view.lineage is Lineage.ROLLED_BACK
        kind = TableRolledBack if back else HistoryUndecidable
        what = "was rolled back" if back else "may have been rolled back; history is missing"
        raise kind(
            f"{view.table} {what} behind the sink's tag; the ledger's offsets have passed "
            "what it lost",
            'coordinator.on_rollback = "keep-offsets" continues without its rows',
        )
    if view.lineage is Lineage.TAG_MISSING:
        raise TagMissing(
            f"{view.table}: the sink's tag is gone, but the table once had it",
            "restore the tag on the sink's newest snapshot of this table",
        )


def trouble_of(view: TableView, state: State, topic_ids: Mapping[str, str]) -> HeadgateError | None:
    """Return what is wrong with a table, as a read of it shows."""
    try:
        refuse_lost(view, state.settings)
        refuse_shared(view, topic_ids, state.identity.shared_with)  # type: ignore[arg-type]
    except (HistoryUndecidable, SourceShared, TableRolledBack, TagMissing) as error:
        return error
    return None


def examined(
    state: State, given: SecondariesRead, words: Mapping[str, str], now_ms: int
) -> tuple[State, tuple[Tell, ...]]:
    """I1: suspend those of the routed tables just read that are not in order.

    ``words``: trouble that participants report. It counts where this coordinator finds nothing
    wrong and they repeat it again and again. Raises the error where there is no quarantine (I4).
    """
    term, named = term_of(state), addressed(state)
    troubles = {n: error for n, error in given.troubles.items() if n not in term.suspended}
    refused = {n for n, error in troubles.items() if isinstance(error, MissingRights)}
    for name, view in given.views.items():
        if name in named or name in term.suspended:
            continue
        if error := trouble_of(view, state, term.topic_ids):
            troubles[name] = error
        elif words.get(name, "").startswith(MissingRights.code):
            troubles[name] = MissingRights(words[name].removeprefix(f"{MissingRights.code} "))
            refused.add(name)
    asked = {*given.views, *given.troubles}
    refusals = {n: count for n, count in term.refusals.items() if n not in asked}
    refusals |= {n: term.refusals.get(n, 0) + 1 for n in refused}
    state = replace(state, term=replace(term, refusals=refusals))
    early = {n for n in refused if refusals[n] < REFUSALS_MAX}
    return suspend(state, {n: e for n, e in troubles.items() if n not in early}, now_ms)


def unpayable(
    state: State, given: DeliveriesAnswered, now_ms: int
) -> tuple[State, tuple[Tell, ...]]:
    """I1: suspend the tables whose deliveries failed for a trouble of their own."""
    term, outcomes = term_of(state), given.outcomes.items()
    refused = {n: o.reason for n, o in outcomes if isinstance(o, Unknown) and o.rights}
    refused |= {n: e.message for n, e in given.troubles.items() if isinstance(e, MissingRights)}
    counts = {n: term.refused_deliveries.get(n, 0) + 1 for n in refused}
    troubles = {n: e for n, e in given.troubles.items() if n not in refused}
    troubles |= {n: MissingRights(why) for n, why in refused.items() if counts[n] >= REFUSALS_MAX}
    named = addressed(state)
    state = replace(state, term=replace(term, refused_deliveries=counts))
    return suspend(state, {n: e for n, e in troubles.items() if n not in named}, now_ms)


def suspend(
    state: State, troubles: Mapping[str, HeadgateError], now_ms: int
) -> tuple[State, tuple[Tell, ...]]:
    """Suspend these tables from now on. Raises the error of one where there is no quarantine
    (I4)."""
    anew = made_anew(state, troubles)
    state, parting_words = parting(state, anew - term_of(state).suspended.keys())
    term = term_of(state)
    found = suspended_for(state, troubles, now_ms + state.wall_ahead_ms)
    suspended = {**term.suspended, **found}
    refuse_too_many_suspended(suspended)
    refusals = {name: n for name, n in term.refusals.items() if name not in suspended}
    state = replace(state, term=replace(term, suspended=suspended, refusals=refusals))
    return state, (*told(found), *parting_words)


def suspended_for(
    state: State, troubles: Mapping[str, HeadgateError], wall_ms: int
) -> dict[str, Suspended]:
    """Return the record's entries for tables with these troubles, without those made again (N5)."""
    anew = made_anew(state, troubles)
    found = {name: error for name, error in sorted(troubles.items()) if name not in anew}
    for error in found.values():
        if not state.identity.secondaries:
            raise error
    return {
        name: Suspended(
            name, f"{error.code} {error.message}"[:_WHY_CHARACTERS_MAX], max(0, wall_ms)
        )
        for name, error in found.items()
    }


def told(found: Mapping[str, Suspended]) -> tuple[Tell, ...]:
    return tuple(
        Tell(
            f"{name} is suspended, its records go to the quarantine: {suspended.why}",
            trouble=True,
            event=LogEvent.TABLE_SUSPENDED,
        )
        for name, suspended in sorted(found.items())
    )


def refuse_too_many_suspended(suspended: Mapping[str, Suspended]) -> None:
    """Raise ``TooManySuspended``: diverting everything helps nobody."""
    if len(suspended) > SUSPENDED_MAX:
        some = "; ".join(f"{name}: {p.why}" for name, p in sorted(suspended.items())[:3])
        raise TooManySuspended(
            f"{len(suspended)} tables have problems, and at most {SUSPENDED_MAX} are "
            f"suspended: {some}",
            "check the catalog and its rights; headgate tables SINK lists what is suspended",
        )


def said(term: Term) -> dict[str, str]:
    """Return the tables that START and settlements call suspended, with those still to be
    delivered."""
    return {name: suspended.why for name, suspended in sorted(term.suspended.items())}


def closed(term: Term) -> frozenset[str]:
    """Return the tables that are not even delivered."""
    return frozenset(name for name, suspended in term.suspended.items() if not suspended.resuming)


def deliverable(term: Term) -> tuple[PendingCommit, ...]:
    """Return what is pending for tables that are delivered now."""
    shut = closed(term) | term.forgotten
    return tuple(
        pending_commit
        for pending_commit in term.pending_commits
        if pending_commit.table not in shut
    )


def wearied(
    state: State,
    given: SecondariesRead,
    pending: Collection[PendingCommit],
    now_ms: int,
    *,
    many: bool,
) -> tuple[State, tuple[Tell, ...]]:
    """D8: suspend tables that could not be delivered for too long; if ``many`` pending commits
    wait, those pending most.

    That is a table that cannot be read now, or that was just delivered and does not show it.
    Trouble of more tables than can be suspended is the catalog's: then nobody is suspended for the
    number of pending commits.
    """
    term, named = term_of(state), addressed(state)
    if not (state.identity.routed and state.identity.secondaries):
        return state, ()
    wall_ms = now_ms + state.wall_ahead_ms
    weary = {d.table for d in overdue(pending, wall_ms, state.settings.claim_age_max_ms // 2)}
    if many:
        counts = Counter(pending_commit.table for pending_commit in pending)
        most = {name for name, count in counts.items() if count == max(counts.values())}
        weary |= most if len(most) + len(term.suspended) <= SUSPENDED_MAX else set()
    helpless = {n for n in weary if n not in named and (n not in given.views or term.asked)}
    why = "could not be delivered for so long that its pending commits pile up, or will expire"
    return suspend(
        state, {n: Unreachable(f"{n} {why}") for n in helpless if n not in term.suspended}, now_ms
    )


def asked_for(state: State, tables: Iterable[str], now_ms: int) -> State:
    """I5: remember that a person wants these suspended tables filled again; the next END looks at
    them.
    """
    term = term_of(state)
    wanted = frozenset(n for n in tables if n in closed(term))
    if wanted <= term.resume_asked:
        return state
    asked = replace(term, resume_asked=term.resume_asked | wanted, end_due_ms=now_ms)
    return replace(state, term=asked)


def resumed(state: State, given: SecondariesRead, now_ms: int) -> tuple[State, tuple[Tell, ...]]:
    """I5: open what was asked for, or let it be delivered first; what still has trouble stays
    suspended.

    A table that lost rows is taken as it is: they stay out. One that is gone may be made again
    (N5).
    """
    term = term_of(state)
    suspended, secondaries, tells = dict(term.suspended), dict(term.secondaries), list[Tell]()
    gone: list[str] = []
    wall_ms = max(0, now_ms + state.wall_ahead_ms)
    for name in sorted(term.resume_asked & suspended.keys()):
        view, error = given.views.get(name), given.troubles.get(name)
        if isinstance(error, TableMissing) and state.identity.makes:
            gone.append(name)
            del suspended[name]
            continue
        if view is not None:
            error = _shared(view, state, term)
        if view is None or error is not None:
            error = error or Unreachable(f"{name} cannot be reached")
            why = f"{error.code} {error.message}"[:_WHY_CHARACTERS_MAX]
            suspended[name] = Suspended(name, why, wall_ms)
            text = f"{name} stays suspended: {why}"
            tells.append(Tell(text, trouble=True, event=LogEvent.TABLE_SUSPENDED))
            continue
        secondaries[name] = view
        suspended[name] = replace(suspended[name], since_ms=wall_ms, resuming=True)
    for name in unopened(term) & given.views.keys():
        secondaries[name] = given.views[name]
    asked = replace(term, suspended=suspended, secondaries=secondaries, resume_asked=frozenset())
    state, parting_words = parting(replace(state, term=asked), gone)
    opened, more = reopened(state, given.views)
    return opened, (*tells, *parting_words, *more)


def unopened(term: Term) -> frozenset[str]:
    """I5: return resuming tables that are to receive nothing: their deliverer may have ended too
    early."""
    pending = {pending_commit.table for pending_commit in term.pending_commits}
    return frozenset(
        n for n, suspended in term.suspended.items() if suspended.resuming and n not in pending
    )


def _shared(view: TableView, state: State, term: Term) -> HeadgateError | None:
    try:
        refuse_shared(view, term.topic_ids, state.identity.shared_with)
    except SourceShared as error:
        return error
    return None


def reopened(state: State, views: Mapping[str, TableView]) -> tuple[State, tuple[Tell, ...]]:
    """I5: let resumed tables take rows again, if they are in order and pending nothing."""
    term = term_of(state)
    owing = {pending_commit.secondary for pending_commit in term.pending_commits}
    done = {
        name
        for name, suspended in term.suspended.items()
        if suspended.resuming
        and (view := views.get(name))
        and view.lineage in _INTACT
        and view.uuid not in owing
    }
    if not done:
        return state, ()
    suspended = {name: p for name, p in term.suspended.items() if name not in done}
    tells = tuple(
        Tell(f"{name} takes rows again", event=LogEvent.TABLE_RESUMED) for name in sorted(done)
    )
    return replace(state, term=replace(term, suspended=suspended)), tells


def to_be_delivered(term: Term, pending: Iterable[PendingCommit]) -> tuple[TableView, ...]:
    """Return resumed tables that need a delivery before they open: an empty one."""
    have = {pending_commit.secondary for pending_commit in pending}
    return tuple(
        term.secondaries[name]
        for name, suspended in sorted(term.suspended.items())
        if suspended.resuming
        and name in term.secondaries
        and term.secondaries[name].uuid not in have
    )
