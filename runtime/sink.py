"""Runs a participant turn by turn for its caller: sinks may share a process, or a thread."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.current_sink import working_for_sink
from headgate.participant.state import State
from headgate.runtime.assembly import new_sender, open_sink
from headgate.runtime.process_notices import announcing_end
from headgate.runtime.telemetry.sink_metrics import SinkMeters

TURN_MS = 50
IDLE_MS = 500
"""How late an idle participant may take part in a rebalance; the control topic wakes it at once."""


class Sink:
    """One participant of a sink, with the coordinator inside. Use it from one thread.

    A turn takes part for a moment: call ``turn`` again and again, at least once every few seconds,
    as ``headgate run`` does. Long work happens in its own threads. Each method raises the
    ``HeadgateError`` that ends the sink. A sink that ends does not end the others::

        with headgate.Sink(one) as trips, headgate.Sink(other) as zones:
            while running:
                trips.turn()
                zones.turn()

    As a context manager it leaves in order, or tells ``headgate status`` which error ended it. Only
    one sink of a process can write with Spark, because the session belongs to the process.
    """

    def __init__(self, settings: SinkSettings, measures: SinkMeters | None = None) -> None:
        """Open everything and join the group."""
        self._left = False
        self._name = settings.name
        sender = new_sender()
        with working_for_sink(self._name), ExitStack() as opening:
            opening.enter_context(announcing_end(settings, sender))
            self._driver = opening.enter_context(open_sink(settings, sender, measures))
            self._open = opening.pop_all()

    def turn(self, timeout_ms: int = TURN_MS, *, idle_ms: int = 0) -> None:
        """Run one iteration, which waits for at most ``timeout_ms``.

        Where a sink has its thread for itself, ``idle_ms`` may be longer: it waits that long while
        nothing is due. What the control topic brings ends the wait.
        """
        with working_for_sink(self._name):
            longest_ms = max(timeout_ms, idle_ms)
            self._driver.run_once(self._driver.ms_to_wait_for_log(timeout_ms, longest_ms))

    def adopt_settings(self, settings: SinkSettings) -> None:
        """Adopt other intervals and limits, from the next START on."""
        self._driver.adopt_settings(settings)

    @property
    def state(self) -> State:
        return self._driver.state

    @property
    def leads(self) -> bool:
        """Return whether this process coordinates the sink."""
        return self._driver.leads

    def leave(self) -> None:
        """Finish and announce what is written, and give up the partitions; no turn may follow."""
        if not self._left:
            self._left = True
            with working_for_sink(self._name):
                self._driver.close()

    def close(self) -> None:
        """Leave in order, and close everything."""
        with working_for_sink(self._name), self._open:
            self.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            with working_for_sink(self._name):
                self._open.__exit__(kind, error, trace)
