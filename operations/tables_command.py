"""``headgate tables``: lists the tables of the routes, or resumes parked ones."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headgate.operations.rendering import show_tables
from headgate.operations.resume_tables import resume_tables
from headgate.operations.tables import tables
from headgate.operations.terminal import console, print_json
from headgate.sink.settings import SinkSettings


def show(
    ctx: click.Context, settings: SinkSettings, names: Sequence[str], *, as_json: bool
) -> None:
    if names:
        raise click.UsageError("only headgate tables SINK resume takes tables")
    report = tables(settings)
    if as_json:
        print_json(report.as_json())
    else:
        show_tables(console(), report)
    ctx.exit(report.exit_code)


def resume(settings: SinkSettings, names: Sequence[str]) -> None:
    for name in resume_tables(settings, names):
        click.echo(f"resumed: {name}")
