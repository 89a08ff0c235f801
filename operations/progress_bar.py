"""Shows a progress bar to a waiting person, and nothing to a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from headgate.operations.audit.files import OnProgress


@contextmanager
def shown_progress() -> Iterator[OnProgress]:
    """Yield a callback that draws on standard error, one bar per kind of work; gone when done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        tasks: dict[str, int] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(bars.task_ids[tasks[what]], completed=done, total=total or None)

        yield on_progress
