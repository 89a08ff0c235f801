"""Handles an operator's requests to pause or to go on, each exactly once (rule C11).

A request bears the newest transaction that the operator read in the table. The control topic may
hold it for long, and anybody may repeat it: it counts only while nothing has answered it.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.events import Envelope, Pause, Resume
from headgate.control_protocol.identifiers import Epoch, TransactionId, TransactionNumber
from headgate.control_protocol.ports import CommitAttempt
from headgate.coordinator.state import PauseRequest, State, Term
from headgate.coordinator.suspension import asked_for

_NEVER = TransactionId(Epoch(0), TransactionNumber(0))


def requested(state: State, said: Envelope, now_ms: int) -> State:
    """Remember a request while there is no term, act on it in one; ignore what was answered.

    One for suspended tables is remembered in a term only, for it is repeated until it was answered.
    """
    if isinstance(said.event, Resume) and said.event.tables:
        return asked_for(state, said.event.tables, now_ms) if state.term else state
    request = PauseRequest(
        isinstance(said.event, Pause), TransactionId(said.epoch, said.transaction)
    )
    term = state.term
    if term is None:
        known = state.pause_asked
        return state if known and request.seen < known.seen else replace(state, pause_asked=request)
    if request.paused == term.paused:
        return state
    if request.seen < TransactionId(term.epoch, term.pause_answered):
        # old, or the table is not the one that this coordinator knows: a look will tell
        return replace(state, term=replace(term, look_soon=True))
    return replace(state, term=replace(term, paused=request.paused, end_due_ms=now_ms))


def paused_at_start(state: State, attempt: CommitAttempt | None, *, stored: bool) -> bool:
    """Return whether the new term begins paused: as stored, or as asked since the last commit."""
    request = state.pause_asked
    before = attempt.base.settled if attempt else None
    if request is None or request.seen < (before.transaction if before else _NEVER):
        return stored
    return request.paused


def answered_by(term: Term, *, before: bool, now: bool) -> TransactionNumber:
    """Return the transaction that last answered a request, once the closing one has landed."""
    return term.pause_answered if before == now else term.closing
