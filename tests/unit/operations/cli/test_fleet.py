"""``headgate fleet list --watch`` and ``drain`` while their own brokers do not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.signatures import Keys
from headgate.kafka.compacted_topics import CompactedRecord, TopicFacts
from headgate.operations.cli import fleet as fleet_commands
from headgate.operations.cli.main import main
from headgate.runtime.fleet import fleet_topics
from headgate.runtime.fleet.fleet_records import (
    CommandWire,
    Drain,
    FleetCommand,
    ObservedSink,
    ObservedWorker,
    SinkSpec,
    encode_observed,
    state_topic_key_of,
)
from headgate.runtime.fleet.sink_life import LOST_AFTER_MS, LifeState

BEGUN_MS = 1_700_000_000_000
TOPIC_ID = TopicId("fleet-1")

Run = Callable[..., list[str]]


class Brokers:
    """One sink on one worker; a script says of each read whether brokers answer from then on."""

    def __init__(self, *script: bool) -> None:
        self.script, self.answer, self.now_ms = [*script], True, BEGUN_MS
        self.opened = 0
        self.workers = [ObservedWorker(worker="w1", incarnation="i", slots=(0,))]
        self.drains: list[Drain] = []

    def admin(self, _: object) -> Brokers:
        return self

    def reader(self, *_: object, **__: object) -> Brokers:
        self.opened += 1
        return self

    def describe_topic(self, _: str) -> TopicFacts:
        if not self.answer:
            raise Unreachable("topic city: the brokers are away")
        return TopicFacts(TOPIC_ID, 1)

    def read_to_end(self, _: float) -> list[CompactedRecord]:
        spec = SinkSpec(key="trips", slot=0, number=1, file="x")
        sink = ObservedSink(
            key="trips", slot=0, number=1, worker="w1", incarnation="i", state=LifeState.RUNNING
        )
        wire = CommandWire(Keys(()), TOPIC_ID)
        asked: list[FleetCommand] = [spec, *self.drains]
        return [
            *(
                CompactedRecord("city", 0, self.opened, self.now_ms, said.key, wire.encode(said))
                for said in asked
            ),
            *(
                CompactedRecord(
                    "city-state",
                    0,
                    10 * self.opened + at,
                    self.now_ms,
                    state_topic_key_of(value),
                    encode_observed(value),
                )
                for at, value in enumerate((*self.workers, sink))
            ),
        ]

    def read_next(self, timeout_s: float) -> list[CompactedRecord]:
        time.sleep(timeout_s)
        if not self.script:
            raise KeyboardInterrupt
        self.answer = self.script.pop(0)
        self.now_ms += LOST_AFTER_MS
        return []

    def close(self) -> None:
        """Close nothing."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    file = tmp_path / "worker.toml"
    file.write_text('[fleet]\nname = "city"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n')
    monkeypatch.setattr(fleet_commands, "WATCH_S", 0.01)
    monkeypatch.setattr(fleet_topics, "LOOK_S", 0.0, raising=False)

    def run_with(brokers: Brokers, *arguments: str) -> list[str]:
        monkeypatch.setattr(fleet_topics, "TopicAdmin", brokers.admin)
        monkeypatch.setattr(fleet_topics, "CompactedReader", brokers.reader)
        monkeypatch.setattr(fleet_topics, "wall_ms", lambda: brokers.now_ms)
        return (
            CliRunner().invoke(main, ["fleet", "--fleet", str(file), *arguments]).output.split("\n")
        )

    return run_with


def test_a_watched_sink_is_not_lost_while_the_brokers_do_not_answer(run: Run) -> None:
    said = run(Brokers(False, False, True), "list", "--watch")
    assert "Aborted!" not in said, "Ctrl-C is how it ends"
    told = [line for line in said if line.startswith("trips")]
    assert ["running" in line for line in told] == [True] * 4, said
    away = [line for line in said if "the brokers are away" in line]
    assert [line.split(": ")[0] for line in away] == [
        "the brokers have not answered for 30 s",
        "the brokers have not answered for 60 s",
    ], said


def test_a_watched_sink_is_lost_once_brokers_answer_and_nobody_tells_of_it(run: Run) -> None:
    said = run(Brokers(True), "list", "--watch")
    assert [line.split()[1] for line in said if line.startswith("trips")] == ["running", "lost"]


def test_a_drain_that_cannot_be_followed_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_commands, "_change_specs_or_say_unchanged", lambda *_, **__: None)
    said = run(Brokers(*[False] * 9), "drain", "w1", "--timeout", "0.2")
    assert "HG-401" in "".join(said)
    assert "the brokers are away" in "".join(said)
    said = run(Brokers(*[True] * 9), "drain", "w1", "--timeout", "0.2")
    assert "HG-411" in "".join(said)


def test_a_drain_names_the_option_that_waits_longer(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_commands, "_change_specs_or_say_unchanged", lambda *_, **__: None)
    said = "".join(run(Brokers(*[True] * 9), "drain", "w1", "--timeout", "0.2"))
    assert "--timeout" in said
    assert "worker.session_timeout_ms" in said


GONE = ObservedWorker(worker="w1", incarnation="i", leaving=True)
OTHER = ObservedWorker(worker="w2", incarnation="j", slots=(0,))
TWIN = replace(GONE, incarnation="k", leaving=False, slots=(1,))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([GONE, OTHER], "runs no sink"),
        # The seat of a static member is kept for its session's time-out.
        ([GONE, replace(OTHER, slots=())], "HG-411"),
        ([GONE, OTHER, TWIN], "HG-411"),
        ([TWIN, GONE, TWIN, GONE, OTHER], "HG-166"),
    ],
)
def test_a_drained_worker_runs_nothing_and_others_have_its_slots(
    run: Run, monkeypatch: pytest.MonkeyPatch, told: list[ObservedWorker], expected: str
) -> None:
    monkeypatch.setattr(fleet_commands, "_change_specs_or_say_unchanged", lambda *_, **__: None)
    brokers = Brokers(*[True] * 9)
    brokers.workers = told
    brokers.drains = [Drain(worker="w1", incarnation="i", slot=0, number=2)]
    assert expected in "".join(run(brokers, "drain", "w1", "--timeout", "0.2"))
