"""Implements ``headgate offsets``: shows the stored ones, or asks and moves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from headgate.operations.cli.options import (
    as_json_option,
    deleted_back_option,
    load_settings,
    sink_file,
)
from headgate.operations.command_output import console, print_json

if TYPE_CHECKING:
    from headgate.config.sink_settings import SinkSettings
    from headgate.operations.control.set_offsets import OffsetPlan


@click.command()
@sink_file
@click.argument("action", type=click.Choice(["show", "set"]), default="show")
@click.argument("wanted", nargs=-1, metavar="[TOPIC/PARTITION=OFFSET]...")
@click.option("--from-group", "group", metavar="GROUP", help="Set those of another group.")
@click.option(
    "--map", "maps", multiple=True, metavar="OLD=NEW", help="With it: a topic or partition renamed."
)
@click.option("--yes", is_flag=True, help="Set them without asking.")
@deleted_back_option
@as_json_option
@click.pass_context
def offsets(
    ctx: click.Context,
    sink: Path,
    action: str,
    wanted: tuple[str, ...],
    *,
    group: str | None,
    maps: tuple[str, ...],
    yes: bool,
    deleted_back: bool,
    as_json: bool,
) -> None:
    """Show the stored offsets, or set those of a stopped sink.

    An OFFSET is a number, "earliest", "latest" or a time: trips=2026-01-31T06:00:00Z.
    """
    settings = load_settings(ctx, sink)
    if maps and group is None:
        raise click.UsageError("--map goes with --from-group")
    if as_json and action == "set":
        raise click.UsageError("--json goes with show, not with set")
    if action == "set" and group is not None:
        if wanted:
            raise click.UsageError("--from-group takes no offsets besides")
        _set_offsets_from_group(settings, group, maps, yes=yes, deleted_back=deleted_back)
    elif action == "set":
        _set_stored_offsets(settings, wanted, yes=yes, deleted_back=deleted_back)
    elif wanted or yes or deleted_back or group is not None:
        raise click.UsageError("only headgate offsets SINK set takes offsets")
    else:
        _show_stored_offsets(ctx, settings, as_json=as_json)


def _show_stored_offsets(ctx: click.Context, settings: SinkSettings, *, as_json: bool) -> NoReturn:
    """Show the offsets, and exit."""
    from rich.console import Console

    from headgate.operations.render_command_results import show_notes, show_offsets
    from headgate.operations.status.status import read_offsets as look

    report = look(settings)
    if as_json:
        print_json([asdict(partition) for partition in report.partitions])
    else:
        show_offsets(console(), report.partitions)
    show_notes(Console(stderr=True), report.notes)
    ctx.exit(report.exit_code)


def _set_stored_offsets(
    settings: SinkSettings, assignments: Sequence[str], *, yes: bool, deleted_back: bool
) -> None:
    from headgate.operations.control.set_offsets import plan_offset_moves

    _confirm_and_set_offsets(
        settings, plan_offset_moves(settings, assignments, deleted_back=deleted_back), yes=yes
    )


def _set_offsets_from_group(
    settings: SinkSettings, group: str, maps: Sequence[str], *, yes: bool, deleted_back: bool
) -> None:
    from headgate.operations.control.adopt_group_offsets import plan_group_offsets_creating_table

    plan = plan_group_offsets_creating_table(settings, group, maps, deleted_back=deleted_back)
    _confirm_and_set_offsets(settings, plan, yes=yes)


def _confirm_and_set_offsets(settings: SinkSettings, plan: OffsetPlan, *, yes: bool) -> None:
    from headgate.operations.control.set_offsets import carry_out_offset_plan

    for text in plan.describe_moves():
        click.echo(text)
    if not plan.moves:
        click.echo("nothing to do: these are the stored offsets")
        return
    if not yes:
        click.confirm("Set them?", abort=True)
    carry_out_offset_plan(settings, plan)
    click.echo("set; the next start continues from there, and headgate audit will report it")
