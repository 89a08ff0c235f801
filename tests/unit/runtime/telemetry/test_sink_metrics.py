"""What is counted when, by the words of one coordinator and the batches of one member."""

from __future__ import annotations

import base64
import json
import logging
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from protocol.values import record, view
from unit.config.test_load import MINIMAL

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, KeyCounts
from headgate.control_protocol.errors import ConfigurationError, HeadgateError, RetryLater
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    Envelope,
    Event,
    Notice,
    NoticeKind,
    Presence,
    PresenceKind,
    StartCommit,
    TableSettlement,
    WriteStatus,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    AllSecondaryTables,
    Batch,
    BatchFailed,
    BatchOutcome,
    BatchWritten,
    CommitAttempt,
    CommitOutcome,
    Landed,
    PartitionResult,
    Refused,
    TableView,
    Unknown,
)
from headgate.coordinator.settings import CoordinatorSettings
from headgate.kafka.authentication import token_keeper_for
from headgate.kafka.token_keeper import keeper_of
from headgate.participant.state import State, Term
from headgate.runtime.health import Condition, Unwell
from headgate.runtime.maintenance.table_maintenance import Done
from headgate.runtime.telemetry import coordinator_progress, sink_metrics, source_lag
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.instrumented_ports import MeteredPrimary
from headgate.runtime.telemetry.meters import Gauges, Labels, Unregister
from headgate.runtime.telemetry.sink_metrics import SinkMeters
from headgate.runtime.telemetry.source_lag import measure_lag_once

SETTINGS = parse(MINIMAL)
LIFE = Sender("host-1", "life")
ROUTE = '[[tables.route]]\nto = "db.{topic}"\n'
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
PARTICIPATES = State(SETTINGS.name, LIFE, SETTINGS.participant, term=Term(Epoch(4)))


def logs(ends: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetRange]:
    return {at: OffsetRange(0, end) for at, end in ends.items()}


class Kept:
    """A ``Telemetry`` that keeps what it was given."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], float] = defaultdict(float)
        self.observed: list[tuple[str, str]] = []
        self.shown: list[Gauges] = []

    def count(self, name: str, amount: float, labels: Labels) -> None:
        self.counts[name, _rest(labels)] += amount

    def observe(self, name: str, value: float, labels: Labels) -> None:
        assert value >= 0
        self.observed.append((name, _rest(labels)))

    def register_gauges(self, gauges: Gauges) -> Unregister:
        self.shown.append(gauges)
        return lambda: self.shown.remove(gauges)

    def gauges(self) -> Mapping[tuple[str, str], float]:
        return {(g.name, _rest(g.labels)): g.value for of in self.shown for g in of()}


def _rest(labels: Labels) -> str:
    assert labels["sink"] == SETTINGS.name
    return ",".join(value for label, value in sorted(labels.items()) if label != "sink")


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def meters(kept: Kept) -> SinkMeters:
    return SinkMeters(kept, SETTINGS)


def envelope(event: Event, number: int = 1, sender: Sender = LIFE) -> Envelope:
    return Envelope(
        SETTINGS.name, Epoch(4), TransactionNumber(number), sender, 1, 1_700_000_000_000, event
    )


def start(paused: bool = False) -> StartCommit:
    return StartCommit(None, Offsets({P0: 10, P1: 20}), {}, (), paused=paused)


def ack(offset: int, rows: int = 5) -> AckCommit:
    tables = (TableSettlement("db.orders", 77, rows),)
    return AckCommit(ControlOffset(9), Offsets({P0: offset, P1: 20}), tables, 1_699_999_999_000)


def wait_out_shortest_intervals(meters: SinkMeters) -> CoordinatorSettings:
    """They are adopted live; what came before is overdue by them then."""
    at_once = replace(SETTINGS.coordinator, commit_interval_ms=1, commit_timeout_ms=1)
    meters.adopt_settings(replace(SETTINGS, coordinator=at_once))
    time.sleep(at_once.records_overdue_after_ms / 1000)
    return at_once


def test_a_settlement_counts_once_however_often_it_is_heard(meters: SinkMeters, kept: Kept) -> None:
    life = meters.start_coordinator_meters(LIFE)
    for said in (start(), ack(15), ack(15)):
        life.on_event(envelope(said))
    life.on_event(envelope(replace(ack(15), reason="one did not answer"), 2))
    assert kept.counts[names.COMMITTED_ROWS, "db.orders"] == 10
    assert kept.counts[names.INCOMPLETE_TRANSACTIONS, ""] == 1
    assert kept.observed == [(names.TRANSACTION_DURATION, "acked")] * 2
    life.on_event(envelope(AbortCommit(ControlOffset(9), Offsets({P0: 15, P1: 20})), 3))
    assert kept.observed[-1] == (names.TRANSACTION_DURATION, "aborted")


def test_what_another_coordinator_says_is_counted_by_that_one(
    meters: SinkMeters, kept: Kept
) -> None:
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start(), sender=Sender("host-1", "another life")))
    life.on_event(envelope(ack(15), sender=Sender("host-2", "life")))
    assert not any(name == names.COMMITTED_ROWS for name, _ in kept.counts)
    assert not any(name == names.EPOCH for name, _ in kept.gauges())


def test_sink_wide_series_end_with_the_coordinators_life(meters: SinkMeters, kept: Kept) -> None:
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start()))
    assert kept.gauges()[names.EPOCH, ""] == 4
    newer = meters.start_coordinator_meters(replace(LIFE, incarnation="newer"))
    life.close()  # the old life's end does not take the new one's series away
    assert meters.coordinator_meters is newer
    newer.close()
    assert {name for name, _ in kept.gauges()} == {names.BUILD_INFO, names.CONFIG_INFO}
    meters.close()
    assert kept.shown == []


def test_lag_is_looked_at_again_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of the client's own: otherwise lag stands still in the metrics."""
    topics, looked = MagicMock(), threading.Event()
    topics.describe.side_effect = [RuntimeError("one of a library"), {}]
    opened = [ConfigurationError("the file of the key is away"), topics]

    def measured(_meters: object, read: Callable[[], object], _first: object) -> None:
        read()
        looked.set()

    monkeypatch.setattr(source_lag, "KafkaSourceTopics", MagicMock(side_effect=opened))
    monkeypatch.setattr(source_lag, "measure_lag_once", measured)
    settings = MagicMock(**{"telemetry.interval_ms": 1})
    lookout = source_lag.LagLookout(settings, MagicMock())
    assert looked.wait(10)
    lookout.close()
    topics.close.assert_called_once()


def test_lag_in_records_and_in_seconds(meters: SinkMeters, kept: Kept) -> None:
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start()))
    asked: list[Mapping[TopicPartition, int]] = []

    def first(places: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        asked.append(places)
        return dict.fromkeys(places, 1000)

    measure_lag_once(life, lambda: logs({P0: 17, P1: 20}), first)
    told = kept.gauges()
    assert told[names.LAG_RECORDS, "orders"] == 7
    assert told[names.LAG_SECONDS, "orders"] > 1_000_000  # that record is of 1970
    measure_lag_once(life, lambda: logs({P0: 18, P1: 20, P2: 9}), first)
    told = kept.gauges()
    assert told[names.UNREAD_PARTITIONS, ""] == 1
    assert told[names.UNREAD_RECORDS, "orders"] == 9
    assert told[names.LAG_RECORDS, "orders"] == 8 + 9
    assert asked == [{P0: 10}, {P2: 0}], "a record is read once while its partition does not move"
    life.on_event(envelope(ack(18)))
    assert kept.gauges()[names.LAG_RECORDS, "orders"] == 9, "what nobody reads yet waits"
    life.on_event(envelope(replace(ack(18), offsets=Offsets({P0: 18, P1: 20, P2: 9})), number=2))
    told = kept.gauges()
    assert (told[names.LAG_RECORDS, "orders"], told[names.LAG_SECONDS, "orders"]) == (0, 0)
    assert told[names.UNREAD_PARTITIONS, ""] == 0


def test_an_age_that_is_not_known_is_not_told(meters: SinkMeters, kept: Kept) -> None:
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start()))
    measure_lag_once(life, lambda: logs({P0: 17, P1: 20}), lambda _: {})
    assert kept.gauges()[names.LAG_RECORDS, "orders"] == 7
    assert (names.LAG_SECONDS, "orders") not in kept.gauges()


def test_a_timestamp_of_a_partition_that_moved_meanwhile_does_not_count(
    meters: SinkMeters, kept: Kept
) -> None:
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start()))

    def slow(places: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        life.on_event(envelope(ack(17)))
        return dict.fromkeys(places, 1000)

    measure_lag_once(life, lambda: logs({P0: 18, P1: 20}), slow)
    assert life.progress.first_unstored_ms == {}


def test_trouble_is_a_state_until_something_settles(meters: SinkMeters, kept: Kept) -> None:
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start()))
    life.note_failure("HG-401 the catalog does not answer; tries again in 500 ms")
    assert kept.gauges()[names.ERROR_INFO, "HG-401"] == 1
    assert kept.gauges()[names.STATE, "failing"] == 1
    error = life.progress.error
    assert error is not None
    assert error.text.startswith("the catalog"), "the code is told beside it"
    life.on_event(envelope(ack(18)))
    assert (names.ERROR_INFO, "HG-401") not in kept.gauges()
    states = [v for (name, _), v in kept.gauges().items() if name == names.STATE]
    assert (sum(states), len(states)) == (1, len(Condition))


def test_a_participant_that_starves_is_one_until_a_transaction_is_whole(
    meters: SinkMeters, kept: Kept
) -> None:
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start()))
    life.note_failure("HG-407 host-2 is slower than a transaction")
    life.on_event(envelope(replace(ack(18), reason="status 3 of host-2: file of an earlier one")))
    life.on_event(envelope(start(), number=2))
    assert kept.gauges()[names.ERROR_INFO, "HG-407"] == 1
    assert kept.gauges()[names.STATE, "failing"] == 1
    life.on_event(envelope(ack(19), number=2))
    assert (names.ERROR_INFO, "HG-407") not in kept.gauges()


def test_batches_are_counted_per_topic_and_not_per_record(meters: SinkMeters, kept: Kept) -> None:
    outcomes: list[BatchOutcome | None] = [
        None,
        BatchWritten(
            1,
            {
                P0: PartitionResult(OffsetRange(0, 9), 7, 700, quarantined=1, skipped=1),
                P1: PartitionResult(OffsetRange(0, 3), 3, 300),
            },
        ),
        BatchFailed(2, "no space left"),
    ]

    class Writer:
        def submit(self, batch: Batch) -> None: ...

        def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
            return outcomes.pop(0)

        def close(self) -> None: ...

    writer = meters.metered_writer(Writer())
    while outcomes:
        writer.wait_for_outcome(0)
    assert dict(kept.counts) == {
        (names.READ_RECORDS, "orders"): 12,
        (names.READ_BYTES, "orders"): 1_000,
        (names.BAD_RECORDS, "quarantined,orders"): 1,
        (names.BAD_RECORDS, "skipped,orders"): 1,
    }
    assert [outcome for _, outcome in kept.observed][-2:] == ["written", "failed"]


def test_gains_and_losses_of_partitions(meters: SinkMeters, kept: Kept) -> None:
    class Log:
        def append(self, envelopes: object) -> None: ...

    log = meters.metered_log(Log())  # type: ignore[arg-type]
    gained = Presence(PresenceKind.GAINED, frozenset({P0, P1}), {})
    log.append([envelope(gained), envelope(Presence(PresenceKind.ALIVE, frozenset(), {}))])
    assert dict(kept.counts) == {(names.ASSIGNMENTS, "gained"): 2}


def test_errors_are_counted_by_code(meters: SinkMeters, kept: Kept) -> None:
    log = logging.getLogger("headgate.participant")
    log.warning("batch 3 failed: HG-403 no space left")
    log.error("something else")
    log.info("HG-403 is only talked about")
    meters.close()
    log.warning("HG-403 after its end")
    assert dict(kept.counts) == {(names.ERRORS, "HG-403"): 1, (names.ERRORS, "none"): 1}


# ------------------------------------------------------------------------------------- stalled

AT = TransactionId(Epoch(4), TransactionNumber(1))


def test_a_partition_stalls_when_it_had_lag_and_did_not_move_for_a_window() -> None:
    now = coordinator_progress.on_source_logs(
        coordinator_progress.on_start(coordinator_progress.Progress(), AT, start(), 0.0),
        logs({P0: 11}),
        1.0,
    )
    assert coordinator_progress.stalled_partitions(now, 90.9, 90) == ()
    assert coordinator_progress.stalled_partitions(now, 91.0, 90) == (P0,)
    assert coordinator_progress.condition_of(now, 91.0, 90, draining=False) is Condition.STALLED
    moved = coordinator_progress.on_settlement(
        now, AT, replace(ack(11)), coordinator_progress.Moment(92.0, 0)
    )
    assert coordinator_progress.stalled_partitions(moved, 1_000.0, 90) == ()


def test_records_that_came_only_now_do_not_make_an_old_offset_stalled() -> None:
    quiet = coordinator_progress.on_source_logs(
        coordinator_progress.on_start(coordinator_progress.Progress(), AT, start(), 0.0),
        logs({P0: 10}),
        1.0,
    )
    late = coordinator_progress.on_source_logs(quiet, logs({P0: 12}), 5_000.0)
    assert coordinator_progress.stalled_partitions(late, 5_001.0, 90) == ()


def test_key_8_a_partition_that_is_held_has_lag_and_does_not_stall() -> None:
    begun = coordinator_progress.on_start(coordinator_progress.Progress(), AT, start(), 0.0)
    now = coordinator_progress.on_source_logs(begun, logs({P0: 10, P1: 20, P2: 9}), 1.0)
    assert coordinator_progress.stalled_partitions(now, 5_000.0, 90) == ()
    assert coordinator_progress.condition_of(now, 5_000.0, 90, draining=False) is Condition.RUNNING


def test_a_paused_sink_does_not_stall() -> None:
    before = coordinator_progress.on_start(
        coordinator_progress.Progress(), AT, start(paused=True), 0.0
    )
    now = coordinator_progress.on_source_logs(before, logs({P0: 99}), 1.0)
    assert coordinator_progress.stalled_partitions(now, 5_000.0, 90) == ()
    assert coordinator_progress.condition_of(now, 5_000.0, 90, draining=False) is Condition.PAUSED


def test_a_sink_that_is_resumed_has_a_whole_window_to_move_in() -> None:
    before = coordinator_progress.on_start(
        coordinator_progress.Progress(), AT, start(paused=True), 0.0
    )
    paused = coordinator_progress.on_source_logs(before, logs({P0: 99}), 1.0)
    resumed = coordinator_progress.on_start(paused, AT, start(), 5_000.0)
    assert coordinator_progress.stalled_partitions(resumed, 5_089.0, 90) == ()
    again = coordinator_progress.on_start(resumed, AT, start(), 5_060.0)
    assert coordinator_progress.stalled_partitions(again, 5_090.0, 90) == (P0,)


def test_rounds_of_maintenance_are_counted_and_the_last_good_one_is_dated() -> None:
    kept = Kept()
    meters = SinkMeters(kept, SETTINGS)
    life = meters.start_coordinator_meters(LIFE)
    life.maintenance.on_table_round_end(
        Done("db.a", live_files=7, compacted_files=5, orphans=2), False
    )
    life.maintenance.on_table_round_end(Done("db.b"), True)
    assert kept.counts == {
        (names.MAINTENANCE_ROUNDS, "done,db.a"): 1,
        (names.MAINTENANCE_REWRITTEN, "db.a"): 5,
        (names.MAINTENANCE_ORPHANS, "db.a"): 2,
        (names.MAINTENANCE_ROUNDS, "failed,db.b"): 1,
    }
    life.maintenance.on_table_round_end(Done("db.c", live_files=7), False)
    life.maintenance.on_table_round_end(Done("db.c", live_files=0), False)
    life.maintenance.on_table_round_end(Done("db.a"), False)
    told = kept.gauges()
    assert told[names.LIVE_FILES, "db.a"] == 7, "it was not counted again"
    assert told[names.LIVE_FILES, "db.c"] == 0, "all its rows are gone"
    assert told[names.MAINTENANCE_LAST, "db.a"] > 0
    assert (names.MAINTENANCE_LAST, "db.b") not in told
    life.close()
    assert (names.LIVE_FILES, "db.a") not in kept.gauges(), "another one maintains now"
    meters.close()


def test_a_batch_that_fails_is_told_until_its_participant_writes_again(
    meters: SinkMeters, kept: Kept
) -> None:
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start()))
    meters.set_state_source(lambda: PARTICIPATES)
    other = Sender("host-2", "a life")
    failure = "HG-404 batch 6 of db.orders: KeyError"
    life.on_event(envelope(WriteStatus(1, unknown=frozenset({P0}), failure=failure), sender=other))
    told = kept.gauges()
    assert told[names.STATE, Condition.FAILING.value] == 1
    assert told[names.ERROR_INFO, "HG-404"] == 1
    why = meters.why_not_ready()
    assert why == "failing: HG-404 a batch could not be written: batch 6 of db.orders: KeyError"
    life.on_event(envelope(WriteStatus(2), sender=other))
    assert (names.ERROR_INFO, "HG-404") not in kept.gauges()
    assert meters.why_not_ready() is None


@pytest.mark.parametrize("leads", [False, True])
def test_what_the_command_would_say_is_told_whoever_coordinates(
    meters: SinkMeters, kept: Kept, leads: bool
) -> None:
    """A broker that is silent leaves no coordinator, and a deleted topic none either."""
    meters.set_state_source(lambda: PARTICIPATES)
    if leads:
        meters.start_coordinator_meters(LIFE).on_event(envelope(start()))
    assert meters.why_not_ready() is None
    meters.set_problem_source(lambda: Unwell(Condition.UNKNOWN, "no broker answers", "HG-401"))
    assert meters.why_not_ready() == "not known: no broker answers"
    told = kept.gauges()
    assert told[names.STATE, Condition.UNKNOWN.value] == 1
    assert sum(value for (name, _), value in told.items() if name == names.STATE) == 1
    assert told[names.ERROR_INFO, "HG-401"] == 1
    meters.set_problem_source(lambda: None)
    assert meters.why_not_ready() is None
    assert ((names.STATE, Condition.RUNNING.value) in kept.gauges()) is leads


def test_a_stall_is_judged_by_the_interval_that_was_adopted_live(meters: SinkMeters) -> None:
    followed: list[SinkSettings] = []
    meters.follow_adopted_settings(followed.append)
    meters.set_state_source(lambda: PARTICIPATES)
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start()))
    life.on_source_logs(logs({P0: 11}), {})
    assert meters.why_not_ready() is None
    at_once = wait_out_shortest_intervals(meters)
    assert meters.why_not_ready() == "stalled"
    meters.adopt_settings(SETTINGS)
    assert meters.why_not_ready() is None
    assert [each.coordinator for each in followed] == [at_once, SETTINGS.coordinator]


def test_a_past_error_is_not_why_it_stalls(meters: SinkMeters) -> None:
    meters.set_state_source(lambda: PARTICIPATES)
    life = meters.start_coordinator_meters(LIFE)
    life.on_event(envelope(start()))
    life.note_failure("HG-401 the catalog does not answer; tries again in 500 ms")
    life.on_event(envelope(ack(18)))
    life.on_source_logs(logs({P0: 19}), {})
    assert meters.why_not_ready() is None
    wait_out_shortest_intervals(meters)
    assert meters.why_not_ready() == "stalled"


def test_who_has_left_the_lead_to_others_is_not_ready_and_says_why(meters: SinkMeters) -> None:
    meters.set_state_source(lambda: PARTICIPATES)
    meters.note_left_group_to_wait("HG-409 catalog and store have not answered")
    assert meters.why_not_ready() == "HG-409 catalog and store have not answered"
    meters.note_left_group_to_wait()
    assert meters.why_not_ready() == "stopped by a person"
    meters.set_state_source(lambda: PARTICIPATES)
    assert meters.why_not_ready() is None


@pytest.mark.parametrize(
    ("begin", "change", "answers"),
    [
        ("participate", "leave", {None, "stopped by a person"}),
        ("leave", "participate", {None, "stopped by a person", "starting"}),
    ],
)
def test_a_participant_may_leave_its_group_or_return_at_any_line_of_a_probe_and_a_scrape(
    meters: SinkMeters, kept: Kept, begin: str, change: str, answers: set[str | None]
) -> None:
    lines_to_go = 0
    does = {
        "participate": lambda: meters.set_state_source(lambda: PARTICIPATES),
        "leave": meters.note_left_group_to_wait,
    }

    def change_at_line(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal lines_to_go
        if frame.f_code.co_filename != sink_metrics.__file__:
            return None
        lines_to_go -= what == "line"
        if lines_to_go == 0:
            does[change]()
        return change_at_line

    before = sys.gettrace()
    for moment in range(1, 100):
        does[begin]()
        lines_to_go = moment
        sys.settrace(change_at_line)
        try:
            why = meters.why_not_ready()
            kept.gauges()
        finally:
            sys.settrace(before)
        assert why in answers
    assert 0 < lines_to_go < 80, "it has changed at each of more than twenty lines"


def test_who_failed_and_is_silent_since_is_not_waited_for() -> None:
    failing = WriteStatus(1, failure="no space left")
    told = coordinator_progress.on_status(
        coordinator_progress.Progress(epoch=4),
        LIFE,
        failing,
        coordinator_progress.Moment(100.0, 1_000),
    )
    error = coordinator_progress.current_error(told, 129.0, 30.0)
    assert error is not None
    assert (error.code, error.text) == ("HG-403", "a batch could not be written: no space left")
    assert coordinator_progress.current_error(told, 131.0, 30.0) is None


def test_key_10_what_records_did_to_the_rows_of_a_keyed_table_is_counted(
    meters: SinkMeters, kept: Kept
) -> None:
    landed = view(replace(record(1, 1, Offsets({P0: 7})), keys=KeyCounts(inserted=3, absent=4)))

    class Table(MeteredPrimary):
        """One whose next commit lands."""

        def commit(self, attempt: CommitAttempt) -> CommitOutcome:
            del attempt
            return Landed(100, landed)

    def unused(*_: object) -> None: ...

    primary = MeteredPrimary(Table.__new__(Table), "db.orders", meters.count, unused)
    assert landed.record
    primary.commit(CommitAttempt(landed, landed.record))
    told = {labels: n for (name, labels), n in kept.counts.items() if name == names.CHANGES}
    assert told == {"db.orders,inserted": 3, "db.orders,absent": 4}


def test_a_participant_that_an_error_ended_is_counted_by_who_hears_of_it(
    meters: SinkMeters, kept: Kept
) -> None:
    life, other = meters.start_coordinator_meters(LIFE), Sender("host-2", "ended")
    now_ms = time.time_ns() // 1_000_000
    told = envelope(Notice(NoticeKind.STOPPED, "HG-114", "another file"), sender=other)
    life.on_event(told)  # long ago: it was counted then
    life.on_event(replace(told, time_ms=now_ms + 1))
    life.on_event(replace(told, time_ms=now_ms + 1, event=Notice(NoticeKind.STOPPED)))
    life.on_event(replace(told, time_ms=now_ms + 1, sink=SinkName("another")))
    assert kept.counts[names.ENDED_PARTICIPANTS, "HG-114"] == 1


class Delivering:
    """Secondary tables whose every delivery lands."""

    def deliver(self, deliveries: Sequence[CommitAttempt], _: int) -> Mapping[str, CommitOutcome]:
        views = [replace(each.base, record=each.record) for each in deliveries]
        return {each.table: Landed(7, each) for each in views}


def test_of_many_tables_each_has_its_rows_and_its_freshness() -> None:
    kept = Kept()
    many = parse(MINIMAL.partition("[table]")[0] + '[tables]\nledger = "db.ledger"\n' + ROUTE)
    life = SinkMeters(kept, many).start_coordinator_meters(LIFE)
    secondaries = life.metered_secondaries(cast("AllSecondaryTables", Delivering()))
    life.on_event(envelope(replace(start(), suspended={"db.sick": "HG-208 it has no column id"})))
    for number, (table, rows) in enumerate({"db.a": 5, "db.b": 0}.items(), 1):
        at = Offsets({P0: 15})
        delivered = replace(record(4, 1, at, valid_through_ms=1_000 * number), records=rows)
        secondaries.deliver([CommitAttempt(replace(view(), table=table), delivered)], 1_000)
    assert kept.counts[names.COMMITTED_ROWS, "db.a"] == 5
    assert (names.COMMITTED_ROWS, "db.b") not in kept.counts
    gauges = kept.gauges()
    assert gauges[names.TABLE_VALID_THROUGH, "db.a"] == 1
    assert gauges[names.TABLE_VALID_THROUGH, "db.b"] == 2
    assert gauges[names.SUSPENDED_TABLES, ""] == 1
    life.on_event(envelope(ack(15)))
    assert kept.gauges()[names.SUSPENDED_TABLES, ""] == 0


class AnsweringLate:
    """A secondary table whose deliveries are answered as told, and land as ``landed`` says."""

    def __init__(self) -> None:
        self.answer: CommitOutcome | HeadgateError | None = None
        self.landed: CommitRecord | None = None

    def deliver(
        self, deliveries: Sequence[CommitAttempt], _: int
    ) -> Mapping[str, CommitOutcome | HeadgateError]:
        return {each.base.table: self.answer for each in deliveries if self.answer}

    def try_read_views(self, tables: Sequence[str]) -> Mapping[str, TableView | HeadgateError]:
        return {name: replace(view(), table=name, record=self.landed) for name in tables}


def test_rows_whose_delivery_is_answered_late_count_once_when_they_are_seen() -> None:
    kept, late = Kept(), AnsweringLate()
    life = SinkMeters(kept, SETTINGS).start_coordinator_meters(LIFE)
    secondaries = life.metered_secondaries(cast("AllSecondaryTables", late))
    of = [
        replace(record(4, number, Offsets({P0: 15})), records=10**number) for number in range(1, 6)
    ]

    def rows_after(
        landed: CommitRecord | None,
        tried: CommitRecord | None = None,
        answer: CommitOutcome | HeadgateError | None = None,
    ) -> float:
        """Try to deliver, read what the table has then, and return the counted rows."""
        base = replace(view(), table="db.a", record=late.landed)
        late.answer, late.landed = answer, landed
        if tried is not None:
            secondaries.deliver([CommitAttempt(base, tried)], 1_000)
        secondaries.try_read_views(["db.a"])
        return kept.counts[names.COMMITTED_ROWS, "db.a"]

    unknown = Unknown("db.a does not answer in time")
    assert rows_after(of[0]) == 0, "of a life before"
    assert rows_after(of[0], of[1], unknown) == 0, "not yet"
    assert rows_after(of[0], of[2], unknown) == 0
    assert rows_after(of[1], of[2], Refused("the table has moved")) == 100
    assert rows_after(of[1]) == 100
    assert rows_after(of[2], of[2], Landed(7, replace(view(), table="db.a", record=of[2]))) == 1_100
    assert rows_after(of[2]) == 1_100
    assert rows_after(of[2], of[3], RetryLater("the catalog answers 503")) == 1_100
    assert rows_after(of[3]) == 11_100
    assert rows_after(of[4], of[4], Refused("a rival was faster")) == 11_100, "the rival counts it"
    assert rows_after(of[4], of[4]) == 11_100, "left out: busy"


def test_tokens_show_how_much_of_their_life_is_left_and_how_many_tries_failed(
    kept: Kept, tmp_path: Path
) -> None:
    """Nothing is shown before somebody needs a token; then also while there is none."""
    path = tmp_path / "token"
    auth = f'[kafka.auth]\ntype = "token-file"\npath = "{path}"\n'
    registry = '[format]\ntype = "avro-registry"\n[format.options]\n"registry.url" = "https://r"\n'
    registry += f'[format.auth]\ntype = "token-file"\npath = "{path}"\n'
    own = parse(f"{MINIMAL}{auth}{registry}")
    meters = SinkMeters(kept, own)
    shown = (names.AUTH_LIFE_LEFT, names.AUTH_FAILURES)

    def tokens() -> dict[tuple[str, str], float]:
        return {
            (gauge.name, gauge.labels["server"]): gauge.value
            for gauge in kept.shown[-1]()
            if gauge.name in shown
        }

    assert tokens() == {}
    for keeper in (token_keeper_for(own.kafka), keeper_of(own.format.options["registry.auth"], "")):
        assert keeper is not None
        with pytest.raises(HeadgateError):
            keeper.require_token()
    assert {*tokens()} == {(names.AUTH_FAILURES, server) for server in ("kafka", "registry")}
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + 600}).encode()).decode()
    path.write_text(f"e30.{claims.rstrip('=')}.x")
    end_s = time.monotonic() + 30
    while len(tokens()) < 4:
        assert time.monotonic() < end_s
        time.sleep(0.02)
    for server in ("kafka", "registry"):
        assert 0.9 < tokens()[names.AUTH_LIFE_LEFT, server] <= 1
        assert tokens()[names.AUTH_FAILURES, server] == 0
    meters.close()
