"""Implements ``headgate status``: one sink, once or repeatedly, or all of a folder."""

from __future__ import annotations

from pathlib import Path

import click

from headgate.operations.cli.options import (
    as_json_option,
    load_settings,
    pausing_garbage_collection,
)
from headgate.operations.command_output import console, print_json


@click.command()
@click.argument("sink", required=False, type=click.Path(dir_okay=False, path_type=Path))
@as_json_option
@click.option(
    "--all",
    "folder",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Show one line for the sink of each *.toml in the folder.",
)
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(min=0.5),
    is_flag=False,
    flag_value=2.0,
    metavar="[SECONDS]",
    help="Repeat it at this interval in seconds (2), until Ctrl-C.",
)
@click.pass_context
def status(
    ctx: click.Context,
    sink: Path | None,
    *,
    as_json: bool,
    folder: Path | None,
    every_s: float | None,
) -> None:
    """Show condition, offsets, lag and participants."""
    if folder is not None:
        if sink or every_s is not None:
            raise click.UsageError("--all FOLDER takes neither a sink file nor --watch")
        from headgate.operations.cli.status_views import show_statuses_of_folder

        ctx.exit(show_statuses_of_folder(console(), folder, as_json=as_json))
    if sink is None:
        raise click.UsageError("name a sink file, or --all FOLDER")
    with pausing_garbage_collection():
        settings = load_settings(ctx, sink)
        from headgate.operations.render_command_results import show_status
        from headgate.operations.status.status import read_status as look

    if every_s is not None:
        from headgate.operations.cli.status_views import watch_sink

        if as_json:
            raise click.UsageError("--watch does not go with --json; repeat the command")
        watch_sink(console(), settings, every_s)
        return
    with pausing_garbage_collection():
        report = look(settings)
    if as_json:
        print_json(report.as_json())
    else:
        show_status(console(), report)
    ctx.exit(report.exit_code)
