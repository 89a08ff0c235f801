"""FLEET-12, FLEET-13: which sinks a worker starts first, which wait, and what memory they may take.

Its warm parent only notes what it is asked.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.control_protocol.errors import ConfigurationError, StopSink
from headgate.runtime.fleet import worker as module
from headgate.runtime.fleet.sink_life import LifeState, Wanted
from headgate.runtime.fleet.spec_source import DesiredSink, ToldSink, Usage
from headgate.runtime.fleet.warm_parent import failure_event
from headgate.runtime.fleet.worker import MIB, Limits, Worker


class Lagging:
    """Wants sinks that have so much to read."""

    jvm = 0
    memory_mib: int | None = None
    told: Sequence[ToldSink] = ()

    def __init__(self, **lags: int) -> None:
        self._lags = lags

    def read_desired_sinks(self) -> Mapping[str, DesiredSink]:
        return {
            name: DesiredSink(
                Path(f"{name}.toml"),
                Wanted("1", jvm_mib=self.jvm),
                self.memory_mib,
                lag_records=lag,
            )
            for name, lag in self._lags.items()
        }

    def report_sinks(self, told: Sequence[ToldSink], now_ms: int) -> None:
        self.told = told

    def begin_leaving_and_has_left(self) -> bool:
        return True

    def close(self) -> None:
        """Close nothing."""


def started(worker: Any) -> list[str]:
    """The sinks that it has asked for since the last time, after one more turn."""
    worker._parent = SimpleNamespace(stdin=io.BytesIO())
    worker._reconcile()
    return [json.loads(line)["start"] for line in worker._parent.stdin.getvalue().splitlines()]


def made(source: Lagging, starts: int, jvms_mib: int = 0) -> Any:
    worker: Any = Worker(lambda: source, [], Limits(jvms_mib=jvms_mib, starts=starts))
    worker._source = source
    return worker


def test_fleet_12_who_has_most_to_read_is_started_first() -> None:
    worker = made(Lagging(idle=0, far=1_000_000, behind=700, near=3), 2)
    assert started(worker) == ["far.toml", "behind.toml"]
    for pid, sink in enumerate(("far", "behind"), start=1):
        said = {"turned": pid, "sink": sink, "state": "running", "doing": "", "report": {}}
        worker._on_event(said)
    assert started(worker) == ["near.toml", "idle.toml"]


def test_fleet_12_what_a_sink_said_itself_counts_more_than_what_was_told_before() -> None:
    worker = made(Lagging(a=1_000, b=10), 2)
    assert started(worker) == ["a.toml", "b.toml"]
    for pid, (sink, lag) in enumerate((("a", 0), ("b", 9)), start=1):
        report = {"lag_records": lag}
        worker._on_event(
            {"turned": pid, "sink": sink, "state": "running", "doing": "", "report": report}
        )
    assert sorted(worker._lives, key=worker._start_rank) == ["b", "a"]


def test_a_process_that_cannot_be_started_is_an_error_of_its_sink_and_tried_again() -> None:
    worker = made(Lagging(a=3), 9, jvms_mib=3_200)
    worker._source.jvm = 1_500
    assert started(worker) == ["a.toml"]
    text = "[Errno 11] Resource temporarily unavailable"
    for request in ("pause", "start"):
        worker._on_event({"unstarted": request, "sink": "a", "text": text})
        assert worker._lives["a"].state is LifeState.IDLE, "its table is asked another time"
    worker._on_event({"unstarted": "", "sink": "a", "text": text})
    life = worker._lives["a"]
    assert (life.state, life.code, life.tries) == (LifeState.ERROR, "HG-126", 1)
    assert text in life.text
    assert not life.promised_jvm_mib
    worker._lives["a"] = replace(life, due_ms=0)
    assert started(worker) == ["a.toml"]


def test_fleet_13_a_worker_takes_as_many_jvms_as_its_memory_allows_and_says_who_waits() -> None:
    source = Lagging(a=3, b=2, c=1)
    source.jvm = 1_500
    worker = made(source, 9, jvms_mib=3_200)
    assert started(worker) == ["a.toml", "b.toml"]
    for pid, sink in enumerate("ab", start=900_001):
        worker._on_event({"started": pid, "sink": sink})
    worker._told_s = 0.0
    assert started(worker) == []
    waits = {each.name: each.waits_for for each in source.told}
    assert (waits["a"], waits["b"]) == ("", "")
    assert waits["c"].startswith("waits for memory: with its JVM it may take 1,500 MiB")
    worker._on_event({"ended": 900_001, "status": 0})
    assert started(worker) == ["c.toml"], "there is room once a has ended"


def test_fleet_13_who_never_fits_waits_and_holds_up_nobody() -> None:
    source = Lagging(a=3)
    source.jvm = 5_000
    worker = made(source, 9, jvms_mib=3_200)
    assert started(worker) == []
    source.jvm = 0
    worker._looked_s = 0.0
    assert started(worker) == ["a.toml"], "it has no JVM of its own any more"


def test_last_words_of_a_request_that_come_before_its_parents_are_not_the_sinks() -> None:
    """They share a pipe, and the parent may be descheduled, or find it full, after its fork."""
    worker = made(Lagging(a=1), 1)
    assert started(worker) == ["a.toml"]
    worker._on_event({"started": 900_001, "sink": "a"})
    error = ConfigurationError("no file holds the secret", "name one")
    worker._on_event({**failure_event(error, "a", of_request=True), "failed": 900_002})
    worker._on_event({"asks": 900_002, "sink": "a"})
    worker._on_event({"ended": 900_002, "status": 256})
    assert worker._lives["a"].pid == 900_001
    assert not worker._asking


def test_first_words_of_a_sink_that_come_before_its_parents_are_its_own() -> None:
    worker = made(Lagging(a=1), 1)
    assert started(worker) == ["a.toml"]
    worker._on_event({**failure_event(StopSink("no"), "a"), "failed": 900_001})
    assert worker._lives["a"].pid == 900_001


class Measured:
    """Stands for a watch of a process that takes so much memory."""

    taken_mib = 0

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def usage(self) -> Usage:
        return Usage(self.taken_mib * MIB)

    def update_usage(self, *_: object, **__: object) -> None:
        """It takes what it takes."""


@pytest.mark.parametrize("whose_end", ["the sink's", "the worker's", "the promise's"])
@pytest.mark.parametrize(("taken_mib", "killed"), [(4_000, False), (4_097, True)])
def test_who_leaves_may_take_what_it_was_allowed_before_and_its_kill_is_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    whose_end: str,
    taken_mib: int,
    killed: bool,
) -> None:
    monkeypatch.setattr(module, "ProcessWatch", Measured)
    monkeypatch.setattr(Measured, "taken_mib", taken_mib)
    for signals in ("send_term_signal", "kill_group", "kill_process_and_group"):
        monkeypatch.setattr(module, signals, lambda _: None)
    source = Lagging(a=1)
    source.memory_mib = 4_096
    worker = made(source, 1)
    assert started(worker) == ["a.toml"]
    worker._on_event({"started": 900_001, "sink": "a"})
    if whose_end == "the worker's":
        worker._ends = True
    elif whose_end == "the promise's":
        source.jvm = source.memory_mib = 1_500
    else:
        source._lags = {}
    worker._looked_s = worker._watched_s = 0.0
    started(worker)
    life = worker._lives["a"]
    assert (life.state, life.killed) == (LifeState.STOPPING, killed)
    worker._on_event({"ended": 900_001, "status": 9})
    assert ("a" in worker._lives) == (whose_end == "the promise's")
    told = [each.message for each in caplog.records if "HG-109" in each.message]
    assert len(told) == killed
