"""What ``apply --check`` asks of the files that a fleet would begin to follow."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import OtherConfiguration
from headgate.control_protocol.identifiers import SinkName
from headgate.operations.check import fleet_files
from headgate.operations.check.check import Check, State
from headgate.operations.check.fleet_files import check_sink_files
from headgate.runtime.fleet.fleet_changes import Plan, file_texts_of_changed_sinks
from headgate.runtime.fleet.fleet_records import Removal, SinkSpec
from headgate.runtime.fleet.sink_files import with_fleet_defaults

NAME = SinkName("trips")


def test_each_sink_is_asked_as_its_worker_would_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(settings: SinkSettings) -> tuple[Check, ...]:
        return (Check("control topic", State.OK, settings.control.topic),)

    monkeypatch.setattr(fleet_files, "check", answer)
    (found,) = check_sink_files({NAME: with_fleet_defaults(MINIMAL, NAME, 10_000)})[NAME]
    assert found.detail == "headgate-control-trips"


@pytest.mark.parametrize(("writer", "at_once"), [("spark", 1), ("in-process", 2)])
def test_sinks_with_spark_are_asked_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, writer: str, at_once: int
) -> None:
    """They share the session of this process."""
    under_way, most = [0], [0]
    both = threading.Barrier(2)

    def answer(_: SinkSettings) -> tuple[Check, ...]:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        if at_once == 2:
            both.wait(10)
        under_way[0] -= 1
        return ()

    monkeypatch.setattr(fleet_files, "check", answer)
    text = f'{MINIMAL}[spark]\nwriter = "{writer}"\n'
    check_sink_files({SinkName(f"s{n}"): text for n in range(2)})
    assert most[0] == at_once


def test_a_reference_that_cannot_be_read_here_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_files, "check", lambda _: pytest.fail("it cannot be loaded"))
    (found,) = check_sink_files({NAME: MINIMAL.replace('"trips"', '"${env:NOT_HERE}"', 1)})[NAME]
    assert (found.state, found.exit_code) == (State.WRONG, 2)
    assert "NOT_HERE" in found.detail + found.hint


def test_those_at_work_may_have_the_file_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ("they have another file", "give all the same", OtherConfiguration.code, 2)
    answers = (Check("participants", State.WRONG, *other), Check("table", State.WRONG, "is gone"))
    monkeypatch.setattr(fleet_files, "check", lambda _: answers)
    participants, table = check_sink_files({NAME: MINIMAL})[NAME]
    assert (participants.state, participants.exit_code) == (State.OK, 0)
    assert table == answers[1]


def test_what_a_plan_changes_is_asked_once_for_all_participants() -> None:
    common: dict[str, Any] = {"slot": 0, "number": 1}
    specs = [SinkSpec(key=key, file=MINIMAL, **common) for key in ("trips", "trips#2")]
    plan = Plan((*specs, Removal(key="old", **common)))
    assert file_texts_of_changed_sinks(plan) == {NAME: MINIMAL}
