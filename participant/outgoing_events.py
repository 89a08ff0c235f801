"""What the participant says: drafts with their places in its own order, and its presence."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.events import (
    PartitionPresence,
    Presence,
    PresenceKind,
    Proposal,
    WriteStatus,
)
from headgate.control_protocol.identifiers import LEAP_MAX, TopicPartition, TransactionNumber
from headgate.control_protocol.machine_io import Append, OutgoingEvent
from headgate.participant.actions import Action
from headgate.participant.batches import backlog
from headgate.participant.state import State

# A participant's sign of life, and how much its next status will hold (rule P12).


STEPS = 8
"""How often a participant speaks on the way to its share of a limit."""


def presence(state: State, kind: PresenceKind, concerns: frozenset[TopicPartition]) -> Presence:
    positions = state.positions
    records, octets = amount_held(state)
    return Presence(
        kind=kind,
        concerns=concerns,
        owned={p: PartitionPresence(positions.get(p), state.ends.get(p)) for p in state.owned},
        state="paused" if state.paused else state.phase.value,
        buffered_records=records,
        buffered_bytes=octets,
    )


def amount_held(state: State) -> tuple[int, int]:
    """Return records and bytes: what is read and not announced, and what the next batch will read.

    The bytes of what was not read yet are unknown: they are taken to be like the last batch's.
    """
    claims = [own.work for own in state.owned.values() if own.work]
    there = {} if state.needs else backlog(state)  # records that wait for columns do not hasten END
    waiting = min(sum(map(len, there.values())), state.settings.batch_records_max)
    records = sum(len(claim.range) for claim in claims) + waiting
    return records, sum(c.bytes_read for c in claims) + round(waiting * state.record_bytes)


def steps_reached(state: State) -> int:
    """Return the eighths of this participant's share of the nearest limit; 0 if there is none."""
    writing = state.writing
    if writing is None or not (writing.limits.commit_records or writing.limits.commit_bytes):
        return 0
    share = len(writing.fixed & state.owned.keys()) / max(len(writing.fixed), 1)
    limits = (writing.limits.commit_records, writing.limits.commit_bytes)
    parts = (
        amount / limit for amount, limit in zip(amount_held(state), limits, strict=True) if limit
    )
    return int(STEPS * max(parts) / share) if share else 0


Step = tuple[State, tuple[Action, ...]]


def number_event(
    state: State, transaction: TransactionNumber, event: Presence | WriteStatus | Proposal
) -> tuple[State, OutgoingEvent]:
    sequence = state.sequence + 1
    return replace(state, sequence=sequence), OutgoingEvent(
        state.epoch, transaction, event, sequence
    )


def count_on(known: int, heard: int) -> int:
    """G6: return the number to count on from, after what was heard in its name, its own or not."""
    return heard if known < heard <= known + LEAP_MAX else known


def append_presence(state: State, kind: PresenceKind, concerns: frozenset[TopicPartition]) -> Step:
    state, said = number_event(state, TransactionNumber(0), presence(state, kind, concerns))
    if kind in (PresenceKind.JOINED, PresenceKind.GAINED):
        state = replace(state, unheard=(*state.unheard, said))
    return state, (Append((said,)),)
