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

GAINS = (PresenceKind.JOINED, PresenceKind.GAINED)


def said_again(state: State, said: Envelope) -> bool:
    """C5: a gain counts once; it would make ENDs come soon for nothing.

    G6: one from further below than anybody can have counted is no repeat: the other one is forged.
    """
    gain = isinstance(said.event, Presence) and said.event.kind in GAINS
    behind = state.gains.get(said.sender, -1) - said.sequence
    return gain and 0 <= behind <= LEAP_MAX


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
    news = said.sequence > state.rivals.get(said.sender, -1)
    rivals = {**state.rivals, said.sender: said.sequence} if news else state.rivals
    return replace(state, rivals=rivals), news
