"""The machine's elementary moves: change the phase, begin again, step down, wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headgate.control_protocol.errors import (
    HeadgateError,
    LeadershipReleased,
    MissingRights,
    StepDown,
)
from headgate.control_protocol.identifiers import Epoch
from headgate.control_protocol.log_events import LogEvent
from headgate.coordinator.actions import Action, ReadTable, Stop, Tell
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import State, Term
from headgate.coordinator.transitions import TRANSITIONS, Phase

Step = tuple[State, tuple[Action, ...]]

PATIENCE_INTERVALS = 3
PATIENCE_MS_MIN = 60_000
"""E2: a catalog that is restarted is back sooner, and a move of the primary table costs an
epoch."""

_ANSWERED = (Phase.FOLLOWING, Phase.STARTING, Phase.OPEN, Phase.CLOSING, Phase.SETTLING)
"""E2: whoever comes here got what it had asked for; a commit that is read again and again, did not.
"""


def move(state: State, phase: Phase, **changes: Any) -> State:
    """Enter the phase; a retry that was due belongs to the former one."""
    assert phase in TRANSITIONS[state.phase], f"illegal transition {state.phase} -> {phase}"
    since_ms = None if phase in _ANSWERED else state.unanswered_since_ms
    changes.setdefault("unanswered_since_ms", since_ms)
    return replace(state, phase=phase, retry_at_ms=None, **changes)


def term_of(state: State) -> Term:
    assert state.term is not None, f"phase {state.phase} has no term"
    return state.term


def recover(state: State, why: str) -> Step:
    """Begin again at the table, with a new epoch."""
    moved = move(state, Phase.RECOVERING, term=None, attempt=None, recovery_view=None)
    return moved, (
        Tell(why, trouble=state.term is not None, event=LogEvent.EPOCH_RECLAIMED),
        ReadTable(),
    )


def superseded(state: State, epoch: Epoch, now_ms: int) -> Step:
    """C9: step down at once, and log it."""
    followed = move(
        state,
        Phase.FOLLOWING,
        term=None,
        attempt=None,
        rival_heard_ms=now_ms,
        highest_epoch=max(state.highest_epoch, epoch),
        troubled={},
    )
    why = f"{StepDown.code} superseded by epoch {epoch}: steps down"
    return followed, (Tell(why, trouble=True, event=LogEvent.EPOCH_SUPERSEDED),)


def stop(state: State, error: HeadgateError) -> Step:
    return move(state, Phase.STOPPED, term=None, attempt=None), (Stop(error),)


def patience_ms(settings: CoordinatorSettings) -> int:
    """E2: return how long a leader may go without an answer while others could lead."""
    return max(PATIENCE_INTERVALS * settings.commit_interval_ms, PATIENCE_MS_MIN)


def wait(state: State, now_ms: int, why: str, *, refused: bool = False) -> Step:
    """Try again later; each wait is twice the one before, up to the configured longest.

    E2: that somebody refused it, or has no rights for it, is an answer: others would get it, too.
    """
    settings = state.settings
    doubled = settings.retry_backoff_ms * 2 ** min(state.failures, 16)
    wait_ms = min(doubled, settings.retry_backoff_max_ms)
    since_ms = now_ms if state.unanswered_since_ms is None else state.unanswered_since_ms
    answered = refused or MissingRights.code in why
    waiting = replace(
        state,
        failures=state.failures + 1,
        retry_at_ms=now_ms + wait_ms,
        unanswered_since_ms=None if answered else since_ms,
    )
    told = f"{why}; tries again in {wait_ms} ms"
    if not answered and now_ms - since_ms >= patience_ms(settings):
        told = f"{LeadershipReleased.code} keeps the lead, for nobody else was heard: {told}"
    return waiting, (Tell(told, trouble=True, event=LogEvent.COORDINATOR_RETRYING),)
