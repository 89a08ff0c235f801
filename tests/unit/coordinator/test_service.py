"""The coordinator's thread exists exactly while this member owns the election partition
(ELECTION-1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import Queue

import pytest
from protocol.coordinating import IDENTITY, SETTINGS
from protocol.values import P0, P1, SINK

from headgate.control_protocol.call_progress import note_call_progress
from headgate.control_protocol.errors import CallHangs, ControlTopicUnfit, TableMissing
from headgate.control_protocol.testing import (
    FakeCatalog,
    FakeClock,
    FakeLog,
    FakeLogServer,
    FakeSource,
    FakeTable,
    FakeTopics,
)
from headgate.coordinator.driver import CoordinatorDriver, StartAt, World
from headgate.coordinator.service import HANGS_S, STOOD_STILL_S, CoordinatorService

LEADS, FOLLOWS = frozenset({P0, P1}), frozenset({P1})


class Lives:
    """Opens the ports of each life, in memory, and counts what was opened and closed."""

    def __init__(self) -> None:
        self.catalog, self.source = FakeCatalog(), FakeSource()
        self.source.create_or_replace("trips", 2)
        self.clock = FakeClock()
        self.server = FakeLogServer(self.clock)
        self.opened = self.closed = 0
        self.began = threading.Event()

    def open(self) -> tuple[CoordinatorDriver, Callable[[], None]]:
        table = FakeTable(self.catalog, SINK)
        topics = FakeTopics(self.source, ("trips",))
        world = World(FakeLog(self.server), table, topics, self.clock)
        self.opened += 1
        self.began.set()
        return CoordinatorDriver(IDENTITY, SETTINGS, world, StartAt()), self.close

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def lives() -> Lives:
    return Lives()


@pytest.fixture
def service(lives: Lives) -> Iterator[CoordinatorService]:
    made = CoordinatorService(("trips",), lives.open)
    yield made
    made.close()


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "headgate-coordinator"]


def test_it_runs_while_the_election_partition_is_owned(
    service: CoordinatorService, lives: Lives
) -> None:
    service.on_assignment(FOLLOWS)
    assert threads() == []
    service.on_assignment(LEADS)
    assert len(threads()) == 1
    service.on_assignment(LEADS)

    assert len(threads()) == 1
    assert lives.opened <= 1


def test_hc34_f10_on_loss_the_thread_is_joined_before_anything_else(
    service: CoordinatorService, lives: Lives
) -> None:
    service.on_assignment(LEADS)
    lives.began.wait(10)
    service.on_assignment(FOLLOWS)

    assert threads() == []
    assert (lives.opened, lives.closed) == (1, 1)


def test_f02_each_time_it_leads_again_a_new_life_begins(
    service: CoordinatorService, lives: Lives
) -> None:
    for _ in range(3):
        lives.began.clear()
        service.on_assignment(LEADS)
        lives.began.wait(10)
        service.on_assignment(FOLLOWS)

    assert (lives.opened, lives.closed) == (3, 3)


def test_settings_that_are_adopted_while_its_ports_are_opened_are_used(lives: Lives) -> None:
    longer = replace(SETTINGS, commit_interval_ms=10 * SETTINGS.commit_interval_ms)
    opened = threading.Event()

    def open_slowly() -> tuple[CoordinatorDriver, Callable[[], None]]:
        driver, close = lives.open()
        opened.wait(10)
        return driver, close

    service = CoordinatorService(("trips",), open_slowly)
    service.on_assignment(LEADS)
    lives.began.wait(10)
    service.adopt_settings(longer)
    opened.set()
    until = time.monotonic() + 10
    while not (service.driver and service.driver.state.settings == longer):
        assert time.monotonic() < until
        time.sleep(0.001)
    service.close()


def test_hc35_closing_twice_is_closing_once(service: CoordinatorService, lives: Lives) -> None:
    service.on_assignment(LEADS)
    lives.began.wait(10)
    service.close()
    service.close()

    assert threads() == []
    assert lives.closed == 1


def test_w6_f13_why_it_stopped_for_good_is_told_and_its_ports_are_closed(
    service: CoordinatorService, lives: Lives
) -> None:
    lives.catalog.drop()
    service.on_assignment(LEADS)
    while service.failure() is None and threads():
        service.on_assignment(LEADS)

    assert isinstance(service.failure(), TableMissing)
    assert lives.closed == 1


def test_one_that_failed_is_not_begun_again(lives: Lives) -> None:
    def refuse() -> tuple[CoordinatorDriver, Callable[[], None]]:
        lives.opened += 1
        raise ControlTopicUnfit("the control topic has two partitions")

    service = CoordinatorService(("trips",), refuse)
    service.on_assignment(LEADS)
    service.close()
    assert isinstance(service.failure(), ControlTopicUnfit)
    service.on_assignment(LEADS)

    assert threads() == []
    assert lives.opened == 1


class Panic(BaseException):
    """What a library of Rust raises where it fails (``pyo3_runtime.PanicException``)."""


def test_what_is_no_exception_of_python_s_ends_it_all_the_same() -> None:
    """Otherwise its thread is gone without a word, and taken for one whose call hangs."""

    def panic() -> tuple[CoordinatorDriver, Callable[[], None]]:
        raise Panic("called `Option::unwrap()` on a `None` value")

    service = CoordinatorService(("trips",), panic)
    service.on_assignment(LEADS)
    service.close()
    failure = service.failure()
    assert isinstance(failure, RuntimeError), "what passes all handlers would end other sinks"
    assert "Panic: called `Option::unwrap()`" in str(failure)


def test_a_call_that_does_not_return_ends_the_leader_and_keeps_nobody_waiting(
    lives: Lives,
) -> None:
    now_s, hung, released = [0.0], threading.Event(), threading.Event()

    def hang() -> tuple[CoordinatorDriver, Callable[[], None]]:
        hung.set()
        released.wait(60)
        return lives.open()

    service = CoordinatorService(("trips",), hang, monotonic_s=lambda: now_s[0])
    service.on_assignment(LEADS)
    assert hung.wait(10)
    now_s[0] = stopped_s = 2 * HANGS_S
    service.on_assignment(LEADS)
    assert service.failure() is None, "the process was stopped, and its call with it"
    while now_s[0] < stopped_s + HANGS_S:
        now_s[0] += STOOD_STILL_S
        service.on_assignment(LEADS)
        assert service.failure() is None
    now_s[0] += 1
    service.on_assignment(LEADS)
    failure = service.failure()
    assert isinstance(failure, CallHangs)
    assert (failure.code, failure.exit_code) == ("HG-405", 3)
    begun_s = time.monotonic()
    service.close()
    assert time.monotonic() - begun_s < 10
    released.set()


def test_a_call_that_goes_on_is_no_call_that_hangs_until_it_stands_still(lives: Lives) -> None:
    now_s, asked, answers = [0.0], Queue[str](), Queue[float]()

    def read_a_large_index() -> tuple[CoordinatorDriver, Callable[[], None]]:
        while asked.get() == "go on":
            note_call_progress()
            answers.put(now_s[0])
        return lives.open()

    service = CoordinatorService(("trips",), read_a_large_index, monotonic_s=lambda: now_s[0])
    service.on_assignment(LEADS)
    while now_s[0] < 3 * HANGS_S:
        now_s[0] += STOOD_STILL_S
        asked.put("go on")
        assert answers.get(timeout=10) == now_s[0]
        service.on_assignment(LEADS)
        assert service.failure() is None
    note_call_progress()  # that of another thread is not heard
    while now_s[0] <= 4 * HANGS_S:
        now_s[0] += STOOD_STILL_S
        note_call_progress()
        service.on_assignment(LEADS)
    assert isinstance(service.failure(), CallHangs)
    asked.put("end")
    service.close()


def test_turns_that_end_are_no_call_that_hangs(
    lives: Lives,
) -> None:
    now_s = [0.0]
    service = CoordinatorService(("trips",), lives.open, monotonic_s=lambda: now_s[0])
    service.on_assignment(LEADS)
    for _ in range(4):
        now_s[0] += HANGS_S / 2
        while service.driver is None or service.progressed_s < now_s[0]:
            threading.Event().wait(0.01)
        service.on_assignment(LEADS)
    assert service.failure() is None
    service.close()
