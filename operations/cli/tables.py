"""Implements ``headgate tables``: lists the tables of the routes, or resumes suspended ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, NoReturn

import click

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import Unreachable
from headgate.operations.cli.options import ExitCode
from headgate.operations.command_output import console, print_json
from headgate.operations.many_tables.list import list_tables
from headgate.operations.many_tables.resume import resume_and_wait_until_open, resume_tables
from headgate.operations.render_command_results import show_tables

if TYPE_CHECKING:
    from headgate.operations.many_tables.replay_quarantined import ReplayedTable
    from headgate.operations.many_tables.rewrite_expired_commits import RewrittenTable


class Afterwards(Enum):
    """What is done with resumed tables, too."""

    REPLAY = auto()
    """Take what went to the quarantine instead."""
    REREAD = auto()
    """Write again what has expired."""


def show_table_list(
    ctx: click.Context,
    settings: SinkSettings,
    names: Sequence[str],
    *,
    afterwards: Afterwards | None,
    as_json: bool,
) -> NoReturn:
    """Show the tables, and exit. Raises ``UsageError`` if tables are named, or what to do after."""
    if names or afterwards is not None:
        raise click.UsageError("only headgate tables SINK resume takes tables and how")
    report = list_tables(settings)
    if as_json:
        print_json(report.as_json())
    else:
        show_tables(console(), report)
    ctx.exit(report.exit_code)


def resume_and_report(
    settings: SinkSettings, names: Sequence[str], afterwards: Afterwards | None
) -> ExitCode:
    """Resume tables, do ``afterwards`` what the table has missed, and return the exit code."""
    if afterwards is None:
        resumed = resume_tables(settings, names)
        _report_resumed(resumed)
        if not resumed:
            click.echo("resuming already: headgate tables SINK says when they are open")
        return 0
    require: Callable[[SinkSettings, Sequence[str]], object]
    give: Callable[[SinkSettings, Sequence[str]], Sequence[ReplayedTable | RewrittenTable]]
    if afterwards is Afterwards.REPLAY:
        from headgate.operations.many_tables import replay_quarantined

        require, give = replay_quarantined.require_replayable, replay_quarantined.replay_tables
        label, text_if_none = "replayed", "nothing waits in the quarantine"
    else:
        from headgate.operations.many_tables import rewrite_expired_commits

        require = rewrite_expired_commits.require_rewritable_by_coordinates
        give = rewrite_expired_commits.rewrite_expired_commits_of_tables
        label, text_if_none = "reread", "nothing has expired"
    require(settings, names)
    _report_resumed(resume_and_wait_until_open(settings, names))
    results = give(settings, names)
    for each in results or (text_if_none,):
        click.echo(settings.redact(f"{label}: {each}"))
    return Unreachable.exit_code if any(each.failed for each in results) else 0


def _report_resumed(names: Sequence[str]) -> None:
    for name in names:
        click.echo(f"resumed: {name}")
