"""What a run until the latest record still lacks, and when it cannot be told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from unit.operations.filled_table import FilledTable
from unit.operations.many_tables.test_list import Desk

from headgate.config.load import load
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import TopicState
from headgate.operations import wait
from headgate.operations.render_command_results import describe_until_latest
from headgate.operations.wait import (
    UntilLatest,
    _describe_tables_behind,
    count_missing_offsets,
    wait_and_describe_tables_behind,
)

TRIPS = {
    "trips": TopicState(
        TopicId("second"),
        {0: OffsetRange(0, 10), 1: OffsetRange(40, 50), 2: OffsetRange(7, 7)},
    )
}


def record(topic_id: str, offsets: dict[int, int]) -> CommitRecord:
    return CommitRecord(
        sink="trips",
        group_id="headgate-trips",
        transaction=TransactionId(Epoch(1), TransactionNumber(1)),
        coordinator=Sender("member", "life"),
        offsets=Offsets({TopicPartition("trips", at): end for at, end in offsets.items()}),
        topic_ids={"trips": TopicId(topic_id)},
    )


def at(partition: int) -> TopicPartition:
    return TopicPartition("trips", partition)


def test_without_a_commit_all_that_the_log_still_holds_is_missing() -> None:
    assert count_missing_offsets(None, TRIPS) == {at(0): 10, at(1): 10}


def test_what_is_committed_is_not_missing() -> None:
    assert count_missing_offsets(record("second", {0: 10, 1: 45}), TRIPS) == {at(1): 5}
    assert count_missing_offsets(record("second", {0: 10, 1: 50}), TRIPS) == {}


def test_offsets_of_a_topic_that_was_created_again_count_for_nothing() -> None:
    assert count_missing_offsets(record("first", {0: 10, 1: 50}), TRIPS) == {at(0): 10, at(1): 10}


def test_a_run_until_the_latest_record_ends_although_a_look_failed(
    settings: SinkSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of whatever it was: the run would never end, without a word."""
    away = Unreachable("the catalog is away")
    looks: Iterator[Exception | bool] = iter([ZeroDivisionError("division by zero"), away, True])

    def look(latest: UntilLatest) -> bool:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        latest.missing = {}
        return found

    monkeypatch.setattr(wait, "LOOKED_AT_S", 0.001)
    monkeypatch.setattr(wait, "read_topics", lambda _: TRIPS)
    monkeypatch.setattr(UntilLatest, "refresh_is_reached", look)
    with UntilLatest(settings) as latest:
        assert latest.stop.wait(10)
    assert latest.is_reached
    assert "could not be read: ZeroDivisionError: division by zero" in caplog.text
    assert "catalog" not in caplog.text


@pytest.mark.parametrize(
    ("asked", "why"), [("stopped", "a person stopped the sink"), ("paused", "the sink is paused")]
)
def test_a_run_until_the_latest_record_ends_where_a_person_holds_the_sink(
    filled: FilledTable,
    settings: SinkSettings,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    why: str,
) -> None:
    """Not at once: a restart is on its way to a start, and a resume waits for who takes it."""
    filled.good_start()
    filled.commit(filled.record(1, 3, {0: 10, 1: 10}, **{asked: True}))
    source = {"trips": TopicState(filled.topic_id, {0: OffsetRange(0, 12), 1: OffsetRange(0, 10)})}
    monkeypatch.setattr(wait, "LOOKED_AT_S", 0.001)
    monkeypatch.setattr(wait, "read_topics", lambda _: source)
    short = replace(settings.coordinator, commit_interval_ms=1, commit_timeout_ms=1)
    with UntilLatest(settings) as latest:
        assert not latest.stop.wait(0.5)
    with UntilLatest(replace(settings, coordinator=short)) as latest:
        assert latest.stop.wait(10)
    assert describe_until_latest(settings.name, latest) == (
        f"trips: it ended before the topics' ends were reached: behind trips/0 by 2, and {why}"
    )


def test_a_run_until_the_latest_record_forgets_a_hold_that_is_over(
    filled: FilledTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.good_start()
    monkeypatch.setattr(wait, "read_topics", lambda _: TRIPS)
    latest = UntilLatest(settings)
    filled.commit(filled.record(1, 3, {0: 10, 1: 10}, stopped=True))
    latest.refresh_is_reached()
    assert latest.held_since_s is not None
    filled.commit(filled.record(1, 4, {0: 10, 1: 10}))
    latest.refresh_is_reached()
    assert latest.held_since_s is None


def test_a_table_is_behind_also_at_a_time_beyond_the_year_9999(
    filled: FilledTable, settings: SinkSettings
) -> None:
    through_ms = 1_764_519_318_000_000
    filled.commit(filled.record(1, 0, {0: 0, 1: 0}, valid_through_ms=through_ms))
    behind = wait_and_describe_tables_behind(settings, through_ms + 1, 0)
    assert behind == ("db.trips is complete up to 1764519318000000 ms after 1970",)


def test_a_table_that_no_record_has_gone_to_yet_is_not_behind(
    sink_file: Path, catalog: Catalog
) -> None:
    """Its topic is empty, so that nobody has created it."""
    desk = Desk(sink_file, catalog)
    by_topic = 'topic = "trips"\nto = "db.idle"'
    text = sink_file.read_text().replace('field = "zone"\nto = "db.{field}"', by_topic)
    sink_file.write_text(text)
    desk.delivers("db.here", 1)
    through_ms = desk.decides().valid_through_ms
    assert through_ms is not None
    assert desk.listed()["db.idle"]["state"] == "missing"
    assert [*_describe_tables_behind(load(desk.path), through_ms, None)] == []
    desk.decides(desk.pending_commit("db.idle", 3, 4))
    (behind,) = _describe_tables_behind(load(desk.path), through_ms, None)
    assert behind.startswith("db.idle is not known to be complete up to any time (missing")
