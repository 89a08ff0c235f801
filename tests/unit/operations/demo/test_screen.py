"""What the demo shows: calm on a terminal, plain lines without one."""

from __future__ import annotations

import io

from rich.console import Console
from unit.operations.demo.conversation import FIRST, P0, P1, SECOND, presence, said, start

from headgate.control_protocol.events import EndCommit
from headgate.operations.demo.control_topic_observer import Observation
from headgate.operations.demo.screen import Scene, Screen, render_scene


def scene(**lives: bool) -> Scene:
    seen = Observation()
    seen.on_event(said(FIRST, 1, 1, start(200)))
    seen.on_event(said(FIRST, 1, 1, EndCommit()))
    seen.on_event(said(FIRST, 1, 0, presence(P0, end=250)))
    seen.on_event(said(SECOND, 1, 0, presence(P1, end=260)))
    return Scene(1_000, 700, seen, {11: lives["first"], 22: lives["second"], 33: True})


def shown(what: Scene) -> list[str]:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(render_scene(what))
    assert isinstance(console.file, io.StringIO)
    return [line.strip("│ ").rstrip() for line in console.file.getvalue().splitlines()]


def words(lines: list[str], begin: str) -> list[str]:
    return next(line.split() for line in lines if line.startswith(begin))


def test_how_it_stands() -> None:
    lines = shown(scene(first=True, second=True))
    assert words(lines, "produced")[-3:] == ["700", "of", "1,000"]
    assert words(lines, "in table")[-3:] == ["400", "of", "1,000"]
    assert words(lines, "trips/0") == ["trips/0", "200", "50", "pid", "11"]
    assert words(lines, "trips/1") == ["trips/1", "200", "60", "pid", "22"]
    assert "coordinator of epoch 1  writing, commits 1.1" in " ".join(lines)
    assert words(lines, "pid 33") == ["pid", "33", "participant", "starting"]


def test_the_dead_are_named_and_read_nothing() -> None:
    lines = shown(scene(first=False, second=True))
    assert words(lines, "trips/0") == ["trips/0", "200", "-", "nobody"]
    assert words(lines, "pid 11")[-1] == "killed"


def test_without_a_terminal_only_lines_are_written() -> None:
    output = io.StringIO()
    screen = Screen(Console(file=output, width=200))
    with (
        screen.opening_live_display(),
        screen.showing_spinner("something"),
        screen.showing_download("jars") as on_progress,
    ):
        on_progress(1, 2)
        on_progress(2, 2)
        screen.show_scene_if_due(scene(first=True, second=True))
        screen.show_line("commit", "1.1")
    lines = output.getvalue().split("\n")
    assert [line.split()[1:] for line in lines if line] == [["download", "jars"], ["commit", "1.1"]]
    assert "\x1b" not in output.getvalue()
