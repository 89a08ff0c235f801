"""What ``apply --check`` asks of the files that a fleet would begin to follow."""

from __future__ import annotations

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
