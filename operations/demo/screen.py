"""Shows the running demo: a line for each thing that happened, and the current state below.

Without a terminal only the lines are written. Nothing is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headgate.operations.demo.control_topic_observer import Observation, pid_of
from headgate.operations.java_installation import Progress as OnProgress

FRAME_S = 0.25
WIDTH_MAX = 78


@dataclass(frozen=True, slots=True)
class Scene:
    """The state: records wanted and produced, what the log told, whether each process lives."""

    records: int
    produced: int
    observation: Observation
    processes: Mapping[int, bool]


class Screen:
    """One console; times count from the demo's start."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began_s = time.monotonic()
        self._live: Live | None = None
        self._drawn_s = 0.0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def show_line(self, what: str, detail: str = "", style: str = "") -> None:
        """Report what happened: two words, and the details."""
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(style="dim", no_wrap=True)
        line.add_column(style=style or "bold", min_width=11, no_wrap=True)
        line.add_column()
        line.add_row(f"{minutes:2}:{seconds:02}", what, Text(detail))
        self.console.print(line)

    def show_heading(self, text: str) -> None:
        self.console.print(Text(f"\n{text}", "bold"))

    def show_text(self, text: str = "", style: str = "") -> None:
        self.console.print(Text(text, style))

    @contextmanager
    def showing_spinner(self, text: str) -> Iterator[None]:
        """Show that something takes a moment; only a terminal displays it."""
        if not self.console.is_terminal:
            yield
            return
        with self.console.status(Text(text, "dim"), spinner_style="dim"):
            yield

    @contextmanager
    def showing_download(self, what: str) -> Iterator[OnProgress]:
        """Show a bar for a download, gone when done; a line without a terminal."""
        if not self.console.is_terminal:
            yield lambda done, _total: self.show_line("download", what) if done == 1 else None
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
        with Progress(*columns, MofNCompleteColumn(), console=self.console, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextmanager
    def opening_live_display(self) -> Iterator[None]:
        """While this lasts, ``show_scene_if_due`` draws below the lines."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, auto_refresh=False, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def show_scene_if_due(self, scene: Scene) -> None:
        """Draw, but not more often than an eye can follow."""
        now_s = time.monotonic()
        if self._live and now_s - self._drawn_s >= FRAME_S:
            self._drawn_s = now_s
            self._live.update(render_scene(scene), refresh=True)


def render_scene(scene: Scene) -> RenderableType:
    return Panel(
        Group(
            _counts_table(scene),
            Text(),
            _partition_table(scene),
            Text(),
            _table_of_processes(scene),
        ),
        title="Kafka topic trips -> Iceberg table demo.trips",
        border_style="dim",
        padding=(1, 2),
        width=WIDTH_MAX,
    )


def _counts_table(scene: Scene) -> Table:
    grid = Table.grid(padding=(0, 2))
    for _ in range(2):
        grid.add_column()
    grid.add_column(justify="right")
    for name, amount, style in (
        ("produced", scene.produced, "cyan"),
        ("in table", scene.observation.table_record_count, "green"),
    ):
        bar = ProgressBar(
            total=scene.records,
            completed=amount,
            width=34,
            complete_style=style,
            finished_style=style,
        )
        grid.add_row(name, bar, f"{amount:>9,} of {scene.records:,}")
    return grid


def _partition_table(scene: Scene) -> Table:
    table = _plain_table("partition", "in table>", "lag>", "read by")
    seen = scene.observation
    readers = {
        at: pid_of(member)
        for member, participant in seen.participants.items()
        if scene.processes.get(pid_of(member))
        for at in participant.owned
    }
    ends = seen.partition_end_offsets()
    for at in sorted(ends):
        settled = seen.settled.get(at, 0)
        if at in readers:
            table.add_row(str(at), f"{settled:,}", f"{ends[at] - settled:,}", f"pid {readers[at]}")
        else:  # its end is not reported any more
            table.add_row(str(at), f"{settled:,}", "-", "nobody")
    return table


def _table_of_processes(scene: Scene) -> Table:
    table = _plain_table("process", "part", "state")
    seen = scene.observation
    states = {pid_of(member): words.state for member, words in seen.participants.items()}
    leader = pid_of(seen.coordinator) if seen.coordinator else None
    for pid, lives in scene.processes.items():
        part = f"coordinator of epoch {seen.epoch}" if pid == leader else "participant"
        state = states.get(pid, "starting") if lives else "killed"
        if lives and pid == leader:
            state += f", commits {seen.ended}" if seen.ended else f", fills {seen.opened}"
        table.add_row(f"pid {pid}", part, state, style="" if lives else "red")
    return table


def _plain_table(*headings: str) -> Table:
    """Return a table of words; headings that end in ``>`` are over numbers."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        justify = "right" if heading.endswith(">") else "left"
        table.add_column(heading.rstrip(">"), justify=justify, min_width=9)  # type: ignore[arg-type]
    return table
