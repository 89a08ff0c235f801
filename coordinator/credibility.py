"""Tells what is heard and counts for nothing: repeats, and numbers that nobody counts to."""

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
"""Who says an older one again makes an END come soon once more, which is harmless."""

_RIVALS_KEPT = 256
"""Who says an older one's words again is waited for once more (C9)."""


def said_again(state: State, said: Envelope) -> bool:
    """C5: a gain counts once; it would make ENDs come soon for nothing.

    By its very number: a higher one that was forged hides none (G6).
    """
    return gains(said) and (said.sender, said.sequence) in state.gains


def with_gain(state: State, said: Envelope) -> State:
    """The state that knows of this gain, if it is one."""
    if not gains(said):
        return state
    return replace(state, gains=(*state.gains, (said.sender, said.sequence))[-_GAINS_KEPT:])


def gains(said: Envelope) -> bool:
    """Whether it is the word of somebody who has gained partitions."""
    return isinstance(said.event, Presence) and said.event.kind in _GAINS


def leaps(state: State, said: Envelope) -> bool:
    """G6: whoever claimed above such an epoch could not count up for ever."""
    if isinstance(said.event, Pause | Resume):
        return False
    return said.epoch > state.table_epoch + LEAP_MAX


def beyond(term: Term, said: Envelope) -> bool:
    """G6: a transaction of this epoch that was never opened, or not ended yet."""
    open_one = isinstance(said.event, StartCommit | Tables)
    newest = term.number if open_one else term.closing
    return said.epoch == term.epoch and said.transaction > newest


def news(state: State, said: Envelope) -> tuple[State, bool]:
    """C9: a word that is heard again is no sign that its speaker is alive."""
    if said.sequence <= state.rivals.get(said.sender, -1):
        return state, False
    others = [rival for rival in state.rivals.items() if rival[0] != said.sender]
    rivals = dict([*others, (said.sender, said.sequence)][-_RIVALS_KEPT:])
    return replace(state, rivals=rivals), True
