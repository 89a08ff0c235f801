"""A fleet on a real broker: workers that die, specs of every kind, nights without topics."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from integration.conftest import Deploy
from integration.deployment import Deployment
from support.fleet_scene import KEY, Fleet, produce_raw, running, worker_of

from headgate.control_protocol.errors import FleetChangedMeanwhile
from headgate.kafka.compacted_topics import KeyedValue, TransactionalWriter
from headgate.operations.local_kafka.broker import EmbeddedKafka
from headgate.runtime.fleet.fleet_changes import plan_desired_state
from headgate.runtime.fleet.fleet_records import CommandWire, SinkSpec
from headgate.runtime.fleet.fleet_topics import change_fleet
from headgate.runtime.fleet.sink_life import DesiredState, LifeState

pytestmark = pytest.mark.integration

MakeFleet = Callable[..., Fleet]


@pytest.fixture
def make_fleet(tmp_path: Path, bootstrap: str, unique_name: str) -> Iterator[MakeFleet]:
    made: list[Fleet] = []

    def make(**given: object) -> Fleet:
        made.append(Fleet(tmp_path, bootstrap, f"{unique_name}-fleet", **given))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for fleet in made:
        fleet.__exit__()


def sinks_of(deploy: Deploy, fleet: Fleet, *names: str) -> dict[str, Deployment]:
    """Sinks with a table each, whose files are in the fleet's folder."""
    made = {name: deploy({"name": name, "table": {"identifier": f"db.{name}"}}) for name in names}
    for name, sink in made.items():
        shutil.copy(sink.sink_file, fleet.folder / f"{name}.toml")
    return made


def commits_all(sinks: dict[str, Deployment], count: int = 200) -> None:
    for sink in sinks.values():
        sink.produce(count)
    for sink in sinks.values():
        sink.wait_until_lag_zero()


@pytest.mark.wide
def test_fleet_7_workers_share_sinks_and_take_over_from_one_that_is_killed(
    deploy: Deploy, make_fleet: MakeFleet
) -> None:
    fleet = make_fleet()
    sinks = sinks_of(deploy, fleet, "a", "b", "c", "d")
    assert "4 files: 4 added" in fleet.command("apply", fleet.folder)
    fleet.start("w0", "w1", "w2")
    keys = [*sinks]
    seen = fleet.wait_until(
        lambda view: (
            running(view, keys)
            and len({worker_of(sink) for sink in view.sinks.values()}) > 1
            and {
                s.observed.revision == s.spec.revision
                for s in view.sinks.values()
                if s.observed and s.spec
            }
            == {True}
        ),
        "shared and followed",
    )
    commits_all(sinks)
    victim = worker_of(seen.sinks["a"])
    fleet.kill(victim)
    commits_all(sinks)
    fleet.wait_until(
        lambda view: running(view, keys) and victim not in map(worker_of, view.sinks.values()),
        "taken over",
    )
    # Who ends in order hands over at once.
    leaving = worker_of(fleet.view().sinks["a"])
    assert fleet.ask_to_end(leaving) == 0
    commits_all(sinks)
    fleet.wait_until(
        lambda view: running(view, keys) and leaving not in map(worker_of, view.sinks.values()),
        "handed over",
    )
    assert leaving not in fleet.view().workers, "it has taken back what it told of itself"
    for sink in sinks.values():
        sink.judge()


@pytest.mark.wide
def test_fleet_7_specs_of_every_kind_are_followed(deploy: Deploy, make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    sinks = sinks_of(deploy, fleet, "a", "b")
    fleet.command("apply", fleet.folder)
    fleet.start("w0", "w1")
    fleet.wait_until(lambda view: running(view, [*sinks]) and len(view.workers) == 2, "running")
    commits_all(sinks)

    assert "running becomes paused" in fleet.command("pause", "a", "--dry-run")
    assert fleet.view().sinks["a"].spec.state is DesiredState.RUNNING  # type: ignore[union-attr]
    fleet.command("pause", "a")
    fleet.wait_for(LifeState.PAUSED, "a")
    sinks["a"].produce(100)
    fleet.command("resume", "a")
    fleet.wait_for(LifeState.RUNNING, "a")
    sinks["a"].wait_until_lag_zero()

    fleet.command("stop", "a")
    assert fleet.wait_for(LifeState.STOPPED, "a")["a"].observed.pid == 0  # type: ignore[union-attr]
    fleet.command("start", "a")
    first = fleet.wait_for(LifeState.RUNNING, "a")["a"].observed
    assert first is not None
    fleet.command("restart", "a")
    fleet.wait_until(
        lambda view: running(view, ["a"]) and view.sinks["a"].observed.pid != first.pid,  # type: ignore[union-attr]
        "started anew",
    )

    there = worker_of(fleet.view().sinks["a"])
    other = next(name for name in ("w0", "w1") if name != there)
    assert f"a: {there} to {other}" in fleet.command("move", "a", "--to", other)
    fleet.wait_until(
        lambda view: (
            running(view, ["a"])
            and worker_of(view.sinks["a"]) == other
            and not view.sinks["a"].elsewhere
        ),
        "moved, and left",
    )
    commits_all(sinks)

    assert "runs no sink" in fleet.command("drain", other)
    fleet.wait_until(
        lambda view: running(view, [*sinks]) and {*map(worker_of, view.sinks.values())} == {there},
        "drained",
    )
    commits_all(sinks)
    fleet.command("remove", "b")
    fleet.wait_until(lambda view: [*view.sinks] == ["a"], "removed")
    assert "a " in fleet.command("list")
    for sink in sinks.values():
        sink.judge()


@pytest.mark.wide
def test_fleet_6_a_wrong_file_changes_nothing(deploy: Deploy, make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    sinks_of(deploy, fleet, "a", "b")
    assert "2 added, 0 changed, 0 removed (dry run)" in fleet.command(
        "apply", fleet.folder, "--dry-run"
    )
    assert "HG-124" in fleet.command("list", code=2), "a dry run creates no topic"
    fleet.command("apply", fleet.folder)
    before = fleet.view()
    (fleet.folder / "a.toml").unlink()
    good = (fleet.folder / "b.toml").read_text()
    (fleet.folder / "b.toml").write_text(good + "# changed\n")
    (fleet.folder / "c.toml").write_text(good.replace('name = "b"', 'name = "c"') + "[cntrol]\n")
    said = fleet.command("apply", fleet.folder, "--prune", code=2)
    assert "HG-123 1 of 2 sink files are wrong" in said
    assert "cntrol is not a known key" in said
    assert [s.spec for s in fleet.view().sinks.values()] == [s.spec for s in before.sinks.values()]
    (fleet.folder / "c.toml").unlink()
    said = fleet.command("apply", fleet.folder, "--prune")
    assert "1 file: 0 added, 1 changed, 1 removed" in said
    assert [*fleet.wait_until(lambda view: len(view.sinks) == 1, "pruned").sinks] == ["b"]
    assert "HG-411" in fleet.command("list", code=3), "nobody works"


def test_fleet_5_who_began_earlier_changes_nothing_and_an_older_spec_does_not_win(
    deploy: Deploy, make_fleet: MakeFleet
) -> None:
    fleet = make_fleet()
    sinks_of(deploy, fleet, "a")
    fleet.command("apply", fleet.folder)
    settings = fleet.settings
    hanging = TransactionalWriter(settings.kafka, settings.fleet.name)
    hanging.fence_earlier_writers()
    older = fleet.view().sinks["a"].spec
    assert older is not None
    fleet.command("pause", "a")
    value = CommandWire().encode(older)
    with pytest.raises(FleetChangedMeanwhile):
        hanging.write([KeyedValue(settings.fleet.name, older.slot, "a", value)])
    paused = fleet.wait_until(
        lambda view: view.sinks["a"].spec.state is DesiredState.PAUSED,  # type: ignore[union-attr]
        "paused",
    ).sinks["a"]
    assert paused.spec is not None
    # An older spec in another slot, with a clock far ahead, does not count, and is removed.
    stray = SinkSpec(key="a", slot=(older.slot + 1) % 12, number=0, file=older.file, time_ms=2**40)
    produce_raw(settings, stray.slot, "a", CommandWire().encode(stray))
    fleet.wait_until(
        lambda _: fleet._reader.records.specs.get((stray.slot, "a")) is not None,  # type: ignore[union-attr]
        "the stray is there",
    )
    assert fleet.view().sinks["a"].spec == paused.spec
    change_fleet(settings, plan_desired_state(["a"], DesiredState.RUNNING), "test")
    fleet.wait_until(
        lambda _: [*fleet._reader.records.specs] == [(older.slot, "a")],  # type: ignore[union-attr]
        "tidied",
    )


@pytest.mark.wide
def test_fleet_3_a_forged_spec_is_refused_and_named(deploy: Deploy, make_fleet: MakeFleet) -> None:
    fleet = make_fleet(key=KEY)
    sinks = sinks_of(deploy, fleet, "a")
    fleet.command("apply", fleet.folder)
    fleet.start("w0")
    seen = fleet.wait_for(LifeState.RUNNING, "a")["a"]
    assert seen.spec is not None
    forged = SinkSpec(
        key="a", slot=seen.slot, number=99, file="name = 'a'\n", state=DesiredState.STOPPED
    )
    for key, value in (("a", CommandWire().encode(forged)), ("a", None)):
        produce_raw(fleet.settings, seen.slot, key, value)
    strange = SinkSpec(key="evil", slot=seen.slot, number=99, file="name = 'evil'\n")
    produce_raw(fleet.settings, seen.slot, "evil", CommandWire().encode(strange))
    fleet.wait_until(lambda view: view.workers["w0"].observed.refused == 2, "refused by the worker")
    commits_all(sinks)
    found = fleet.view()
    assert found.sinks["a"].observed.pid == seen.observed.pid  # type: ignore[union-attr]
    assert found.sinks["evil"].observed is None
    said = fleet.command("list", code=1)
    assert "is not followed: it is not signed (a tombstone)" in said
    assert "evil" in said
    assert "HG-125" in fleet.logs()
    fleet.command("pause", "a")
    fleet.wait_for(LifeState.PAUSED, "a")
    assert not fleet.view().sinks["a"].refused, "a genuine spec stands behind it"
    sinks["a"].judge()


@pytest.mark.wide
def test_fleet_9_sinks_go_on_without_the_fleets_topics_and_follow_them_again(
    deploy: Deploy, make_fleet: MakeFleet, admin: AdminClient
) -> None:
    fleet = make_fleet()
    sinks = sinks_of(deploy, fleet, "a", "b")
    fleet.command("apply", fleet.folder)
    fleet.start("w0", "w1")
    before = fleet.wait_for(LifeState.RUNNING, "a", "b")
    settings = fleet.settings
    for deleted in admin.delete_topics([settings.fleet.name, settings.fleet.state_topic]).values():
        deleted.result()
    commits_all(sinks)
    fleet.wait_until(lambda _: "HG-124" in fleet.logs(), "missed")
    commits_all(sinks)
    fleet.read_anew()
    fleet.command("apply", fleet.folder)
    fleet.wait_until(lambda view: running(view, ["a", "b"]), "told of again")
    fleet.command("stop", "a")
    fleet.wait_for(LifeState.STOPPED, "a")
    after = fleet.wait_for(LifeState.RUNNING, "b")
    assert after["b"].observed is not None
    assert before["b"].observed is not None
    fleet.command("start", "a")
    commits_all(sinks)
    for sink in sinks.values():
        sink.judge()


@pytest.mark.wide
def test_fleet_9_sinks_go_on_while_the_brokers_of_the_fleet_are_away(
    deploy: Deploy, tmp_path: Path, own_kafka: EmbeddedKafka, unique_name: str
) -> None:
    with Fleet(tmp_path, own_kafka.bootstrap, f"{unique_name}-fleet") as fleet:
        sinks = sinks_of(deploy, fleet, "a", "b")
        fleet.command("apply", fleet.folder)
        fleet.start("w0")
        before = fleet.wait_for(LifeState.RUNNING, "a", "b")
        own_kafka.kill()
        commits_all(sinks)
        assert "HG-4" in fleet.command("pause", "a", code=3)
        commits_all(sinks)
        own_kafka.restart()
        fleet.command("pause", "a")
        after = fleet.wait_for(LifeState.PAUSED, "a")
        after |= fleet.wait_for(LifeState.RUNNING, "b")
        for name, view in after.items():
            assert view.observed is not None
            assert before[name].observed is not None
            assert view.observed.pid == before[name].observed.pid
        for sink in sinks.values():
            sink.judge()


@pytest.mark.wide
def test_fleet_9_a_worker_that_stands_still_is_replaced_and_gives_way(
    deploy: Deploy, make_fleet: MakeFleet
) -> None:
    fleet = make_fleet()
    sinks = sinks_of(deploy, fleet, "a", "b")
    fleet.command("apply", fleet.folder)
    fleet.start("w0")
    fleet.wait_for(LifeState.RUNNING, "a", "b")
    fleet.start("w1")
    still = psutil.Process(fleet.workers["w0"].pid)
    still.suspend()
    fleet.wait_until(
        lambda view: running(view, [*sinks]) and {*map(worker_of, view.sinks.values())} == {"w1"},
        "taken over",
    )
    commits_all(sinks)
    still.resume()
    fleet.wait_until(
        lambda view: (
            running(view, [*sinks]) and not any(sink.elsewhere for sink in view.sinks.values())
        ),
        "one of each",
    )
    commits_all(sinks)
    for sink in sinks.values():
        sink.judge()
