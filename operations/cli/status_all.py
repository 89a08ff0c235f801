"""Shows one line for each sink of a folder of sink files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from headgate.config.load import load
from headgate.control_protocol.errors import HeadgateError
from headgate.operations.cli.options import worst
from headgate.operations.render import show_all
from headgate.operations.status.report import StatusReport
from headgate.operations.status.status import status
from headgate.operations.terminal import print_json

_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Told:
    """What is known about one file's sink: its report, or why there is none."""

    file: str
    report: StatusReport | None
    error: str = ""
    exit_code: int = 0


def show(console: Console, folder: Path, *, as_json: bool) -> int:
    """Show all, and return the most urgent exit code."""
    found = statuses(folder)
    if as_json:
        print_json(
            [
                {"file": each.file, **each.report.as_json()}
                if each.report
                else {"file": each.file, "error": each.error, "exit_code": each.exit_code}
                for each in found
            ]
        )
    else:
        show_all(console, [(each.file, each.report, each.error) for each in found])
    return worst(each.exit_code for each in found)


def statuses(folder: Path) -> Sequence[Told]:
    """Ask several at once; a file that cannot be loaded is reported as well."""
    files = sorted(folder.glob("*.toml"))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(_asked, files))


def _asked(file: Path) -> Told:
    try:
        settings = load(file)
    except HeadgateError as error:
        return Told(file.name, None, str(error), error.exit_code)
    try:
        report = status(settings, 1)
    except HeadgateError as error:
        return Told(file.name, None, settings.redacted(str(error)), error.exit_code)
    return Told(file.name, report, exit_code=report.exit_code)
