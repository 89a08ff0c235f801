"""Waits outside of the group, and looks at the table now and then.

While an operator keeps the sink stopped, or after this process has left the lead to others (E2).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing

from headgate.control_protocol.errors import HeadgateError, RetryLater, TableMissing
from headgate.sink.settings import SinkSettings
from headgate.sink.sink_tables import looked_at

LOOKED_AT_S = 3.0
_TURN_S = 0.25


def stopped(settings: SinkSettings) -> bool:
    """Return whether the table says that an operator stopped the sink.

    Raises what opening the table raises; a catalog that does not exist yet stops nobody.
    """
    with looked_at(settings) as tables:
        try:
            primary = tables.primary
        except TableMissing:
            return False
        with closing(primary.open(tables.name)) as table:
            record = table.read().record
    return record is not None and record.stopped


def may_work(settings: SinkSettings) -> bool:
    """Return whether to take part; what cannot be read now will fail when the sink opens."""
    try:
        return not stopped(settings)
    except HeadgateError:
        return True


def rest(settings: SinkSettings, stop: threading.Event, turned: Callable[[], None]) -> None:
    """Return once an operator has started the sink, or ``stop`` is set.

    While the table is unreachable, the sink stays stopped.
    """
    _wait(lambda: not stopped(settings), stop, turned, LOOKED_AT_S)


def stay_away(
    settings: SinkSettings, stop: threading.Event, turned: Callable[[], None], away_s: float
) -> None:
    """Return after this time, once the table can be read from here, or ``stop`` is set."""

    def readable() -> bool:
        stopped(settings)
        return True

    _wait(readable, stop, turned, away_s)


def _wait(
    over: Callable[[], bool], stop: threading.Event, turned: Callable[[], None], first_s: float
) -> None:
    due_s = time.monotonic() + first_s
    while not stop.wait(_TURN_S):
        turned()
        if time.monotonic() < due_s:
            continue
        try:
            if over():
                return
        except RetryLater:
            pass
        except HeadgateError:
            return  # the table is gone or refused: opening the sink reports it
        due_s = time.monotonic() + LOOKED_AT_S
