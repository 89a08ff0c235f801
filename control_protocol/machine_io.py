"""Defines what both machines share: inputs, actions, deadlines, and the wait before a retry.

A machine is a function ``step(state, input, now_ms) -> (state, actions)`` without clock, chance or
I/O. ``machine_driver`` gives it these: it feeds inputs, executes the actions in order, and feeds
back what they answer. What only one machine knows stands in its own ``inputs_and_actions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Event, LogRecord
from headgate.control_protocol.identifiers import Epoch, TransactionNumber
from headgate.control_protocol.log_event_names import LogEvent

# ------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Heard:
    """Brings the next record of this sink on the control log; a status comes whole (LOG-2)."""

    record: LogRecord


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """Says that the control log lost its continuity; earlier events are void (LOG-3)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Says that time has passed."""


# ------------------------------------------------------------------------------------ actions


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """Holds an event that is to be appended.

    A participant recognises it by its ``sequence`` when it is heard, so that its machine gives it
    one; a coordinator recognises the event itself, and its driver numbers what has none (0).
    """

    epoch: Epoch
    transaction: TransactionNumber
    event: Event
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """Append in order, statuses in parts.

    Success comes back as ``Heard``, a failure as the machine's own input for it. After a failure
    the events may be in the log all the same: only what was heard is said (LOG-1).
    """

    events: tuple[OutgoingEvent, ...]


@dataclass(frozen=True, slots=True)
class LogLine:
    """Write a line for people to the log, by its name.

    ``trouble``: as a warning; ``lasts``: it has repeated, so that ``headgate status`` shows it.
    """

    text: str
    trouble: bool = False
    lasts: bool = field(default=False, kw_only=True)
    event: LogEvent = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Stop:
    """Stops the sink with this error."""

    error: HeadgateError


# --------------------------------------------------------------------------------------- time

Timer = TypeVar("Timer", bound=Enum)
"""The names of a machine's deadlines. One that is not set is absent from its mapping."""


def deadlines_with(
    deadlines: Mapping[Timer, int], timer: Timer, at_ms: int | None
) -> Mapping[Timer, int]:
    """Return the deadlines with this one set to a time, or cleared (``None``)."""
    if at_ms is None:
        return {each: due_ms for each, due_ms in deadlines.items() if each is not timer}
    return {**deadlines, timer: at_ms}


def is_due(deadlines: Mapping[Timer, int], timer: Timer, now_ms: int) -> bool:
    """Return whether a deadline is set and over."""
    return timer in deadlines and now_ms >= deadlines[timer]


def is_waiting(deadlines: Mapping[Timer, int], timer: Timer, now_ms: int) -> bool:
    """Return whether a deadline is set and not over yet: something may not happen before it."""
    return timer in deadlines and now_ms < deadlines[timer]


def ms_until_due(
    deadlines: Mapping[Timer, int], last_tick_ms: int, now_ms: int, max_ms: int
) -> int:
    """Return how long nothing becomes due, at most ``max_ms``.

    What was due when the machine was last told the time has been done, or only held something back.
    """
    coming = (max(0, due_ms - now_ms) for due_ms in deadlines.values() if due_ms > last_tick_ms)
    return min((max_ms, *coming))


_DOUBLINGS_MAX = 16


def backoff_ms(failures: int, first_ms: int, max_ms: int) -> int:
    """Return the wait before the next attempt: it doubles with each earlier failure, to a limit."""
    return min(first_ms << min(failures, _DOUBLINGS_MAX), max_ms)
