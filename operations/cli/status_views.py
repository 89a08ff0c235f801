"""Shows the status of each sink of a folder in a line, or of one sink repeatedly."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headgate.config.load import load
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import HeadgateError, RetryLater
from headgate.operations.cli.options import ExitCode, worst_exit_code
from headgate.operations.command_output import print_json
from headgate.operations.render_command_results import show_status, show_statuses
from headgate.operations.status.report import FileStatus
from headgate.operations.status.status import read_status

_AT_ONCE = 4


def show_statuses_of_folder(console: Console, folder: Path, *, as_json: bool) -> ExitCode:
    """Show all, and return the most urgent exit code."""
    statuses = read_statuses(folder)
    if as_json:
        print_json(
            [
                {"file": each.file, **each.report.as_json()}
                if each.report
                else {"file": each.file, "error": each.error, "exit_code": each.exit_code}
                for each in statuses
            ]
        )
    else:
        show_statuses(console, statuses)
    return worst_exit_code(each.exit_code for each in statuses)


def read_statuses(folder: Path) -> Sequence[FileStatus]:
    """Ask several at once; a file that cannot be loaded is reported as well."""
    files = sorted(folder.glob("*.toml"))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(_read_status_or_error, files))


def _read_status_or_error(file: Path) -> FileStatus:
    try:
        settings = load(file)
    except HeadgateError as error:
        return FileStatus(file.name, None, str(error), error.exit_code)
    try:
        report = read_status(settings)
    except HeadgateError as error:
        return FileStatus(file.name, None, settings.redact(str(error)), error.exit_code)
    return FileStatus(file.name, report, exit_code=report.exit_code)


def watch_sink(console: Console, settings: SinkSettings, every_s: float) -> None:
    """Block until Ctrl-C. What does not answer is reported, and asked again."""
    try:
        if not console.is_terminal:
            for picture in render_repeatedly(console, settings, every_s):
                console.print(picture)
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for picture in render_repeatedly(console, settings, every_s):
                live.update(picture, refresh=True)
    except KeyboardInterrupt:
        return


def render_repeatedly(
    console: Console, settings: SinkSettings, every_s: float, looks_max: int | None = None
) -> Iterator[RenderableType]:
    """Yield one picture per look, ``looks_max`` of them or without end."""
    for look in count(1):
        yield _render_status(console, settings)
        if look == looks_max:
            return
        time.sleep(every_s)


def _render_status(console: Console, settings: SinkSettings) -> RenderableType:
    with console.capture() as capture:
        try:
            show_status(console, read_status(settings, with_age=True))
        except RetryLater as error:
            console.print(Text(settings.redact(str(error)), "bold red"))
    return Group(Text.from_ansi(capture.get()), Text(time.strftime("%H:%M:%S"), "dim"))
