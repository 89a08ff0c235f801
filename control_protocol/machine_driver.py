"""Drives a pure machine: inputs from the log and the clock, actions through the ports.

Both drivers are this one, with the calls that only theirs makes. One turn at a time, no thread.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.event_reader import Listener
from headgate.control_protocol.events import Envelope, WriteStatus
from headgate.control_protocol.identifiers import Sender, SinkName
from headgate.control_protocol.log_event_names import event_extra
from headgate.control_protocol.machine_io import (
    Append,
    Heard,
    LogLine,
    LogTruncated,
    OutgoingEvent,
    Stop,
    Tick,
    ms_until_due,
)
from headgate.control_protocol.multipart_status import split_status
from headgate.control_protocol.ports import Clock, ControlLog
from headgate.control_protocol.redaction import Redaction


class Timed(Protocol):
    """Describes what every machine's state has: when something becomes due."""

    @property
    def deadlines(self) -> Mapping[Any, int]: ...


State = TypeVar("State", bound=Timed)
Input = TypeVar("Input")
Action = TypeVar("Action")


class MachineDriver(ABC, Generic[State, Input, Action]):
    """Runs one life of one machine. Not thread-safe.

    ``step`` is called through ``_step_machine``, so that each driver names its own machine.
    """

    def __init__(
        self,
        initial: State,
        identity: tuple[SinkName, Sender],
        log: ControlLog,
        clock: Clock,
        *,
        redaction: Redaction,
        logger: logging.Logger,
    ) -> None:
        self.state = initial
        self._sink, self._sender = identity
        self._log = log
        self._clock = clock
        self._redaction = redaction
        self._logger = logger
        self._listener = Listener(log, self._sink)
        self._sequence = 0
        self._ticked_ms = 0
        self._idle = False

    def ms_to_wait_for_log(self, turn_ms: int, idle_ms: int) -> int:
        """Return how long the next turn may wait for the log: ``turn_ms``, or longer while idle.

        Idle, for at most ``idle_ms``: the last tick changed nothing, so that nothing is to be done
        before a deadline is over or the log has something, which ends the wait.
        """
        if not self._idle or self._listener.behind or not self._may_wait_until_deadline():
            return turn_ms
        now_ms = self._clock.monotonic_ms()
        return ms_until_due(self.state.deadlines, self._ticked_ms, now_ms, idle_ms)

    @abstractmethod
    def _may_wait_until_deadline(self) -> bool:
        """Return whether nothing but the log and the deadlines can give it something to do."""

    @abstractmethod
    def _step_machine(self, given: Input | Heard | LogTruncated | Tick) -> Sequence[Action]:
        """Let the machine process one input; return its actions."""

    @abstractmethod
    def _call_port(self, action: Action) -> Input | None:
        """Execute an action that only this machine asks for; return the answer, if it has one."""

    @abstractmethod
    def _on_failure(self, action: Action, error: HeadgateError) -> Input | None:
        """Return what the machine is told of a call that failed, or raise what ends the sink."""

    @abstractmethod
    def _epoch(self) -> int | None:
        """Return the epoch that log lines name."""

    def _on_appended(self, events: Sequence[OutgoingEvent]) -> None:
        """Log what people should know of these events."""

    def _on_logged(self, line: LogLine) -> None:
        """Report a line elsewhere, too."""

    def _feed_machine(self, given: Input | Heard | LogTruncated | Tick) -> None:
        """Process an input, and every answer to what it made the machine ask for.

        Answers wait behind each other, and the next input behind all of them: a machine never sees
        a record that was read before its question was answered.
        """
        inputs: deque[Input | Heard | LogTruncated | Tick] = deque([given])
        while inputs:
            for action in self._step_machine(inputs.popleft()):
                answer = self._execute(action)
                if answer is not None:
                    inputs.append(answer)

    def _execute(self, action: Action) -> Input | None:
        if isinstance(action, Stop):
            raise self._redaction.redact_in_place(action.error)
        try:
            match action:
                case Append(events):
                    self._log.append(
                        [each for said in events for each in self._make_envelopes(said)]
                    )
                    self._on_appended(events)
                case LogLine():
                    self._write_log_line(action)
                case _:
                    return self._call_port(action)
        except HeadgateError as error:
            return self._on_failure(action, error)
        return None

    def _make_envelopes(self, outgoing: OutgoingEvent) -> Iterator[Envelope]:
        """Yield the event as it goes to the log: numbered, without secrets, a status in parts."""
        if not outgoing.sequence:
            self._sequence += 1
        envelope = Envelope(
            sink=self._sink,
            epoch=outgoing.epoch,
            transaction=outgoing.transaction,
            sender=self._sender,
            sequence=outgoing.sequence or self._sequence,
            time_ms=self._clock.wall_ms(),
            event=self._redaction.redact_event(outgoing.event),
        )
        if isinstance(envelope.event, WriteStatus):
            for part in split_status(envelope.event):
                yield replace(envelope, event=part)
        else:
            yield envelope

    def _write_log_line(self, line: LogLine) -> None:
        level = logging.WARNING if line.trouble else logging.INFO
        extra = event_extra(line.event, epoch=self._epoch())
        self._logger.log(level, "sink %s: %s", self._sink, line.text, extra=extra)
        self._on_logged(line)

    def _tick(self) -> None:
        """Let the machine do what is due now."""
        self._ticked_ms, before = self._clock.monotonic_ms(), self.state
        self._feed_machine(Tick())
        self._idle = self.state is before

    def _feed_events_of_log(self, timeout_ms: int) -> None:
        """Feed what the log has, after at most ``timeout_ms`` of waiting. Raises ``RetryLater``."""
        for record in self._listener.read_events(timeout_ms):
            self._feed_machine(Heard(record))

    def _seek_log_end_and_report_gap(self) -> None:
        """Seek the log's end *before* anything is appended, since every own event must be heard;
        tell the machine if the log had broken off."""
        broken = self._listener.seek_end_and_pop_discontinuity()
        if broken is not None:
            self._feed_machine(LogTruncated(broken))
