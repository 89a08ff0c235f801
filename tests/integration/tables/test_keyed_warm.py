"""A keyed table's index is read from the claim on, in parallel to the first transaction (KEY-7)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.keyed_world import NAME, SINK, Event, KeyedWorld
from support.local_catalog import local_catalog

from headgate.control_protocol.call_progress import set_progress_callback_of_thread
from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.ports import Landed, Unknown
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.upsert import upsert_commit
from headgate.tables.iceberg.upsert.key_index import FileKeys
from headgate.tables.iceberg.upsert.key_reader import KeyReader
from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows

pytestmark = pytest.mark.integration


class Reading(KeyReader):
    """Counts the live data files that are read; ``before`` is done before each."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.count, self._before = 0, before

    def read_data_file(self, *asked: Any) -> FileKeys:
        self.count += 1
        self._before()
        return super().read_data_file(*asked)


def test_the_commit_after_a_claim_finds_the_index_read(tmp_path: Path) -> None:
    reading = Reading()
    world = _claimed(tmp_path, reading)
    _wait_until_read()
    assert reading.count == 4
    _commits(world)
    assert reading.count == 4


def test_a_commit_waits_for_the_index_that_is_being_read(tmp_path: Path) -> None:
    go_on = threading.Event()
    reading = Reading(lambda: _assert_true(go_on.wait(60)))
    world = _claimed(tmp_path, reading)
    threading.Timer(0.2, go_on.set).start()
    _commits(world)
    assert reading.count == 4


@pytest.mark.parametrize("reads_ahead", [True, False])
def test_a_commit_notes_progress_with_each_file_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reads_ahead: bool
) -> None:
    monkeypatch.setattr(upsert_commit, "_LOOKS_EACH_S", 0.01)
    go_on, noted = threading.Semaphore(0), list[str]()

    def read_next_once_the_last_was_noted() -> None:
        assert go_on.acquire(timeout=20)

    def note() -> None:
        noted.append(threading.current_thread().name)
        go_on.release()

    monkeypatch.setattr(upsert_commit, "_read_ahead_count", lambda _: 0)
    world = _claimed(tmp_path, Reading(read_next_once_the_last_was_noted), warms=reads_ahead)
    go_on.release()
    with ThreadPoolExecutor(
        1, "coordinator", set_progress_callback_of_thread, (note,)
    ) as coordinator:
        coordinator.submit(_commits, world).result()
    assert noted == ["coordinator_0"] * len(noted)
    assert len(noted) >= 3, "all but the last, behind which nothing is waited for"


def test_what_storage_refused_is_read_by_the_commit(tmp_path: Path) -> None:
    def fail() -> None:
        if threading.current_thread() is not threading.main_thread() and not mended.is_set():
            raise OSError("storage is away")

    mended = threading.Event()
    world = _claimed(tmp_path, Reading(fail))
    _wait_until_read()
    mended.set()
    _commits(world)


def test_a_long_reading_says_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upsert_commit, "_SAID_EACH_S", 0.0)
    with caplog.at_level(logging.INFO):
        _claimed(tmp_path, Reading())
        _wait_until_read()
    said = [record.getMessage() for record in caplog.records]
    *_, before, last = [text for text in said if "keys" in text]
    assert "are being read, 8 of 8 rows so far; the others take about 0 s" in before
    assert "the keys of its 8 rows are read" in last


def test_closing_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upsert_commit, "_ENDING_MAX_S", 0.05)
    go_on = threading.Event()
    world = _claimed(tmp_path, Reading(lambda: _assert_true(go_on.wait(60))))
    (thread,) = _threads_that_read()
    world.table.close()
    assert thread.is_alive()
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    outcome = world.table.commit(world.attempt(world.files([Event((3,), "c")])))
    assert isinstance(outcome, Unknown)
    assert "the coordinator ends" in outcome.reason


def test_key_7_only_a_primary_is_read_ahead(tmp_path: Path) -> None:
    """Deliveries without rows read whole tables, at once, that nobody had changed."""
    reading = Reading()
    world = _claimed(tmp_path, reading, warms=False)
    assert not _threads_that_read()
    assert reading.count == 0
    _commits(world)
    assert reading.count == 4


def _claimed(folder: Path, reading: Reading, *, warms: bool = True) -> KeyedWorld:
    """A table of four data files that another coordinator has just claimed."""
    world = KeyedWorld.create(local_catalog(folder).catalog, 3)
    for number in range(4):
        world.commit([Event((number,), "a"), Event((9,), "b")])
    keyed = KeyedRows(KeyedBy(("id",), "from_partition", "from_offset"), reading)
    world.table = IcebergTable(world.catalog, NAME, SINK, keyed=keyed, warms=warms)
    assert isinstance(world.table.commit(world.attempt(())), Landed)
    return world


def _commits(world: KeyedWorld) -> None:
    counts = world.commit([Event((9,)), Event((3,), "c"), Event((7,), "d")])
    assert counts == KeyCounts(inserted=1, updated=1, deleted=1)
    world.table.close()


def _threads_that_read() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "headgate-key-index"]


def _wait_until_read() -> None:
    for thread in _threads_that_read():  # none, if it was faster than the claim's return
        thread.join(60)


def _assert_true(value: bool) -> None:
    assert value
