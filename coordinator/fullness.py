"""Decides when a transaction holds enough to be ended before its time (rule C12)."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.events import Presence
from headgate.control_protocol.identifiers import Sender
from headgate.coordinator.moves import term_of
from headgate.coordinator.state import State


def heard_of(state: State, sender: Sender, presence: Presence) -> State:
    """Record what this participant holds now, where there is a limit."""
    if not (state.settings.commit_records or state.settings.commit_bytes):
        return state
    amounts = (presence.buffered_records, presence.buffered_bytes)
    term = term_of(state)
    return replace(state, term=replace(term, held={**term.held, sender: amounts}))


def enough(state: State) -> bool:
    """Return whether all participants together hold as much as one of the limits."""
    limits = (state.settings.commit_records, state.settings.commit_bytes)
    held = term_of(state).held.values()
    return any(
        limit and sum(amounts[of] for amounts in held) >= limit for of, limit in enumerate(limits)
    )
