"""Several sinks in one process, each turned, ended and reported separately."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest
from unit.config.test_load import MINIMAL

import headgate
from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import ConfigurationError, PoisonRecord, StopSink
from headgate.runtime import assembly
from headgate.runtime import sink as participation

ONE, OTHER = parse(MINIMAL), parse(MINIMAL.replace('"trips"', '"zones"'))
SPARK = parse(MINIMAL + '[spark]\nwriter = "spark"\n')


@dataclass
class Driver:
    """Stands for what is open."""

    fails: StopSink | None = None
    did: list[str] = field(default_factory=list)

    def ms_to_wait_for_log(self, turn_ms: int, _: int) -> int:
        return turn_ms

    def run_once(self, _: int) -> None:
        self.did.append("turn")
        if self.fails:
            raise self.fails

    def close(self) -> None:
        self.did.append("leave")


class World:
    """What is opened, by the name of the sink, and how it departs."""

    def __init__(self) -> None:
        self.drivers = {ONE.name: Driver(), OTHER.name: Driver()}
        self.departed: dict[str, str] = {}

    @contextmanager
    def opened(self, settings: SinkSettings, *_: object) -> Iterator[Driver]:
        driver = self.drivers[settings.name]
        yield driver
        driver.did.append("close")

    @contextmanager
    def departing(self, settings: SinkSettings, _: object) -> Iterator[None]:
        try:
            yield
        except StopSink as error:
            self.departed[settings.name] = error.code
            raise
        self.departed[settings.name] = "in order"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(participation, "open_sink", made.opened)
    monkeypatch.setattr(participation, "announcing_end", made.departing)
    return made


def test_a_sink_that_ends_takes_no_other_along(world: World) -> None:
    world.drivers[ONE.name].fails = PoisonRecord("trips/0 offset 7")
    with headgate.Sink(OTHER) as zones:
        with pytest.raises(PoisonRecord), headgate.Sink(ONE) as trips:
            zones.turn()
            trips.turn()
        zones.turn()
    assert world.departed == {ONE.name: "HG-207", OTHER.name: "in order"}
    assert world.drivers[OTHER.name].did == ["turn", "turn", "leave", "close"]
    assert world.drivers[ONE.name].did == ["turn"], "what ended in an error does not announce"


def test_who_has_left_leaves_once(world: World) -> None:
    sink = headgate.Sink(ONE)
    sink.leave()
    sink.close()
    assert world.drivers[ONE.name].did == ["leave", "close"]


def test_what_cannot_be_opened_is_told_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise StopSink("no")

    monkeypatch.setattr(participation, "open_sink", refused)
    with pytest.raises(StopSink):
        headgate.Sink(ONE)
    assert world.departed == {ONE.name: "HG-200"}


def test_one_sink_of_a_process_writes_with_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("session.open_session", "batch_writer.SparkBatchWriter"):
        monkeypatch.setattr(f"headgate.data_plane.spark.{name}", Mock())
    planning = Mock()
    planning.plans.shaping.transform = None
    monkeypatch.setattr(assembly, "RenewingWriter", Mock())
    first = assembly.open_batch_writer(SPARK, planning)
    with (
        first,
        pytest.raises(ConfigurationError, match="so does another sink of this process"),
        assembly.open_batch_writer(SPARK, planning),
    ):
        pass
    with assembly.open_batch_writer(SPARK, planning):
        pass
