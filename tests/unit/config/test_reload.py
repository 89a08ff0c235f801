"""A sink file that changes holds live, opens the sink anew, or changes nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock, call

import pytest
from unit.operations.filled_table import sink_file_text

from headgate.config import reload as module
from headgate.config.load import load, parse
from headgate.config.reload import RefusedFile, Reload, can_apply_live
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import HeadgateError, LeadershipReleased, SinkStopped
from headgate.control_protocol.events import Notice, NoticeKind
from headgate.participant.state import State
from headgate.runtime import process, sink
from headgate.runtime.fleet.fleet_records import revision_of
from headgate.runtime.fleet.warm_parent import TurnReport
from headgate.runtime.telemetry.sink_metrics import SinkMeters

TEXT = sink_file_text(Path("/lake"))
BEFORE = parse(TEXT)
FASTER = TEXT + "[coordinator]\ncommit_interval_ms = 1234\n[participant]\nfiles_max = 99\n"
OTHERWISE = TEXT + '[coordinator]\non_rollback = "follow-table"\n'
LISTENS = TEXT + '[http]\nlisten = "127.0.0.1:0"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "LOOKED_AT_S", 0)
    path = tmp_path / "trips.toml"
    path.write_text(TEXT)
    return path


def write(file: Path, text: str) -> None:
    """As an editor does: another file takes its place."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


@pytest.mark.parametrize(
    ("text", "live"),
    [
        (FASTER, True),
        (OTHERWISE, False),
        (LISTENS, False),
        (TEXT.replace('"db.trips"', '"db.other"'), False),
        (TEXT + "[coordinator]\ncommit_interval_ms = 9\non_rollback = 'follow-table'\n", False),
    ],
)
def test_only_intervals_and_limits_hold_without_leaving(text: str, *, live: bool) -> None:
    assert can_apply_live(BEFORE, parse(text)) is live
    assert can_apply_live(BEFORE, BEFORE)


def test_a_file_that_did_not_change_is_not_read(file: Path) -> None:
    reload = Reload(file)
    assert reload.poll(load(file)) is None
    os.utime(file)
    assert reload.poll(load(file)) is None  # it says the same
    file.unlink()
    assert reload.poll(BEFORE) is None  # an editor is about to put another one there
    file.write_text(FASTER)
    read = reload.poll(BEFORE)
    assert isinstance(read, SinkSettings)
    assert read.coordinator.commit_interval_ms == 1_234


@pytest.mark.parametrize(
    "text",
    [
        *("name = ", TEXT + "[nonsense]\n", TEXT.replace('"trips"', '"another"', 1), ""),
        TEXT + "[coordinator]\ncommit_records = 0x" + "f" * 6_000 + "\n",  # json raises ValueError
    ],
)
def test_a_bad_file_changes_nothing_and_says_so_once(
    file: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    reload, before = Reload(file), load(file)
    write(file, text)
    assert isinstance(reload.poll(before), RefusedFile)
    assert reload.poll(before) is None
    (record,) = caplog.records
    assert record.headgate_event == "sink.not-reloaded"  # type: ignore[attr-defined]
    assert "HG-1" in record.getMessage()
    write(file, FASTER)
    assert isinstance(reload.poll(before), SinkSettings)


def test_who_asks_has_it_read_though_only_a_secret_behind_it_changed(
    file: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "key"
    secret.write_text("a" * 32)
    text = TEXT.replace("[control]", f'[control]\nkey = "${{file:{secret}}}"')
    file.write_text(text)
    reload, before = Reload(file), load(file)
    secret.write_text("b" * 32)
    assert reload.poll(before) is None
    reload.request_reload()
    read = reload.poll(before)
    assert isinstance(read, SinkSettings)
    assert not can_apply_live(before, read)
    assert "b" * 32 not in repr(read)


class Opened:
    """Stands for a sink that is open; a test says what befalls it at each turn."""

    leads = False

    def __init__(self, settings: SinkSettings) -> None:
        self.opened_with = settings
        self.adopted: list[SinkSettings] = []
        self.turns = 0
        self.closed = False
        self.state = State(settings.name, process.new_sender(), settings.participant)
        self.at_turn: Callable[[Opened], None] = lambda _: None

    def ms_to_wait_for_log(self, turn_ms: int, _: int) -> int:
        return turn_ms

    def run_once(self, _: int) -> None:
        self.turns += 1
        self.at_turn(self)
        assert self.turns < 1_000

    def adopt_settings(self, settings: SinkSettings) -> None:
        self.adopted.append(settings)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


class World:
    """What a process opens, one after the other, and what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lives: list[Opened] = []
        self.said: list[Notice] = []
        self.measured: list[SinkSettings] = []
        self.meters = Mock(spec=SinkMeters)
        self.at_turn: Callable[[Opened], None] = lambda _: None
        monkeypatch.setattr(sink, "open_sink", self._opened)
        monkeypatch.setattr(sink, "announcing_end", self._departing)
        monkeypatch.setattr(process, "may_take_part", lambda _: True)
        monkeypatch.setattr(process, "try_append_notice", lambda *said: self.said.append(said[2]))

    @contextmanager
    def _opened(self, settings: SinkSettings, *_: object) -> Iterator[Opened]:
        life = Opened(settings)
        life.at_turn = self.at_turn
        self.lives.append(life)
        yield life

    @contextmanager
    def _departing(self, *_: object) -> Iterator[None]:
        yield

    @contextmanager
    def measuring(self, settings: SinkSettings) -> Iterator[SinkMeters]:
        self.measured.append(settings)
        yield self.meters


def test_intervals_hold_live_and_anything_else_leaves_and_opens_anew(
    file: Path, world: World
) -> None:
    stop = threading.Event()
    story = [FASTER, "name = ", OTHERWISE]

    def at_turn(life: Opened) -> None:
        if story:
            write(file, story.pop(0))
        elif len(world.lives) == 2:
            stop.set()

    world.at_turn = at_turn
    process.run(load(file), stop=stop, measuring=world.measuring, sink_file=file)
    first, second = world.lives
    assert [s.coordinator.commit_interval_ms for s in first.adopted] == [1_234]
    assert world.meters.adopt_settings.call_args_list == [call(*first.adopted)]
    assert (first.closed, second.closed) == (True, True)
    assert second.opened_with.coordinator.on_rollback.value == "follow-table"
    assert world.measured == [first.opened_with, second.opened_with]
    assert {notice.kind for notice in world.said} == {NoticeKind.RELOADED}
    assert [bool(notice.code) for notice in world.said] == [False, True, False]


@pytest.mark.parametrize("leaving", [SinkStopped("by ann"), LeadershipReleased("away")])
def test_what_was_adopted_live_holds_when_the_sink_opens_again(
    file: Path, world: World, monkeypatch: pytest.MonkeyPatch, leaving: HeadgateError
) -> None:
    stop = threading.Event()
    monkeypatch.setattr(process, "wait_until_started", lambda *_: None)
    monkeypatch.setattr(process, "wait_until_table_readable", lambda *_: None)
    monkeypatch.setattr(process, "_wait_for_starters_file_or_raise", lambda *_: None)

    def at_turn(life: Opened) -> None:
        if len(world.lives) == 2:
            stop.set()
        elif life.adopted:
            raise leaving
        elif life.turns == 1:
            write(file, FASTER)

    world.at_turn = at_turn
    process.run(load(file), stop=stop, measuring=world.measuring, sink_file=file)
    assert world.lives[1].opened_with == world.lives[0].adopted[0] == load(file)


def test_a_comment_alone_opens_nothing_and_a_worker_hears_of_the_file_that_was_read(
    file: Path, world: World
) -> None:
    stop = threading.Event()
    report = TurnReport(-1, file, "trips")
    commented = f"# owner: team b\n{TEXT}"
    story, told = {2: commented, 4: "name = "}, list[str]()

    def at_turn(life: Opened) -> None:
        told.append(report._revision)
        if text := story.get(life.turns):
            write(file, text)
        elif life.turns == 6:
            stop.set()

    world.at_turn = at_turn
    process.run(load(file), report.on_progress, stop, measuring=world.measuring, sink_file=file)
    before, after = (revision_of(text.encode()) for text in (TEXT, commented))
    assert told == ["", before, before, after, after, after], "a refused file is not followed"
    assert (len(world.lives), world.lives[0].adopted) == (1, [])


@pytest.fixture
def hangups() -> Iterator[None]:
    """They are ignored if these tests run under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_sighup_asks_for_the_file(file: Path, world: World) -> None:
    stop = threading.Event()
    before = signal.getsignal(signal.SIGHUP)
    started = load(file)
    stamp = file.stat()

    def at_turn(life: Opened) -> None:
        if life.turns == 1:
            text = file.read_text().replace("files_max = 99", "files_max = 98")
            file.write_text(text)
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            signal.raise_signal(signal.SIGHUP)
        elif life.adopted:
            stop.set()

    write(file, FASTER)
    stamp = file.stat()
    world.at_turn = at_turn
    process.run(started, stop=stop, measuring=world.measuring, sink_file=file)
    assert world.lives[0].adopted[0].participant.files_max == 98
    assert signal.getsignal(signal.SIGHUP) == before


def test_under_nohup_a_hangup_is_ignored_also_by_children(file: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    reload = Reload(file)
    try:
        with process.handle_signals(threading.Event(), [reload]):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
