"""Ignores events that are repeated, or whose numbers nobody can have counted to (G5, G6)."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.events import (
    Envelope,
    Pause,
    Presence,
    PresenceKind,
    Resume,
    StartCommit,
    Tables,
)
from headgate.control_protocol.identifiers import LEAP_MAX
from headgate.coordinator.state import State, Term

_GAINS = (PresenceKind.JOINED, PresenceKind.GAINED)

_GAINS_KEPT = 256
"""Repeating an older one makes an END come soon once more, which is harmless."""

_RIVALS_KEPT = 256
"""Repeating an older one's words makes the claim wait for it once more (C9)."""


def said_again(state: State, said: Envelope) -> bool:
    """C5: return whether a gain is a repetition: it would make ENDs come soon for nothing.

    Compared by its very number: a forged higher one hides no gain (G6).
    """
    return gains(said) and (said.sender, said.sequence) in state.gains


def with_gain(state: State, said: Envelope) -> State:
    """Return the state that remembers the gain, if the event is one."""
    if not gains(said):
        return state
    return replace(state, gains=(*state.gains, (said.sender, said.sequence))[-_GAINS_KEPT:])


def gains(said: Envelope) -> bool:
    """Return whether the event reports gained partitions."""
    return isinstance(said.event, Presence) and said.event.kind in _GAINS


def leaps(state: State, said: Envelope) -> bool:
    """G6: return whether the epoch leaps too far: who claimed above it would run out of numbers."""
    if isinstance(said.event, Pause | Resume):
        return False
    return said.epoch > state.table_epoch + LEAP_MAX


def beyond(term: Term, said: Envelope) -> bool:
    """G6: return whether the transaction of this epoch was never opened, or is not ended yet."""
    open_one = isinstance(said.event, StartCommit | Tables)
    newest = term.number if open_one else term.closing
    return said.epoch == term.epoch and said.transaction > newest


def news(state: State, said: Envelope) -> tuple[State, bool]:
    """C9: return whether the event is new; a repetition is no sign that its speaker is alive."""
    if said.sequence <= state.rivals.get(said.sender, -1):
        return state, False
    others = [rival for rival in state.rivals.items() if rival[0] != said.sender]
    rivals = dict([*others, (said.sender, said.sequence)][-_RIVALS_KEPT:])
    return replace(state, rivals=rivals), True
