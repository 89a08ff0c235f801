"""A stop request is stored in the table: by whom, until somebody starts the sink."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from pyiceberg.catalog import Catalog
from unit.operations.audit.test_audit_pending_commits import Owing
from unit.operations.filled_table import SINK, FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import OPERATOR, CommitRecord
from headgate.control_protocol.errors import ConfigurationError, RetryLater
from headgate.control_protocol.ports import CommitAttempt, Refused
from headgate.operations.cli import stop_and_start
from headgate.operations.control import stop as module
from headgate.operations.control.operator_claim import acting_as_operator
from headgate.operations.control.stop import (
    read_claimable_record,
    restart_sink,
    start_sink,
    stop_sink,
)
from headgate.operations.http import operator_actions
from headgate.runtime import process
from headgate.tables.iceberg.table import IcebergTable

Alive = list[SimpleNamespace]


@pytest.fixture(autouse=True)
def alive(monkeypatch: pytest.MonkeyPatch) -> Alive:
    found: Alive = []

    def status(_: object) -> SimpleNamespace:
        condition = "running" if found else "not running"
        there = [found.pop()] if found else []
        return SimpleNamespace(condition=condition, participants=there, participants_known=True)

    monkeypatch.setattr(module, "read_status", status)
    monkeypatch.setattr(module, "_LOOKED_AT_S", 0)
    return found


@pytest.fixture
def owing(filled: FilledTable, catalog: Catalog, settings: SinkSettings) -> Owing:
    return Owing(filled, catalog, settings)


@pytest.fixture
def table(filled: FilledTable, catalog: Catalog) -> IcebergTable:
    filled.good_start()
    return IcebergTable(catalog, "db.trips", SINK)


def test_a_stop_is_stored_with_who_asked_and_ends_with_a_start(
    table: IcebergTable, settings: SinkSettings, told: list[str]
) -> None:
    before = read_claimable_record(settings)
    with acting_as_operator("ann@one"):
        done = stop_sink(settings)
    record = table.read().record
    assert record == done.record
    assert (record.stopped, record.actor, record.command) == (True, "ann@one", "stop")
    assert (record.coordinator.member, record.transaction.epoch) == (OPERATOR, 2)
    assert (record.offsets, record.records, record.paused) == (before.offsets, 0, False)
    with acting_as_operator("bob@two"):
        assert stop_sink(settings).record == record  # once is enough
    with acting_as_operator("cal@three"):
        started = start_sink(settings)
    assert (started.stopped, started.actor, started.transaction.epoch) == (False, "cal@three", 3)
    assert start_sink(settings) == started
    assert told == ["stop", "start"]


def test_pending_7_a_stop_strikes_off_what_the_quarantine_shows_as_delivered(owing: Owing) -> None:
    """Another quarantine at the next start cannot say so: it would expire."""
    assert stop_sink(owing.settings).record.pending_commits == (owing.pending_commit,)
    start_sink(owing.settings)
    owing.delivers()
    assert stop_sink(owing.settings).record.pending_commits == ()
    assert not owing.audited().findings


def test_who_leads_unseen_is_fenced_by_a_stop(
    table: IcebergTable, settings: SinkSettings, filled: FilledTable
) -> None:
    base = table.read()
    stop_sink(settings)
    late = CommitAttempt(base, filled.record(1, 3, {0: 12, 1: 12}))
    assert isinstance(table.commit(late), Refused)


def test_a_sink_at_work_is_paused_first_so_that_what_is_written_is_committed(
    table: IcebergTable,
    settings: SinkSettings,
    filled: FilledTable,
    alive: Alive,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pause(_: SinkSettings) -> CommitRecord:
        paused = filled.record(1, 3, {0: 12, 1: 12}, paused=True)
        table.commit(CommitAttempt(table.read(), paused))
        return paused

    monkeypatch.setattr(module, "pause_sink", pause)
    alive += [SimpleNamespace(member="two"), SimpleNamespace(member="one")]
    done = stop_sink(settings)
    assert (done.record.stopped, done.record.paused) == (True, False)
    assert sum(done.record.offsets.values()) == 24
    assert done.participants == ()  # it was seen leaving


def test_a_sink_that_cannot_pause_is_stopped_all_the_same(
    table: IcebergTable, settings: SinkSettings, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(_: SinkSettings) -> CommitRecord:
        raise RetryLater("nobody took it")

    monkeypatch.setattr(module, "pause_sink", pause)
    alive += [SimpleNamespace(member="stays") for _ in range(9)]
    done = stop_sink(settings, patience_s=-1)
    assert done.participants == ("stays",)
    record = table.read().record
    assert record is not None
    assert record.stopped


def test_brokers_that_do_not_say_who_is_there_are_no_proof_that_nobody_is(
    table: IcebergTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = SimpleNamespace(condition="not known", participants=[], participants_known=False)
    monkeypatch.setattr(module, "read_status", lambda _: silent)
    done = stop_sink(settings, patience_s=0.01)
    assert done.participants is None
    assert done.record.stopped
    monkeypatch.setattr(stop_and_start, "warn_if_fleet_may_undo", lambda *_: None)
    monkeypatch.setattr(stop_and_start, "load_settings", lambda *_: settings)
    monkeypatch.setattr(module, "stop_sink", lambda of: done)
    shown = CliRunner().invoke(stop_and_start.stop, [__file__])
    assert shown.exit_code == 0, shown.output
    assert "no participant works" not in shown.output
    assert "who still works is not known: the brokers, or the catalog, do not" in shown.output


def test_brokers_that_are_silent_for_a_moment_end_no_wait(
    table: IcebergTable, settings: SinkSettings, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = SimpleNamespace(condition="not known", participants=[], participants_known=False)
    answer, silences = module.read_status, [silent, silent]
    monkeypatch.setattr(
        module, "read_status", lambda of: silences.pop() if silences else answer(of)
    )
    alive.append(SimpleNamespace(member="one"))
    assert table.read().record is not None
    assert stop_sink(settings).participants == ()
    assert alive == []


def test_commits_between_look_and_claim_are_no_reason_to_give_up(
    table: IcebergTable,
    settings: SinkSettings,
    filled: FilledTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, raced = module.commit_claim_or_raise, []

    def land(*given: object) -> None:
        if not raced:
            raced.append(1)
            table.commit(CommitAttempt(table.read(), filled.record(1, 3, {0: 12, 1: 12})))
        real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "commit_claim_or_raise", land)
    assert sum(stop_sink(settings).record.offsets.values()) == 24


def test_a_sink_without_a_record_cannot_be_stopped(
    filled: FilledTable, settings: SinkSettings
) -> None:
    assert not filled.table.metadata.snapshots
    with pytest.raises(ConfigurationError, match="no offsets yet"):
        stop_sink(settings)


def test_restart_leaves_it_started(table: IcebergTable, settings: SinkSettings) -> None:
    restart_sink(settings)
    record = table.read().record
    assert record is not None
    assert (record.stopped, record.command, record.transaction.epoch) == (False, "start", 3)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RetryLater("no answer")])
@pytest.mark.parametrize("can_start", [True, False])
def test_a_restart_that_is_interrupted_leaves_it_started_or_says_that_it_is_stopped(
    table: IcebergTable,
    settings: SinkSettings,
    monkeypatch: pytest.MonkeyPatch,
    interruption: BaseException,
    can_start: bool,
) -> None:
    real, looks = module.read_status, []

    def look(of: SinkSettings) -> object:
        looks.append(of)
        if len(looks) == 2:
            raise interruption
        return real(of)

    def refuse(_: SinkSettings) -> CommitRecord:
        raise RetryLater("the catalog is away")

    monkeypatch.setattr(module, "read_status", look)
    if not can_start:
        monkeypatch.setattr(module, "start_sink", refuse)
    ends = nullcontext() if can_start else pytest.raises(RetryLater, match=r"away .*start SINK")
    with ends, suppress(KeyboardInterrupt):
        restart_sink(settings)
    record = table.read().record
    assert record is not None
    assert record.stopped is not can_start


def test_a_stop_outlives_a_catalog_that_does_not_say_who_is_there(
    table: IcebergTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([module.read_status(settings)])

    def look(_: SinkSettings) -> object:
        for answer in answers:
            return answer
        raise RetryLater("no answer")

    monkeypatch.setattr(module, "read_status", look)
    assert table.read().record is not None
    done = stop_sink(settings, patience_s=0.01)
    assert (done.record.stopped, done.participants) == (True, None)


@pytest.mark.parametrize("can_resume", [True, False])
def test_a_stop_that_is_not_stored_leaves_no_pause_or_says_so(
    settings: SinkSettings,
    table: IcebergTable,
    alive: Alive,
    monkeypatch: pytest.MonkeyPatch,
    can_resume: bool,
) -> None:
    asked: list[str] = []

    def refuse(*_: object) -> None:
        raise RetryLater("403: may not commit")

    def resume(_: SinkSettings) -> CommitRecord:
        asked.append("resume")
        if not can_resume:
            raise RetryLater("nobody took it")
        return read_claimable_record(settings)

    assert table.read().record is not None
    monkeypatch.setattr(module, "pause_sink", lambda _: asked.append("pause"))
    monkeypatch.setattr(module, "resume_sink", resume)
    monkeypatch.setattr(module, "commit_claim_or_raise", refuse)
    alive.append(SimpleNamespace(member="one"))
    expected = "403" if can_resume else r"paused now.*nobody took it .*headgate resume SINK"
    with pytest.raises(RetryLater, match=expected):
        stop_sink(settings)
    assert asked == ["pause", "resume"]


@pytest.mark.parametrize("what", ["stop", "start", "restart"])
def test_over_http_each_has_a_dry_run(
    table: IcebergTable, settings: SinkSettings, what: str
) -> None:
    before = table.read().record
    move = operator_actions.MOVES["PUT", what]
    rehearsed = move(settings, {}, True)
    assert table.read().record == before
    assert rehearsed["changes"] is (what != "start")
    with acting_as_operator("http 127.0.0.1"):
        done = move(settings, {}, False)
    assert done["stopped"] is (what == "stop")
    assert done["by"] == ("http 127.0.0.1" if what == "stop" else None)
    with pytest.raises(ConfigurationError):
        move(settings, {"force": True}, True)


def test_a_process_rests_until_a_person_starts_the_sink(
    table: IcebergTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.read().record is not None
    monkeypatch.setattr(process, "LOOKED_AT_S", 0)
    monkeypatch.setattr(process, "_TURN_S", 0.001)
    assert process.may_take_part(settings)
    stop_sink(settings)
    assert not process.may_take_part(settings)
    turns: list[int] = []

    def turned() -> None:
        turns.append(1)
        if len(turns) == 3:
            start_sink(settings)

    process.wait_until_started(settings, threading.Event(), turned)
    assert len(turns) == 3
    assert process.may_take_part(settings)


def test_a_process_that_rests_ends_when_it_is_asked_to(
    table: IcebergTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.read().record is not None
    monkeypatch.setattr(process, "_TURN_S", 0.001)
    ends = threading.Event()
    turned: Callable[[], None] = ends.set
    stop_sink(settings)
    process.wait_until_started(settings, ends, turned)


def test_who_left_the_lead_to_others_stays_away_until_the_table_can_be_read(
    table: IcebergTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.read().record is not None
    monkeypatch.setattr(process, "LOOKED_AT_S", 0)
    monkeypatch.setattr(process, "_TURN_S", 0.001)
    turns: list[int] = []
    can_read = process.is_stopped_by_operator

    def read(of: SinkSettings) -> bool:
        if len(turns) < 3:
            raise RetryLater("no answer")
        return can_read(of)

    monkeypatch.setattr(process, "is_stopped_by_operator", read)
    process.wait_until_table_readable(settings, threading.Event(), lambda: turns.append(1), 0)
    assert len(turns) == 3


def test_without_a_table_nobody_is_stopped(settings: SinkSettings) -> None:
    assert process.may_take_part(settings)


def test_who_has_not_heard_it_is_told_again(
    table: IcebergTable, settings: SinkSettings, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    assert table.read().record is not None
    monkeypatch.setattr(module, "try_announce_command", lambda _, what: said.append(what))
    monkeypatch.setattr(module, "_SAID_AGAIN_S", -1)
    monkeypatch.setattr(module, "pause_sink", lambda _: None)
    alive += [SimpleNamespace(member="deaf") for _ in range(3)]
    assert stop_sink(settings).participants == ()
    assert said == ["stop"] * 2
