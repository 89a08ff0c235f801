"""Several sinks in one process, by the command: one's failure spares the others."""

from __future__ import annotations

import itertools
import json
import logging
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from unit.config.test_reload import TEXT, Opened, World, write

from headgate.config import reload
from headgate.config.load import load, parse
from headgate.config.setting_types import Secret
from headgate.config.sink_settings import SinkSettings
from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.control_protocol.current_sink import (
    bound_to_current_sink,
    current_sink,
    working_for_sink,
)
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    SinksClash,
    StepDown,
    StopSink,
    Unreachable,
)
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.runtime import multi_sink_process
from headgate.runtime.console_log import JsonLines, Redacting
from headgate.runtime.multi_sink_process import require_no_clashes, run_side_by_side
from headgate.runtime.systemd import SharedManager
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.meters import Labels, NoTelemetry
from headgate.runtime.telemetry.sink_metrics import SinkMeters

ZONES = TEXT.replace('"trips"', '"zones"', 1)
PATIENCE_S = 30


class Story:
    """Two sinks, and what befalls each turn of theirs; the end is asked for by ``stop``."""

    def __init__(self, folder: Path, world: World) -> None:
        self.files = {name: folder / f"{name}.toml" for name in ("trips", "zones")}
        for name, text in {"trips": TEXT, "zones": ZONES}.items():
            self.files[name].write_text(text)
        self.world = world
        self.stop = threading.Event()
        self.turns: dict[str, int] = {"trips": 0, "zones": 0}
        self.befalls: dict[str, Callable[[int], None]] = {}
        world.at_turn = self._turn

    def _turn(self, life: Opened) -> None:
        life.turns = 0  # it may turn as often as it likes
        name = str(life.opened_with.name)
        self.turns[name] += 1
        self.befalls.get(name, lambda _: None)(self.turns[name])
        self.stop.wait(0.001)

    def run(self) -> Mapping[str, HeadgateError]:
        late = threading.Timer(PATIENCE_S, self.stop.set)
        late.daemon = True
        late.start()
        files = {path: load(path) for path in self.files.values()}
        return run_side_by_side(files, self.stop, measuring=self.world.measuring)

    def lives(self, name: str) -> list[Opened]:
        return [life for life in self.world.lives if life.opened_with.name == name]


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    monkeypatch.setattr(reload, "LOOKED_AT_S", 0)
    monkeypatch.setattr(multi_sink_process, "AGAIN_S", 0)
    return Story(tmp_path, World(monkeypatch))


def test_both_leave_in_order_when_asked(story: Story) -> None:
    raised = itertools.count()

    def once_both_turned(_: int) -> None:
        if all(story.turns.values()) and not next(raised):  # a second one would end pytest's worker
            signal.raise_signal(signal.SIGTERM)

    story.befalls = dict.fromkeys(story.turns, once_both_turned)
    before = signal.getsignal(signal.SIGTERM)
    assert story.run() == {}
    assert [life.closed for life in story.world.lives] == [True, True]
    assert signal.getsignal(signal.SIGTERM) == before


def test_one_that_stops_takes_no_other_along_and_is_told_at_the_end(story: Story) -> None:
    def stops(_: int) -> None:
        raise StopSink("no")

    def goes_on(turns: int) -> None:
        if story.turns["trips"] and turns > 20:
            story.stop.set()

    story.befalls = {"trips": stops, "zones": goes_on}
    errors = story.run()
    assert {name: error.code for name, error in errors.items()} == {"trips": "HG-200"}
    assert story.turns["trips"] == 1, "a person decides"
    (zones,) = story.lives("zones")
    assert zones.closed


def test_when_none_is_left_the_process_ends(story: Story) -> None:
    def stops(_: int) -> None:
        raise StopSink("no")

    def refuses(_: int) -> None:
        raise ConfigurationError("no")

    story.befalls = {"trips": stops, "zones": refuses}
    errors = story.run()
    assert {name: error.code for name, error in errors.items()} == {
        "trips": "HG-200",
        "zones": "HG-100",
    }


@pytest.mark.parametrize("error", [Unreachable("no answer"), StepDown("no"), ZeroDivisionError()])
def test_what_no_person_has_to_look_at_is_tried_again(story: Story, error: Exception) -> None:
    def away(turns: int) -> None:
        if turns < 4:
            raise error
        story.stop.set()

    story.befalls = {"trips": away}
    assert story.run() == {}
    assert len(story.lives("trips")) == 4
    assert len(story.lives("zones")) == 1


def test_one_that_stopped_begins_again_when_its_file_is_written(story: Story) -> None:
    def stops(turns: int) -> None:
        if turns == 1:
            raise StopSink("no")
        story.stop.set()

    def writes(_: int) -> None:
        if story.turns["trips"] == 1:
            write(story.files["trips"], TEXT + "[participant]\nfiles_max = 99\n")

    story.befalls = {"trips": stops, "zones": writes}
    assert story.run() == {}
    _, second = story.lives("trips")
    assert second.opened_with.participant.files_max == 99


def test_a_file_that_would_clash_changes_nothing(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    story.files["zones"].write_text(ZONES + '[http]\nlisten = "127.0.0.1:8080"\n')

    def writes(turns: int) -> None:
        if turns == 1:
            write(story.files["trips"], TEXT + '[http]\nlisten = "127.0.0.1:8080"\n')
        elif any("HG-128" in record.getMessage() for record in caplog.records):
            story.stop.set()

    story.befalls = {"trips": writes}
    assert story.run() == {}
    assert len(story.lives("trips")) == 1


def listening(text: str, where: str) -> SinkSettings:
    token = Secret("v" * 20)
    http = HttpSettings(listen=where, certificate="c", key="k", viewer_token=token)
    return replace(parse(text), http=http)


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("127.0.0.1:8080", "127.0.0.1:8080", True),
        ("127.0.0.1:8080", "0.0.0.0:8080", True),
        ("[::]:8080", "127.0.0.1:8080", True),
        ("127.0.0.1:8080", "127.0.0.1:8081", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("127.0.0.1:8080", "127.0.0.2:8080", False),
    ],
)
def test_two_that_listen_at_the_same_place_are_refused(one: str, other: str, clash: bool) -> None:
    sinks = [listening(TEXT, one), listening(ZONES, other)]
    if not clash:
        require_no_clashes(sinks)
        return
    with pytest.raises(SinksClash, match="both listen on"):
        require_no_clashes(sinks)


def test_the_same_name_twice_or_spark_twice_is_refused() -> None:
    with pytest.raises(SinksClash, match="two of the sink files name the sink trips"):
        require_no_clashes([parse(TEXT), parse(TEXT)])
    spark = TEXT.replace('"in-process"', '"spark"')
    assert spark != TEXT
    with pytest.raises(SinksClash, match="so does another sink of this process"):
        require_no_clashes([parse(spark), parse(spark.replace('"trips"', '"zones"', 1))])


def test_a_line_names_the_sink_of_its_thread_whoever_writes_it() -> None:
    sinks = [parse(TEXT), parse(ZONES)]
    record = logging.LogRecord("urllib3", logging.WARNING, "f", 1, "retrying", (), None)

    def lines() -> tuple[object, str]:
        return json.loads(JsonLines(sinks).format(record))["sink"], Redacting(sinks).format(record)

    def in_a_thread() -> tuple[object, str]:
        with ThreadPoolExecutor(1, initializer=bound_to_current_sink(lambda: None)) as pool:
            return pool.submit(lines).result()

    with working_for_sink("zones"):
        named, text = in_a_thread()
    assert (named, text.startswith("[zones] ")) == ("zones", True)
    named, text = in_a_thread()
    assert (named, text.startswith("[")) == (None, False)
    assert json.loads(JsonLines(sinks[:1]).format(record))["sink"] == "trips"
    assert current_sink() is None


class Counted(NoTelemetry):
    """Keeps whose errors were counted."""

    def __init__(self) -> None:
        self.errors: set[tuple[str, str]] = set()

    def count(self, name: str, amount: float, labels: Labels) -> None:
        assert (name, amount) == (names.ERRORS, 1)
        self.errors.add((labels["sink"], labels["code"]))


def test_errors_are_counted_for_the_sink_that_has_them() -> None:
    kept = Counted()
    meters = [SinkMeters(kept, parse(TEXT)), SinkMeters(kept, parse(ZONES))]
    log = redacted_logger("headgate.x")
    with working_for_sink("trips"):
        log.warning("HG-403 no space")
    log.warning("HG-401 nobody's own")
    for each in meters:
        each.close()
    assert kept.errors == {("trips", "HG-403"), ("trips", "HG-401"), ("zones", "HG-401")}


class Told:
    """A service manager that keeps what it was told."""

    def __init__(self) -> None:
        self.statuses: list[str] = []

    def on_turn(self, status: str) -> None:
        self.statuses.append(status)

    def on_stopping(self) -> None: ...


def test_a_sink_that_hangs_is_not_covered_up_by_the_others() -> None:
    told = Told()
    turns = SharedManager(told, ["trips", "zones"])
    trips, zones = turns.manager_of("trips"), turns.manager_of("zones")
    for _ in range(3):
        trips.on_turn("coordinates")
    assert told.statuses == []
    zones.on_turn("takes part")
    assert told.statuses == ["2 sinks at work"]
    trips.on_turn("coordinates")
    turns.on_sink_end("zones")
    assert told.statuses == ["2 sinks at work", "1 sinks at work"]
    zones.on_turn("takes part")
    assert len(told.statuses) == 2
    turns.on_sink_end("trips")
    turns.on_sink_end("zones")
    assert told.statuses[-1] == "0 sinks at work", "the process lives, and tries again"
