"""Plays the demo: listens to the control topic and kills the coordinator when it hurts most.

Then it waits until the other participant has written every record.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Envelope
from headgate.control_protocol.identifiers import TransactionId
from headgate.control_protocol.multipart_status import Assembler
from headgate.control_protocol.ports import ControlLog
from headgate.operations.demo.control_topic_observer import (
    CoordinatorLeads,
    FilesReported,
    Happening,
    Observation,
    ParticipantArrived,
    TransactionCommitted,
    TransactionEnding,
    pid_of,
)
from headgate.operations.demo.processes import ParticipantProcess
from headgate.operations.demo.producer import TripStream
from headgate.operations.demo.screen import Scene, Screen

COMMITS_BEFORE_KILL = 3
STUCK_SECONDS_MAX = 300.0
READ_MS = 100


@dataclass(frozen=True, slots=True)
class Kill:
    """A coordinator's death by a signal, in the middle of a transaction according to the log."""

    pid: int
    by_signal: signal.Signals | None
    transaction: TransactionId
    at_s: float


class FailoverScenario:
    """Runs until the stream is over and in the table. ``kill`` stays ``None`` without a chance."""

    def __init__(
        self,
        screen: Screen,
        log: ControlLog,
        stream: TripStream,
        participants: Sequence[ParticipantProcess],
    ) -> None:
        self.kill: Kill | None = None
        self.taken_over_s: float | None = None
        self._screen = screen
        self._log = log
        self._stream = stream
        self._participants = {participant.pid: participant for participant in participants}
        self._observation = Observation()
        self._assembler = Assembler()
        self._moved = (0, 0, 0)
        self._moved_s = time.monotonic()

    @property
    def survivors(self) -> tuple[ParticipantProcess, ...]:
        killed_pid = self.kill.pid if self.kill else None
        return tuple(p for pid, p in self._participants.items() if pid != killed_pid)

    def run(self, signals: Sequence[int] = ()) -> None:
        """Raises ``HeadgateError`` if a process ended by itself, or if nothing moves any more.

        ``signals``: those that this process received; one of them raises ``KeyboardInterrupt``.
        """
        with self._screen.opening_live_display():
            while not self._is_all_committed():
                if signals:  # the handler's own may have met a finalizer, which swallows it
                    raise KeyboardInterrupt
                for record in self._log.read(READ_MS):
                    self._on_event(record.envelope)
                for participant in self.survivors:
                    participant.require_running()
                self._require_not_stuck()
                self._screen.show_scene_if_due(self._current_scene())

    def _is_all_committed(self) -> bool:
        return (
            self._stream.confirmed_count_or_raise
            == self._stream.records
            == self._observation.table_record_count
        )

    def _current_scene(self) -> Scene:
        lives = {pid: participant.is_running for pid, participant in self._participants.items()}
        return Scene(
            self._stream.records, self._stream.confirmed_count_or_raise, self._observation, lives
        )

    def _require_not_stuck(self) -> None:
        seen = self._observation
        moved = (seen.epoch, seen.table_record_count, self._stream.confirmed_count_or_raise)
        if moved != self._moved:
            self._moved, self._moved_s = moved, time.monotonic()
        elif time.monotonic() - self._moved_s > STUCK_SECONDS_MAX:
            logs = ", ".join(str(participant.log) for participant in self.survivors)
            raise HeadgateError(f"nothing has moved for {STUCK_SECONDS_MAX:.0f} s", f"see {logs}")

    def _on_event(self, envelope: Envelope) -> None:
        whole = self._assembler.add_and_pop_if_whole(envelope)
        happening = self._observation.on_event(whole) if whole else None
        # Kill before anything is drawn: a moment later the commit might have landed.
        if isinstance(happening, TransactionEnding) and self._is_time_to_kill(happening):
            self._kill_coordinator(happening)
        elif happening:
            self._on_happening(happening)

    def _is_time_to_kill(self, end: TransactionEnding) -> bool:
        """Return whether to kill the coordinator: rows under way, and somebody to take over."""
        return (
            self.kill is None
            and self._observation.commits >= COMMITS_BEFORE_KILL
            and self._uncommitted_count > 0
            and self._is_every_participant_reading
            and pid_of(end.member) in self._participants
        )

    @property
    def _is_every_participant_reading(self) -> bool:
        """Return whether each participant has partitions."""
        seen = self._observation.participants
        reading = {pid_of(member) for member, text in seen.items() if text.owned}
        return reading >= self._participants.keys()

    @property
    def _uncommitted_count(self) -> int:
        return self._stream.confirmed_count_or_raise - self._observation.table_record_count

    def _kill_coordinator(self, end: TransactionEnding) -> None:
        pid = pid_of(end.member)
        by_signal = self._participants[pid].kill_and_find_end_signal()
        self.kill = Kill(pid, by_signal, end.transaction, time.monotonic())
        self._stream.release_withheld_records()
        how = by_signal.name if by_signal else "itself"
        self._screen.show_line(
            "kill -9",
            f"pid {pid}, the coordinator, in the middle of transaction {end.transaction}: "
            f"dead by {how}, {self._uncommitted_count:,} records on their way",
            "bold red",
        )
        self._screen.show_line(
            "silence", "Kafka misses its heartbeats after 6 s and gives its partitions to the other"
        )

    def _on_happening(self, happening: Happening) -> None:
        say = self._screen.show_line
        match happening:
            case ParticipantArrived(member, partitions):
                numbers = ", ".join(str(at.partition) for at in partitions)
                say("participant", f"pid {pid_of(member)} reads partitions {numbers}")
                if self._is_every_participant_reading:
                    self._stream.lift_backlog_limit()
            case CoordinatorLeads():
                self._on_coordinator_leads(happening)
            case FilesReported(member, transaction, records):
                if self.kill and transaction == self.kill.transaction and records:
                    say(
                        "void",
                        f"pid {pid_of(member)} wrote {records:,} rows of {transaction}; "
                        "nobody commits them, they are read again",
                    )
            case TransactionCommitted(transaction, snapshot_id, records):
                say(
                    "commit",
                    f"{transaction!s:<6} {records:>9,} rows   snapshot {snapshot_id}",
                    "bold green",
                )

    def _on_coordinator_leads(self, leader: CoordinatorLeads) -> None:
        pid = pid_of(leader.member)
        if self.kill and self.taken_over_s is None:
            self.taken_over_s = time.monotonic() - self.kill.at_s
            self._screen.show_line(
                "takeover",
                f"pid {pid} coordinates epoch {leader.epoch}, {self.taken_over_s:.1f} s after "
                "the kill; it goes on where the table stands",
                "bold cyan",
            )
        else:
            self._screen.show_line(
                "coordinator", f"pid {pid} leads epoch {leader.epoch}", "bold cyan"
            )
