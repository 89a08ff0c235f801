"""A participant at work leaves when a person stopped the sink, told by a NOTICE."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.operations.filled_table import sink_file_text

from headgate.config.load import parse
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import SinkStopped
from headgate.control_protocol.events import Notice, NoticeKind
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.testing import (
    FakeBatchWriter,
    FakeClock,
    FakeGroup,
    FakeLog,
    FakeLogServer,
    FakeMember,
    FakeSource,
    FakeStorage,
)
from headgate.coordinator.settings import CoordinatorSettings
from headgate.participant.driver import World
from headgate.participant.state import State
from headgate.runtime.misconfigured_participant_detection import (
    ASKED_EVERY_MS,
    MisconfigurationDetector,
    Sources,
)
from headgate.runtime.participant_runner import Current, OpenSink
from headgate.runtime.process_notices import _build_envelope
from headgate.runtime.telemetry.instrumented_ports import MeteredLog

SETTINGS = parse(sink_file_text(Path("/lake")))
RECORD = CommitRecord(
    SinkName("trips"),
    "headgate-trips",
    TransactionId(Epoch(1), TransactionNumber(3)),
    Sender("worker-9", "life"),
    Offsets(),
)


class NoLeadership:
    """Stands for a ``CoordinatorService`` that does not lead, or for one that does."""

    driver: Any = None

    def __init__(self) -> None:
        self.adopted: list[CoordinatorSettings] = []
        self.adopt_settings = self.adopted.append

    def on_assignment(self, partitions: frozenset[TopicPartition]) -> None:
        """Somebody else leads."""

    def failure(self) -> None:
        return None


class Sink:
    def __init__(self) -> None:
        self.record = RECORD
        clock, source = FakeClock(), FakeSource()
        self.server = FakeLogServer(clock)
        self.service = NoLeadership()
        sources = Sources(lambda: self.record, frozenset, lambda: None)
        watch = MisconfigurationDetector(SETTINGS, sources, clock.monotonic_ms())
        world = World(
            FakeMember(FakeGroup(source, clock), "one"),
            MeteredLog(FakeLog(self.server), heard=watch.on_event),
            FakeBatchWriter(source, FakeStorage(), clock),
            self.service,
            clock,
        )
        initial = State(SETTINGS.name, Sender("one", "life"), SETTINGS.participant)
        self.current = Current(SETTINGS)
        service: Any = self.service
        self.open = OpenSink(initial, world, service, watch, current=self.current)

    def hears(self, text: str) -> None:
        notice = Notice(NoticeKind.ASKED, text=text, actor="ann@one")
        FakeLog(self.server).append(
            [_build_envelope(SETTINGS.name, Sender("operator", text), notice)]
        )

    def turns(self, ms: int = ASKED_EVERY_MS) -> None:
        for _ in range(ms // 50 + 1):
            self.open.run_once(50)


def test_it_leaves_within_a_second_of_a_notice() -> None:
    sink = Sink()
    sink.turns()
    sink.hears("pause")
    sink.turns(0)
    sink.record = replace(RECORD, stopped=True, actor="ann@one")
    sink.hears("stop")
    with pytest.raises(SinkStopped, match="ann@one"):
        sink.turns()


def test_a_forged_notice_makes_it_look_and_nothing_else() -> None:
    sink = Sink()
    sink.turns()
    before = sink.open.state
    for _ in range(5):
        sink.hears("stop")
        sink.turns()
    after = sink.open.state
    said = replace(after.said, sequence=before.said.sequence)
    assert replace(after, deadlines=before.deadlines, said=said) == before


def test_other_intervals_are_those_of_the_next_coordinator_too() -> None:
    sink = Sink()
    faster = parse(
        sink_file_text(Path("/lake"))
        + "[coordinator]\ncommit_interval_ms = 7\n[participant]\nfiles_max = 9\n"
    )
    sink.open.adopt_settings(faster)
    assert sink.open.state.settings == faster.participant
    assert sink.current.settings == faster
    assert sink.service.adopted == [faster.coordinator]
