"""Gives the participant's machine its group, log, writer and clock.

Leadership comes first: it receives the assignment after every poll, and before partitions are given
up, so that a coordinator never outlives its ownership (rule ELECTION-1).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.control_protocol.commit_record import offset_metadata_of_table
from headgate.control_protocol.errors import HeadgateError, RetryLater
from headgate.control_protocol.events import Presence, PresenceKind, WriteStatus
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.machine_driver import MachineDriver
from headgate.control_protocol.machine_io import Append, OutgoingEvent, Tick
from headgate.control_protocol.ports import BatchWriter, Clock, ControlLog, GroupMember, Leadership
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.redaction import Redaction
from headgate.participant.inputs_and_actions import (
    Action,
    AppendFailed,
    Assigned,
    BatchEnded,
    CopyOffsets,
    EndOffsetsRead,
    Input,
    ReadEndOffsets,
    ReleaseRequested,
    ReleaseTimedOut,
    Submit,
)
from headgate.participant.machine import step
from headgate.participant.state import State

_log = redacted_logger("headgate.participant")

_RELEASE_TURN_MS = 20


@dataclass(frozen=True, slots=True)
class World:
    """Holds a participant's ports. ``redaction`` masks secrets in what leaves this process."""

    group: GroupMember
    log: ControlLog
    writer: BatchWriter
    leadership: Leadership
    clock: Clock
    redaction: Redaction = field(default_factory=Redaction)


class ParticipantDriver(MachineDriver[State, Input, Action]):
    """Runs one life of one participant. Not thread-safe."""

    def __init__(self, initial: State, world: World) -> None:
        super().__init__(
            initial,
            (initial.sink, initial.sender),
            world.log,
            world.clock,
            redaction=world.redaction,
            logger=_log,
        )
        self._world = world
        self._complaint = ""

    def run_once(self, timeout_ms: int) -> None:
        """Make one turn: at most ``timeout_ms`` of waiting for the log, plus the calls it makes.

        Raises the ``StopSink`` error that ends the sink, the coordinator's included.
        """
        # Without a place in the log nothing below waits: an outage must not make the loop spin.
        self._world.group.poll(timeout_ms if self._listener.behind else 0)
        assignment = self._world.group.assignment()
        # Before this participant acts on it: a coordinator without its partition stops first
        # (ELECTION-1).
        self._world.leadership.on_assignment(assignment)
        failure = self._world.leadership.failure()
        if isinstance(failure, HeadgateError):
            raise self._world.redaction.redact_in_place(failure)
        if failure is not None:
            raise failure
        if self._try_seek_log_end_if_behind():
            self._feed_machine(Assigned(assignment))
            self._take_in_batch_and_events(timeout_ms)
        self._tick()

    def release(self, partitions: frozenset[TopicPartition]) -> None:
        """Announce what is written, bounded in time (POSITION-1), because the group takes these
        away.

        Called by the group's adapter inside ``poll``, before the partitions are released.
        """
        self._world.leadership.on_assignment(frozenset(self.state.work.owned) - partitions)
        deadline_ms = self._world.clock.monotonic_ms() + self.state.settings.release_timeout_ms
        self._feed_machine(ReleaseRequested(partitions))
        while self._should_go_on_releasing(deadline_ms):
            # This also paces the loop when no batch runs.
            self._feed_batch_outcome(_RELEASE_TURN_MS)
            self._take_in_batch_and_events(0)
            self._feed_machine(Tick())
        self._feed_machine(ReleaseTimedOut())

    def _should_go_on_releasing(self, deadline_ms: int) -> bool:
        """Return ``False`` once the log lost its place: events void the work, or go unheard."""
        in_time = self._world.clock.monotonic_ms() < deadline_ms
        return bool(self.state.work.leaving) and in_time and not self._listener.behind

    def close(self) -> None:
        """Announce what is written and give up every partition; the ports stay open."""
        self.release(frozenset(self.state.work.owned))

    def _try_seek_log_end_if_behind(self) -> bool:
        """Return whether the log is positioned, so that every event is heard."""
        try:
            if self._listener.behind:
                self._seek_log_end_and_report_gap()
                self._complaint = ""
        except RetryLater as error:
            if str(error) != self._complaint:  # once per outage, and not twenty times a second
                _log.warning("%s", error, extra=event_extra(LogEvent.CONTROL_TOPIC_UNAVAILABLE))
            self._complaint = str(error)
        return not self._listener.behind

    def _take_in_batch_and_events(self, timeout_ms: int) -> None:
        """Take in what the writer and the log have."""
        self._feed_batch_outcome(0)
        try:
            self._feed_events_of_log(timeout_ms)
        except RetryLater as error:
            _log.warning("%s", error)

    def _feed_batch_outcome(self, timeout_ms: int) -> None:
        outcome = self._world.writer.wait_for_outcome(timeout_ms)
        if outcome is not None:
            self._feed_machine(BatchEnded(outcome))

    def _step_machine(self, given: Input) -> Sequence[Action]:
        was_paused = self.state.term.paused
        self.state, actions = step(self.state, given, self._clock.monotonic_ms())
        if self.state.term.paused is not was_paused:
            log_operator_pause_or_resume(_log, self.state)
        return actions

    def _call_port(self, action: Action) -> Input | None:
        match action:
            case ReadEndOffsets(partitions):
                group = self._world.group
                return EndOffsetsRead(
                    group.end_offsets(sorted(partitions)), full=group.is_buffer_full()
                )
            case Submit(batch):
                self._world.writer.submit(batch)
            case CopyOffsets(offsets, uuid):
                self._world.group.copy_offsets_to_group(
                    offsets, offset_metadata_of_table(uuid, self._sink)
                )
        return None

    def _on_failure(self, action: Action, error: HeadgateError) -> Input:
        match action, error:
            case Append(), RetryLater():
                return AppendFailed(str(error))
            case ReadEndOffsets(), RetryLater():
                _log.warning("%s", error)
                return EndOffsetsRead({})
        raise error

    def _on_appended(self, events: Sequence[OutgoingEvent]) -> None:
        for event in events:
            log_own_event(_log, self._sink, event)

    def _epoch(self) -> int:
        return self.state.term.epoch

    def _may_wait_until_deadline(self) -> bool:
        """A batch ends at any time, and so does the wait for the first partition."""
        work = self.state.work
        return bool(work.owned) and not work.leaving and self.state.run.batch is None


# ----------------------------------- for people: most participants have no coordinator that would

_EVENT_OF_PRESENCE = {
    PresenceKind.JOINED: LogEvent.PARTITIONS_JOINED,
    PresenceKind.GAINED: LogEvent.PARTITIONS_GAINED,
    PresenceKind.LOST: LogEvent.PARTITIONS_LOST,
}
_SHOWN_MAX = 20


def log_own_event(log: logging.Logger, sink: str, said: OutgoingEvent) -> None:
    """Log one line for partitions gained or lost, and for a status that names rows or a failure."""
    event = said.event
    if isinstance(event, Presence) and event.concerns:
        named = sorted(map(str, event.concerns))
        more = f" and {len(named) - _SHOWN_MAX} more" if len(named) > _SHOWN_MAX else ""
        extra = event_extra(_EVENT_OF_PRESENCE[event.kind], epoch=said.epoch, partitions=len(named))
        text = ", ".join(named[:_SHOWN_MAX]) + more
        log.info("sink %s: %s %s", sink, event.kind.value, text, extra=extra)
    elif isinstance(event, WriteStatus):
        rows = sum(each.records for each in event.written.values())
        if rows or event.failure:
            ids = {"epoch": said.epoch, "transaction": said.transaction, "rows": rows}
            extra = event_extra(LogEvent.STATUS_ANNOUNCED, **ids)
            text = f"{rows} rows announced for transaction {said.epoch}.{said.transaction}"
            if event.failure:
                text += f", and {len(event.unknown)} partitions are not written: {event.failure}"
            log.info("sink %s: %s", sink, text, extra=extra)


def log_operator_pause_or_resume(log: logging.Logger, state: State) -> None:
    """Log that an operator's request to pause or resume took effect, whoever coordinates."""
    event, text = LogEvent.FETCH_RESUMED, "fetches again"
    if state.term.paused:
        event, text = LogEvent.FETCH_PAUSED, "paused: nothing is fetched until headgate resume"
    log.info("sink %s: %s", state.sink, text, extra=event_extra(event, epoch=state.term.epoch))
