"""Detects participants that are always one transaction late (P13)."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.control_protocol.errors import ParticipantStarves
from headgate.control_protocol.identifiers import Sender
from headgate.control_protocol.log_events import LogEvent
from headgate.coordinator.actions import Tell
from headgate.coordinator.admission import Verdict
from headgate.coordinator.moves import term_of
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import State

STAMPS_KEPT = 100
"""So many transactions late, files are still told apart from those of a wrong path."""

TIMES_IN_A_ROW = 3
"""Once may be a hiccup; people are told at so many times, and at each multiple."""


def starving(state: State, verdict: Verdict) -> tuple[Mapping[Sender, int], tuple[Tell, ...]]:
    """Return how often in a row each sender was late by now, and what people have to know."""
    before, late = term_of(state).late, verdict.late - verdict.heeded
    counts = {sender: times for sender, times in before.items() if sender not in verdict.heeded}
    counts |= {sender: before.get(sender, 0) + 1 for sender in late}
    repeated = sorted(sender for sender in late if counts[sender] % TIMES_IN_A_ROW == 0)
    return counts, tuple(_told(state.settings, sender, counts[sender]) for sender in repeated)


def _told(settings: CoordinatorSettings, sender: Sender, times: int) -> Tell:
    error = ParticipantStarves(
        f"{sender} is slower than a transaction: {times} times in a row its files came after the "
        "only commit that may bring them, and its records are read again each time",
        f"raise coordinator.commit_interval_ms ({settings.commit_interval_ms} now) or "
        f"commit_timeout_ms ({settings.commit_timeout_ms} now), together the time that it has",
    )
    return Tell(str(error), trouble=True, lasts=True, event=LogEvent.PARTICIPANT_ALWAYS_LATE)
