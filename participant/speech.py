"""What the participant says: drafts with their places in its own order, and its presence."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.events import (
    Presence,
    PresenceKind,
    Proposal,
    WriteStatus,
)
from headgate.control_protocol.identifiers import LEAP_MAX, TopicPartition, TransactionNumber
from headgate.participant.actions import Action, Append
from headgate.participant.presence import presence
from headgate.participant.state import Draft, State

Step = tuple[State, tuple[Action, ...]]


def draft(
    state: State, transaction: TransactionNumber, event: Presence | WriteStatus | Proposal
) -> tuple[State, Draft]:
    sequence = state.sequence + 1
    return replace(state, sequence=sequence), Draft(sequence, state.epoch, transaction, event)


def counted_on(known: int, heard: int) -> int:
    """G6: return the number to count on from, after what was heard in its name, its own or not."""
    return heard if known < heard <= known + LEAP_MAX else known


def say_presence(state: State, kind: PresenceKind, concerns: frozenset[TopicPartition]) -> Step:
    state, said = draft(state, TransactionNumber(0), presence(state, kind, concerns))
    if kind in (PresenceKind.JOINED, PresenceKind.GAINED):
        state = replace(state, unheard=(*state.unheard, said))
    return state, (Append((said,)),)
