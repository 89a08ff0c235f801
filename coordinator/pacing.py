"""Decides when a secondary table is delivered to: at once, or after its pending commits have
gathered (V4).

Only the epoch that decided knows since when a table's pending commits gather. A claim delivers to
all that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from headgate.control_protocol.record import PendingCommit
from headgate.coordinator.moves import term_of
from headgate.coordinator.speech import addressed
from headgate.coordinator.state import Gathering, State, Term
from headgate.coordinator.suspension import deliverable

GATHERED_MAX = 1_000
"""The primary table's record names each pending commit; where more gather, all are due."""


def pending_now(state: State, now_ms: int) -> tuple[PendingCommit, ...]:
    """Return what is to be delivered now. A table that was resumed takes rows only once it is
    delivered to."""
    term = term_of(state)
    pending = deliverable(term)
    gathering = {
        name
        for name, each in term.gathering.items()
        if now_ms < each.due_ms and name not in term.suspended
    }
    return tuple(
        pending_commit for pending_commit in pending if pending_commit.table not in gathering
    )


def paced(state: State, now_ms: int) -> Term:
    """Return the term with the time at which each table whose pending commits gather is delivered.

    Called when the newest transaction was just decided. A table that could not be delivered before
    is due already. Where too many gather all are due, and what comes next does not gather: it
    counts for D7.
    """
    term, apart = term_of(state), addressed(state)
    fresh = {
        d.table for d in term.pending_commits if d.transaction == term.closing_id and d.manifest
    }
    before = {d.table for d in term.pending_commits if d.transaction != term.closing_id}
    begun = {
        name: Gathering(now_ms + every_ms, term.closing_id)
        for name in fresh - before - apart.keys()
        if (every_ms := _every_ms(state, name))
    }
    known = {name: each for name, each in term.gathering.items() if name in before}
    waiting = begun.keys() | {name for name, each in known.items() if now_ms < each.due_ms}
    if sum(pending_commit.table in waiting for pending_commit in deliverable(term)) > GATHERED_MAX:
        due = {n: replace(each, due_ms=min(each.due_ms, now_ms)) for n, each in known.items()}
        return replace(term, gathering=due)
    kept = {n: replace(e, newest=term.closing_id) if n in waiting else e for n, e in known.items()}
    return replace(term, gathering={**kept, **begun})


def tried(term: Term, pending: Collection[PendingCommit]) -> tuple[PendingCommit, ...]:
    """Return the pending commits that somebody has tried to deliver, as far as this epoch knows.

    Not those of the transaction that was just decided, nor those that gathered.
    """
    return tuple(
        pending_commit
        for pending_commit in pending
        if pending_commit.transaction != term.closing_id
        and not (
            (gathered := term.gathering.get(pending_commit.table))
            and pending_commit.transaction <= gathered.newest
        )
    )


def _every_ms(state: State, table: str) -> int:
    paces = state.identity.paces
    return next((each.every_ms for each in paces if re.fullmatch(each.match, table)), 0)
