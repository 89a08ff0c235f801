"""Implements ``headgate offsets``: shows the stored ones, or asks and moves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console

from headgate.config.sink_settings import SinkSettings
from headgate.operations.terminal import console, print_json


def show_stored_offsets(ctx: click.Context, settings: SinkSettings, *, as_json: bool) -> None:
    from headgate.operations.render_command_results import show_notes, show_offsets
    from headgate.operations.status.status import read_offsets as look

    report = look(settings)
    if as_json:
        print_json([asdict(partition) for partition in report.partitions])
    else:
        show_offsets(console(), report.partitions)
    show_notes(Console(stderr=True), report.notes)
    ctx.exit(report.exit_code)


def set_stored_offsets(
    settings: SinkSettings, wanted: Sequence[str], *, yes: bool, deleted_back: bool
) -> None:
    from headgate.operations.control.set_offsets import carry_out, plan_moves

    plan = plan_moves(settings, wanted, deleted_back=deleted_back)
    for move in plan.moves:
        click.echo(str(move))
    if not plan.moves:
        click.echo("nothing to do: these are the stored offsets")
        return
    if not yes:
        click.confirm("Set them?", abort=True)
    carry_out(settings, plan)
    click.echo("set; the next start continues from there, and headgate audit will report it")
