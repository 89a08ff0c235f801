"""FLEET-5, FLEET-6: plans of changes, and files that are applied as a whole."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fleet_records import FILE, fleet_of

from headgate.control_protocol.errors import ConfigurationError, FleetFilesUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.runtime.fleet.fleet_changes import (
    FleetPlanner,
    Occasion,
    Plan,
    SinkUnknown,
    Wanting,
    plan_apply,
    plan_balancer_moves,
    plan_desired_state,
    plan_drain,
    plan_pinned_move,
    plan_remove,
    plan_restart,
    plan_scale,
)
from headgate.runtime.fleet.fleet_records import Drain, Removal, SinkSpec, revision_of
from headgate.runtime.fleet.fleet_view import CommandRecord, FleetRecords, build_fleet_view
from headgate.runtime.fleet.placement import Move
from headgate.runtime.fleet.sink_files import has_own_jvm, read_sink_files, with_fleet_defaults
from headgate.runtime.fleet.sink_life import DesiredState

OCCASION = Occasion("alice", 1_000, 8)
A, B = SinkName("a"), SinkName("b")
SESSION_MS = 10_000


def planned(records: FleetRecords, change: FleetPlanner) -> Plan:
    return change(records, OCCASION)


def after(records: FleetRecords, plan: Plan) -> FleetRecords:
    """The records once the plan has been written."""
    for each in plan.changes:
        records.take_record(CommandRecord(each.key, each.slot, 10**6, 1_000, each))
    return records


def spec(key: str, slot: int, number: int = 1, **changes: Any) -> SinkSpec:
    return SinkSpec(key=key, slot=slot, number=number, file=FILE, **changes)


# -------------------------------------------------------------------------------------- FLEET-5


def test_fleet_5_every_change_counts_up_and_names_who_asked() -> None:
    records = fleet_of([spec("a", 0, 7), spec("b", 1, 9)])
    plan = planned(records, plan_restart(["a", "b"]))
    assert {(each.number, each.actor) for each in plan.changes} == {(10, "alice")}
    again = planned(after(records, plan), plan_restart(["a"]))
    assert [
        (each.number, each.restarts) for each in again.changes if isinstance(each, SinkSpec)
    ] == [(11, 2)]


def test_fleet_5_a_move_is_a_removal_and_a_spec_and_is_never_seen_halfway() -> None:
    records = fleet_of([spec("a", 0)], {"w0": (0, 1), "w1": (2, 3)})
    plan = planned(records, plan_pinned_move(["a"], "w1"))
    removal, moved = plan.changes
    assert isinstance(removal, Removal)
    assert isinstance(moved, SinkSpec)
    assert (removal.slot, moved.pinned, moved.moved_ms) == (0, True, 1_000)
    assert moved.slot in (2, 3)
    assert plan.lines == ("~ a: w0 to w1",)
    assert build_fleet_view(after(records, plan), 1_000).sinks["a"].worker == "w1"
    assert planned(records, plan_pinned_move(["a"], "w1")) == Plan()


def test_fleet_5_a_move_to_where_a_sink_is_pins_it_there() -> None:
    records = fleet_of([spec("a", 0)], {"w0": (0, 1), "w1": (2, 3)})
    plan = planned(records, plan_pinned_move(["a"], "w0"))
    (stays,) = plan.changes
    assert isinstance(stays, SinkSpec)
    assert (stays.slot, stays.pinned, stays.moved_ms) == (0, True, 0)
    assert plan.lines == ("~ a: stays on w0",)
    assert planned(after(records, plan), plan_pinned_move(["a"], "w0")) == Plan()


def test_fleet_5_who_is_not_there_is_named_and_nothing_is_planned() -> None:
    records = fleet_of([spec("trips", 0)], {"w0": (0,)})
    with pytest.raises(ConfigurationError, match=r"no sink trip .*did you mean trips"):
        planned(records, plan_desired_state(["trips", "trip"], DesiredState.PAUSED))
    with pytest.raises(ConfigurationError, match=r"no worker w9 now .*there are: w0"):
        planned(records, plan_pinned_move(["trips"], "w9"))
    with pytest.raises(ConfigurationError, match="only one"):
        planned(records, plan_drain("w0"))


def test_fleet_5_what_is_desired_already_writes_nothing() -> None:
    records = fleet_of([spec("a", 0, state=DesiredState.PAUSED)])
    assert planned(records, plan_desired_state(["a"], DesiredState.PAUSED)) == Plan()
    assert planned(records, plan_apply({A: Wanting(FILE)}, prune=True)) == Plan()


def test_fleet_5_a_drain_is_said_in_each_slot_of_this_start_of_the_worker() -> None:
    records = fleet_of([spec("a", 0)], {"w0": (0, 1), "w1": (2,)})
    drains = planned(records, plan_drain("w0")).changes
    assert [(each.slot, each.key) for each in drains] == [(0, "worker/w0"), (1, "worker/w0")]
    assert {each.incarnation for each in drains if isinstance(each, Drain)} == {"w0-1"}
    # Once the worker has started again, the next change takes them away.
    after(records, Plan(tuple(replace(each, incarnation="w0-0") for each in drains)))  # type: ignore[call-arg]
    tidied = planned(records, plan_remove(["a"])).changes
    assert {(type(each), each.key, each.slot) for each in tidied} == {
        (Removal, "a", 0),
        (Removal, "worker/w0", 0),
        (Removal, "worker/w0", 1),
    }


def test_fleet_5_who_changes_the_fleet_removes_specs_that_do_not_count() -> None:
    records = fleet_of([spec("a", 0, 1), spec("a", 3, 2), spec("b", 1)])
    assert planned(records, plan_balancer_moves([])).changes == (
        Removal(key="a", slot=0, number=3, actor="alice", time_ms=1_000),
    )


def test_fleet_5_a_move_of_a_sink_that_is_gone_is_left_out() -> None:
    assert planned(fleet_of([]), plan_balancer_moves([Move("a", 3)])) == Plan()


def test_fleet_8_a_sink_that_a_person_has_moved_since_the_balancer_looked_stays() -> None:
    """It would be pinned where nobody wanted it, and no balancer would move it again."""
    records = fleet_of([spec("a", 2, pinned=True), spec("b", 2)])
    changes = planned(records, plan_balancer_moves([Move("a", 3), Move("b", 3)])).changes
    assert {each.key for each in changes} == {"b"}


# -------------------------------------------------------------------------------------- FLEET-6


def test_fleet_6_apply_adds_changes_and_with_prune_removes() -> None:
    records = fleet_of([spec("a", 0, state=DesiredState.PAUSED), spec("gone", 1)])
    wanted = {A: Wanting(FILE + "# new\n"), B: Wanting(FILE)}
    plan = planned(records, plan_apply(wanted, prune=False))
    assert [line for line in plan.lines if line[0] != " "] == ["~ a", "+ b"]
    assert "  +# new" in plan.lines
    (changed, _) = plan.changes
    assert isinstance(changed, SinkSpec)
    assert (changed.state, changed.slot) == (DesiredState.PAUSED, 0), "it keeps state and place"
    pruned = planned(records, plan_apply(wanted, prune=True))
    assert "- gone" in pruned.lines
    assert set(build_fleet_view(after(records, pruned), 0).sinks) == {"a", "b"}
    assert planned(records, plan_apply(wanted, prune=True)) == Plan(), "it is idempotent"


def test_fleet_6_all_participants_of_a_sink_follow_its_file_and_its_name() -> None:
    records = fleet_of([spec("a", 0), spec("a#2", 1)])
    changed = planned(records, plan_apply({A: Wanting("name = 'a'\n")}, prune=True)).changes
    assert {each.key for each in changed} == {"a", "a#2"}
    stopped = planned(records, plan_desired_state(["a"], DesiredState.STOPPED)).changes
    assert {each.key for each in stopped} == {"a", "a#2"}


def test_fleet_6_a_sink_that_is_scaled_has_participants_on_different_workers() -> None:
    records = fleet_of([spec("a", 0)], {"w0": (0, 1), "w1": (2, 3), "w2": (4,)})
    assert planned(records, plan_scale("a", 3)).lines == ("+ a#2 on w2", "+ a#3 on w1")
    after(records, planned(records, plan_scale("a", 3)))
    assert planned(records, plan_scale("a", 3)) == Plan()
    assert planned(records, plan_scale("a", 1)).lines == ("- a#2", "- a#3")


@pytest.mark.parametrize("key", ["a", "a#2", "a#3"])
def test_fleet_6_a_sink_is_scaled_as_a_whole_by_the_key_of_any_participant(key: str) -> None:
    records = fleet_of([spec("a", 0), spec("a#2", 1), spec("a#3", 2)])
    assert planned(records, plan_scale(key, 1)).lines == ("- a#2", "- a#3")
    assert planned(records, plan_scale(key, 2)).lines == ("- a#3",)
    with pytest.raises(SinkUnknown):
        planned(records, plan_scale("a#4", 1))


GOOD = """
name = "{name}"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
{kafka}
[catalog.properties]
type = "sql"
uri = "{uri}"
warehouse = "file:///tmp/lake"
[table]
identifier = "db.trips"
create = true
[[table.columns]]
name = "id"
type = "long"
[spark]
writer = "in-process"
"""


def write(
    folder: Path, name: str, sink: str, *, uri: str = "sqlite:////tmp/c.db", kafka: str = ""
) -> None:
    (folder / name).write_text(GOOD.format(name=sink, uri=uri, kafka=kafka))


def test_fleet_6_good_files_are_read_by_their_sinks(tmp_path: Path) -> None:
    write(tmp_path, "one.toml", "a")
    write(tmp_path, "two.toml", "b", kafka='"sasl.password" = "${file:/not/on/this/machine}"')
    (tmp_path / ".hidden.toml").write_text("an editor's")
    (tmp_path / "notes.txt").write_text("no sink")
    assert [*read_sink_files(tmp_path)] == ["a", "b"]


def test_fleet_6_each_wrong_file_is_named_and_none_is_taken(tmp_path: Path) -> None:
    write(tmp_path, "good.toml", "a")
    write(tmp_path, "twin.toml", "a")
    write(tmp_path, "clear.toml", "b", kafka='"sasl.password" = "sesame-open"')
    write(tmp_path, "url.toml", "c", uri="postgresql://me:sesame-open@db/lake")
    write(tmp_path, "key.toml", "d", kafka='"sasl.pasword" = "x"')
    (tmp_path / "torn.toml").write_bytes(b"\xff = [")
    with pytest.raises(FleetFilesUnfit) as caught:
        read_sink_files(tmp_path)
    said = str(caught.value)
    assert said.startswith("HG-123 5 of 6 sink files are wrong, so nothing was changed")
    for expected in (
        "HG-128 twin.toml and good.toml name the same sink",
        'clear.toml: kafka."sasl.password" holds a secret in clear text',
        'url.toml: catalog.properties."uri" holds a secret',
        'key.toml:7:1: kafka."sasl.pasword" is not a known key',
        "torn.toml: is not UTF-8 text",
    ):
        assert expected in said, expected
    assert "sesame" not in said


# ------------------------------------------------------------------------------------- FLEET-11


@pytest.mark.parametrize(
    "control",
    [
        "",
        "[control]\n",
        '[control] # ours\nkey = "${env:KEY}"\n',
        'control = { key = "${env:KEY}" }\n',
        'control.key = "${env:KEY}"\n',
    ],
)
def test_fleet_11_a_sink_without_a_control_topic_gets_its_own(control: str) -> None:
    head = f'name = "a"\n{control}' if not control.startswith("[") else 'name = "a"\n'
    tail = '[source]\ntopics = ["a"]\n' + (control if control.startswith("[") else "")
    text = head + tail
    own = with_fleet_defaults(text, A, SESSION_MS)
    before, found = tomllib.loads(text), tomllib.loads(own)
    if control.startswith("control = {"):
        assert own == text, "an inline table takes no further key: it stays as it is"
        return
    assert found.pop("control")["topic"] == "headgate-control-a"
    before.pop("control", None)
    assert found == before


def test_fleet_11_a_control_topic_that_is_named_stays() -> None:
    text = 'name = "a"\n[control]\ntopic = "shared"\n'
    assert with_fleet_defaults(text, A, SESSION_MS) == text
    assert revision_of(text.encode()) == revision_of(text.encode())


BROKERS = '"bootstrap.servers" = "b:9092"\n'


@pytest.mark.parametrize(
    "kafka",
    [
        f"[kafka]\n{BROKERS}",
        f"[ kafka ] # here\n{BROKERS}[kafka.auth]\ntype = 'none'\n",
        f"kafka.{BROKERS}",
    ],
)
def test_fleet_11_a_sink_has_the_session_of_its_worker(kafka: str) -> None:
    head = kafka if kafka.startswith("kafka.") else ""
    text = f'{head}name = "a"\n[source]\ntopics = ["a"]\n{kafka if not head else ""}'
    found = tomllib.loads(with_fleet_defaults(text, A, SESSION_MS))
    assert found["kafka"].pop("session.timeout.ms") == SESSION_MS
    assert found.pop("control") == {"topic": "headgate-control-a"}
    assert found == tomllib.loads(text)


@pytest.mark.parametrize(
    ("source", "kafka"),
    [
        ("", '"session.timeout.ms" = 30000'),
        ("", '"heartbeat.interval.ms" = 12000'),
        ("", '"max.poll.interval.ms" = 9000'),
        ('group_protocol = "consumer"', ""),
    ],
)
def test_fleet_11_who_says_how_long_a_session_is_keeps_it(source: str, kafka: str) -> None:
    text = f'name = "a"\n[source]\ntopics = ["a"]\n{source}\n[kafka]\n{BROKERS}{kafka}\n'
    found = tomllib.loads(with_fleet_defaults(text, A, SESSION_MS))
    assert found.pop("control")
    assert found == tomllib.loads(text)


def test_fleet_11_a_session_is_no_longer_than_a_client_takes() -> None:
    text = f'name = "a"\n[source]\ntopics = ["a"]\n[kafka]\n{BROKERS}'
    found = tomllib.loads(with_fleet_defaults(text, A, 1_800_000))
    assert found["kafka"]["session.timeout.ms"] == 45_000


def test_fleet_6_a_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.toml", "a")
    texts: list[str] = []
    real = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda text: texts.append(text) or real(text))
    read_sink_files(tmp_path)
    assert len(texts) == 1, "most of what apply does is that"


def test_fleet_11_no_text_is_parsed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec's own, and what it becomes with each of two settings."""
    text = f'name = "a"\n[source]\ntopics = ["parsed"]\n[kafka]\n{BROKERS}'
    texts: list[str] = []
    real = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda text: texts.append(text) or real(text))
    assert has_own_jvm(text)
    own = with_fleet_defaults(text, A, SESSION_MS)
    assert (texts[0], texts[-1], len(texts), len({*texts})) == (text, own, 4, 4)


def test_fleet_6_a_folder_without_files_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "trips.toml.old").write_text(FILE)
    with pytest.raises(FleetFilesUnfit, match="holds no sink file"):
        read_sink_files(tmp_path)
