"""What the coordinator's driver tells a person who reads its log."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from protocol.coordinating import IDENTITY, SETTINGS
from protocol.values import ALICE, P0, record, view

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import HeadgateError, MissingRights, StopSink, Unreachable
from headgate.control_protocol.events import AbortCommit, Destination
from headgate.control_protocol.identifiers import ControlOffset, Epoch, TransactionNumber
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine, OutgoingEvent, Stop
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Staging,
    TableView,
    Unknown,
    Want,
)
from headgate.control_protocol.redaction import Redaction
from headgate.control_protocol.testing import (
    CommitFault,
    FakeCatalog,
    FakeClock,
    FakeLog,
    FakeLogServer,
    FakeSource,
    FakeTable,
    FakeTopics,
)
from headgate.coordinator.driver import (
    TRIES_IN_SILENCE,
    CoordinatorDriver,
    StartAt,
    World,
    answer_look,
)
from headgate.coordinator.inputs_and_actions import (
    Action,
    ChangeTables,
    DeliverPendingCommits,
    Look,
    SecondariesRead,
    StageManifests,
)
from headgate.coordinator.phases import Phase
from headgate.tables.concurrent_secondary_tables import SecondaryTables


def test_who_did_not_answer_in_time_stands_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source, clock = FakeSource(), FakeClock()
    source.create_or_replace("trips", 2)
    world = World(
        FakeLog(FakeLogServer(clock)),
        FakeTable(FakeCatalog(), IDENTITY.sink),
        FakeTopics(source, ("trips",)),
        clock,
    )
    driver = CoordinatorDriver(IDENTITY, SETTINGS, world, StartAt())
    for _ in range(50):
        driver.run_once(0)
        driver.begin_to_lead_if_caught_up()
        clock.advance(SETTINGS.commit_interval_ms)

    assert "0 rows committed; time-out; nothing admissible from trips/0, trips/1" in caplog.text


def test_what_is_tried_in_vain_again_and_again_is_told() -> None:
    source, clock, catalog = FakeSource(), FakeClock(), FakeCatalog()
    source.create_or_replace("trips", 1)
    told: list[tuple[str, int | None]] = []
    table = FakeTable(catalog, IDENTITY.sink)
    world = World(
        FakeLog(FakeLogServer(clock)),
        table,
        FakeTopics(source, ("trips",)),
        clock,
        on_trouble=lambda *said: told.append(said),
    )
    driver = CoordinatorDriver(IDENTITY, SETTINGS, world, StartAt())
    catalog.faults += [CommitFault.LOST_UNKNOWN] * 5
    tries = []
    while len(tries) < 12:
        driver.run_once(0)
        driver.begin_to_lead_if_caught_up()
        tries.append((driver.state.call.failures, len(told)))
        clock.advance(SETTINGS.retry_backoff_max_ms)

    assert all(not said for failures, said in tries if failures < TRIES_IN_SILENCE and not told)
    assert len(told) == 5 - TRIES_IN_SILENCE + 1
    text, next_try_ms = told[0]
    assert "commit not confirmed" in text
    assert f"tries again in {next_try_ms} ms" in text
    assert driver.state.call.failures == 0


@pytest.mark.parametrize("lasts", [True, False])
def test_h6_what_has_repeated_already_is_told_at_once(*, lasts: bool) -> None:
    source, clock = FakeSource(), FakeClock()
    source.create_or_replace("trips", 1)
    told: list[str] = []
    world = World(
        FakeLog(FakeLogServer(clock)),
        FakeTable(FakeCatalog(), IDENTITY.sink),
        FakeTopics(source, ("trips",)),
        clock,
        on_trouble=lambda text, _: told.append(text),
    )
    driver = CoordinatorDriver(IDENTITY, SETTINGS, world, StartAt())
    starves = LogLine(
        "HG-407 it starves", True, lasts=lasts, event=LogEvent.PARTICIPANT_ALWAYS_LATE
    )
    driver._execute(starves)
    assert told == (["HG-407 it starves"] if lasts else [])


def test_other_intervals_hold_from_the_next_start_on() -> None:
    source, clock = FakeSource(), FakeClock()
    source.create_or_replace("trips", 1)
    log = FakeLogServer(clock)
    table = FakeTable(FakeCatalog(), IDENTITY.sink)
    world = World(FakeLog(log), table, FakeTopics(source, ("trips",)), clock)
    driver = CoordinatorDriver(IDENTITY, SETTINGS, world, StartAt())

    def until(phase: Phase) -> None:
        while driver.state.phase is not phase:
            driver.run_once(0)
            driver.begin_to_lead_if_caught_up()
            clock.advance(10)

    until(Phase.OPEN)
    assert driver.state.wall_ms(clock.now_ms) == clock.wall_ms(), "PENDING-8: of each sink"
    until(Phase.COLLECTING)
    longer = replace(SETTINGS, commit_interval_ms=10 * SETTINGS.commit_interval_ms)
    driver.adopt_settings(longer)
    driver.run_once(0)
    assert driver.state.settings == SETTINGS  # what is under way ends as it began
    until(Phase.OPEN)
    driver.run_once(0)
    assert driver.state.settings == longer


def test_why_a_secondary_table_cannot_be_read_is_told() -> None:
    class Away:
        def try_read_views(self, tables: Collection[str]) -> Mapping[str, HeadgateError]:
            return dict.fromkeys(tables, Unreachable("HG-103 Forbidden"))

    world: Any = SimpleNamespace(secondaries=Away(), redaction=Redaction())
    found = answer_look(Look(tables=("lake.q",)), world, StartAt(), lambda: 0).secondaries
    assert found == SecondariesRead({}, unread={"lake.q": "HG-401 HG-103 Forbidden"})


def test_a_coordinators_stop_and_its_events_are_redacted() -> None:
    clock, source = FakeClock(), FakeSource()
    world = World(
        FakeLog(FakeLogServer(clock)),
        FakeTable(FakeCatalog(), IDENTITY.sink),
        FakeTopics(source, ()),
        clock,
        redaction=Redaction(frozenset({"sesame-open"})),
    )
    driver = CoordinatorDriver(IDENTITY, SETTINGS, world, StartAt())
    with pytest.raises(StopSink) as caught:
        driver._execute(Stop(StopSink("stops: sesame-open", "not sesame-open")))
    assert str(caught.value) == "HG-200 stops: *** (not ***)"
    aborted = AbortCommit(ControlOffset(1), Offsets(), reason="no log-in with sesame-open")
    (said,) = driver._make_envelopes(OutgoingEvent(Epoch(1), TransactionNumber(1), aborted))
    assert isinstance(said.event, AbortCommit)
    assert said.event.reason == "no log-in with ***"


class _Forbidden:
    """A table whose catalog repeats in its answers what it was sent."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self) -> TableView:
        raise MissingRights(f"{self._name}: no rights for sesame-open")

    def stage(self, staging: Staging) -> tuple[PendingCommit, ...]:
        raise MissingRights(f"{staging.table.table}: no rights for sesame-open")

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        return Unknown(f"{attempt.base.table}: no rights for sesame-open", rights=True)


@pytest.mark.parametrize("asks", ["look", "stage", "deliver", "change"])
def test_what_a_suspension_will_say_is_redacted_before_it_is_cut(asks: str) -> None:
    """START and the table's record repeat it; half a secret would be found by nobody."""
    clock, table = FakeClock(), replace(view(None), table="lake.orders")
    world = World(
        FakeLog(FakeLogServer(clock)),
        FakeTable(FakeCatalog(), IDENTITY.sink),
        FakeTopics(FakeSource(), ()),
        clock,
        redaction=Redaction(frozenset({"sesame-open"})),
        secondaries=SecondaryTables(_Forbidden, threads=False, required=()),  # type: ignore[arg-type]
    )
    decided = record(1, 1, Offsets())
    attempt = CommitAttempt(table, decided)
    asked: dict[str, Action] = {
        "look": Look(tables=(table.table,)),
        "stage": StageManifests((Staging(table, decided.transaction, ALICE, ()),)),
        "deliver": DeliverPendingCommits((attempt,), 1_000),
        "change": ChangeTables((Want(Destination(table.table, table.uuid), Struct()),)),
    }
    answer = CoordinatorDriver(IDENTITY, SETTINGS, world, StartAt())._execute(asked[asks])
    assert "no rights for ***" in str(answer)
    assert "sesame" not in str(answer)


@pytest.mark.parametrize(("start_at", "offset"), [("earliest", 2), ("latest", 9), (70, 6)])
def test_a_first_start_begins_where_it_is_told_and_the_next_where_the_record_ends(
    start_at: str | int, offset: int
) -> None:
    source, clock, catalog = FakeSource(), FakeClock(), FakeCatalog()
    source.create_or_replace("trips", 1)
    source.produce(P0, 6, timestamp_ms=10)
    source.produce(P0, 3, timestamp_ms=90)
    source.expire(P0, 2)

    def begun(where: StartAt) -> int:
        table = FakeTable(catalog, IDENTITY.sink)
        world = World(FakeLog(FakeLogServer(clock)), table, FakeTopics(source, ("trips",)), clock)
        driver = CoordinatorDriver(IDENTITY, SETTINGS, world, where)
        while driver.state.phase is not Phase.OPEN:
            driver.run_once(0)
            driver.begin_to_lead_if_caught_up()
            clock.advance(10)
        record = table.read().record
        assert record is not None
        return record.offsets[P0]

    assert begun(StartAt(start_at)) == offset
    source.produce(P0, 5, timestamp_ms=95)
    assert begun(StartAt("latest")) == offset, "the place is stored"


def test_a_coordinator_waits_long_only_while_its_transaction_is_open() -> None:
    source, clock = FakeSource(), FakeClock()
    source.create_or_replace("trips", 1)
    world = World(
        FakeLog(FakeLogServer(clock)),
        FakeTable(FakeCatalog(), IDENTITY.sink),
        FakeTopics(source, ("trips",)),
        clock,
    )
    driver = CoordinatorDriver(IDENTITY, SETTINGS, world, StartAt())
    driver.run_once(0)
    driver.begin_to_lead_if_caught_up()
    waits: dict[Phase, set[int]] = {}
    for _ in range(200):
        clock.advance(10)
        before = driver.state
        driver.run_once(0)
        if driver.state is before:  # nothing was heard or due
            waits.setdefault(driver.state.phase, set()).add(driver.ms_to_wait_for_log(50, 500))
    assert max(waits[Phase.OPEN]) == 500
    assert min(waits[Phase.OPEN]) < 50, "the next END is due before a turn is over"
    assert waits[Phase.COLLECTING] == {50}
