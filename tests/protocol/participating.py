"""Drives a participant: the pure machine, a numeric source, and a clock that the test moves.

``Participant.writing(...)`` is one that owns partitions, knows its positions and has a transaction
open. What it appends stays in ``unheard`` until the test lets it hear itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from protocol.values import ALICE, COORDINATOR, SINK, TABLE, data_file, folder, log_record
from support.participant_states import check_step

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import (
    AckCommit,
    EndCommit,
    Event,
    Limits,
    LogRecord,
    Presence,
    StartCommit,
    TableStart,
    WriteStatus,
)
from headgate.control_protocol.identifiers import ControlOffset, Sender, TopicPartition
from headgate.control_protocol.machine_io import Append, Heard, OutgoingEvent, Tick
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch, BatchFailed, BatchWritten, PartitionResult
from headgate.participant.inputs_and_actions import (
    Action,
    AppendFailed,
    Assigned,
    BatchEnded,
    EndOffsetsRead,
    Input,
    ReadEndOffsets,
    Submit,
)
from headgate.participant.machine import step
from headgate.participant.settings import ParticipantSettings
from headgate.participant.state import Phase, State, Timer

SETTINGS = ParticipantSettings(
    batch_records_max=100,
    presence_interval_ms=10_000_000,
    end_offset_interval_ms=100,
    release_timeout_ms=1_000,
    retry_backoff_ms=50,
)
_Wanted = TypeVar("_Wanted", bound=Action)


class Participant:
    def __init__(self, sender: Sender = ALICE, settings: ParticipantSettings = SETTINGS) -> None:
        self.state = State(SINK, sender, settings, deadlines={Timer.ALIVE: 9_000_000})
        self.now_ms = 1_000_000
        self.next_offset = 10
        self.actions: tuple[Action, ...] = ()
        self.unheard: list[OutgoingEvent] = []
        self.heard: list[LogRecord] = []
        self.walk: list[tuple[Phase, Phase]] = []

    @classmethod
    def writing(
        cls, at: Offsets, epoch: int = 1, settings: ParticipantSettings = SETTINGS
    ) -> Participant:
        """Owns the partitions of ``at``, has heard its own PRESENCE, then START 1 of the epoch."""
        made = cls(settings=settings)
        made.owns(*at)
        made.hears_itself()
        made.start(1, at, epoch=epoch)
        return made

    # ------------------------------------------------------------------------------- inputs

    def given(self, given: Input) -> None:
        before = self.state
        self.state, self.actions = step(before, given, self.now_ms)
        check_step(before, self.state)
        self.unheard += [draft for append in self.all(Append) for draft in append.events]
        if self.phase is not before.phase:
            self.walk.append((before.phase, self.phase))

    def waits(self, ms: int) -> None:
        self.now_ms += ms
        self.given(Tick())

    def owns(self, *partitions: TopicPartition) -> None:
        self.given(Assigned(frozenset(partitions)))

    def append_fails(self) -> None:
        self.unheard = []
        self.given(AppendFailed("no confirmation in time"))

    def hears(
        self,
        event: Event,
        sender: Sender = COORDINATOR,
        *,
        epoch: int = 1,
        transaction: int = 0,
        sequence: int = 0,
    ) -> int:
        """Returns the place in the log."""
        at = self.next_offset
        self.next_offset += 1
        heard = log_record(
            at, event, sender, epoch=epoch, transaction=transaction, sequence=sequence
        )
        self.heard.append(heard)
        self.given(Heard(heard))
        return at

    def hears_itself(self) -> list[int]:
        """All that it appended and did not hear yet, in order; returns the places in the log."""
        said, self.unheard = self.unheard, []
        return [
            self.hears(
                draft.event,
                self.state.sender,
                epoch=draft.epoch,
                transaction=draft.transaction,
                sequence=draft.sequence,
            )
            for draft in said
        ]

    def start(
        self, number: int, at: Offsets, *, epoch: int = 1, settled_to: int | None = None
    ) -> int:
        """START; without ``settled_to`` the epoch's first one, whose L is behind itself."""
        return self.hears(started(number, at, epoch, settled_to), epoch=epoch, transaction=number)

    def end(self, number: int, *, epoch: int = 1) -> int:
        return self.hears(EndCommit(), epoch=epoch, transaction=number)

    def ack(self, number: int, at: Offsets, settled_to: int, *, epoch: int = 1) -> int:
        event = AckCommit(ControlOffset(settled_to), at)
        return self.hears(event, epoch=epoch, transaction=number)

    def source_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Answer the question for the source's ends, which must have been asked."""
        asked = self.only(ReadEndOffsets).partitions
        self.given(EndOffsetsRead({p: end for p, end in ends.items() if p in asked}))

    def batch_written(self) -> None:
        """The running batch ends well: a row per offset, all in one file."""
        batch = self.batch
        results = {p: PartitionResult(r, len(r), 10 * len(r)) for p, r in batch.ranges.items()}
        path = f"{batch.table.file_prefix}/batch-{batch.number}.parquet"
        files = (data_file(path, sum(map(len, batch.ranges.values()))),)
        self.given(BatchEnded(BatchWritten(batch.number, results, files)))

    def batch_failed(
        self, reason: str = "disk full", *, fatal: HeadgateError | None = None
    ) -> None:
        self.given(BatchEnded(BatchFailed(self.batch.number, reason, fatal)))

    def writes(self, ends: Mapping[TopicPartition, int]) -> None:
        """Look at the source's ends and write all there is, as one batch."""
        if not self.all(ReadEndOffsets):
            self.waits(SETTINGS.end_offset_interval_ms)
        self.source_ends(ends)
        self.batch_written()

    def answers(
        self, number: int, ends: Mapping[TopicPartition, int], *, epoch: int = 1
    ) -> WriteStatus:
        """END, a last batch up to these ends, and the answer."""
        self.end(number, epoch=epoch)
        self.source_ends(ends)
        if self.state.run.batch is not None:
            self.batch_written()
        return self.status

    # ------------------------------------------------------------------------------ outputs

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def batch(self) -> Batch:
        assert self.state.run.batch is not None
        return self.state.run.batch

    @property
    def submitted(self) -> list[Batch]:
        return [submit.batch for submit in self.all(Submit)]

    @property
    def said(self) -> list[WriteStatus | Presence]:
        """The events that the last input made it append."""
        events = [draft.event for append in self.all(Append) for draft in append.events]
        return [event for event in events if isinstance(event, WriteStatus | Presence)]

    @property
    def status(self) -> WriteStatus:
        """The one status that the last input made it append."""
        (said,) = [event for event in self.said if isinstance(event, WriteStatus)]
        return said

    @property
    def presence(self) -> Presence:
        (said,) = [event for event in self.said if isinstance(event, Presence)]
        return said

    @property
    def positions(self) -> Offsets:
        return Offsets(self.state.positions)

    def all(self, kind: type[_Wanted]) -> list[_Wanted]:
        return [action for action in self.actions if isinstance(action, kind)]

    def only(self, kind: type[_Wanted]) -> _Wanted:
        (action,) = self.all(kind)
        return action


def started(number: int, at: Offsets, epoch: int, settled_to: int | None) -> StartCommit:
    table = TableStart(TABLE, "uuid-1", 0, 0, folder(epoch, number))
    place = None if settled_to is None else ControlOffset(settled_to)
    return StartCommit(place, at, {}, (table,), Limits())


def claimed(said: WriteStatus) -> dict[TopicPartition, tuple[int, int]]:
    """The ranges that a status claims."""
    return {
        partition: (claim.range.begin, claim.range.end) for partition, claim in said.written.items()
    }


def rows(said: WriteStatus) -> int:
    return sum(file.records for table in said.tables for file in table.files)
