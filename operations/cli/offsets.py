"""Implements ``headgate offsets``: shows the stored ones, or asks and moves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.console import Console

from headgate.config.sink_settings import SinkSettings
from headgate.operations.terminal import console, print_json

if TYPE_CHECKING:
    from headgate.operations.control.set_offsets import OffsetPlan


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
    settings: SinkSettings, assignments: Sequence[str], *, yes: bool, deleted_back: bool
) -> None:
    from headgate.operations.control.set_offsets import plan_moves

    _ask_and_set(settings, plan_moves(settings, assignments, deleted_back=deleted_back), yes=yes)


def set_offsets_of_group(
    settings: SinkSettings, group: str, maps: Sequence[str], *, yes: bool, deleted_back: bool
) -> None:
    from headgate.operations.control.offsets_of_group import plan_from_group

    plan = plan_from_group(settings, group, maps, deleted_back=deleted_back)
    _ask_and_set(settings, plan, yes=yes)


def _ask_and_set(settings: SinkSettings, plan: OffsetPlan, *, yes: bool) -> None:
    from headgate.operations.control.set_offsets import carry_out

    for text in plan.describe():
        click.echo(text)
    if not plan.moves:
        click.echo("nothing to do: these are the stored offsets")
        return
    if not yes:
        click.confirm("Set them?", abort=True)
    carry_out(settings, plan)
    click.echo("set; the next start continues from there, and headgate audit will report it")
