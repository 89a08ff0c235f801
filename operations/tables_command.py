"""``headgate tables``: lists the tables of the routes, or resumes parked ones."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headgate.control_protocol.replay_errors import RereadRefused
from headgate.operations.rendering import show_tables
from headgate.operations.resume_tables import resume_and_open, resume_tables
from headgate.operations.tables import tables
from headgate.operations.terminal import console, print_json
from headgate.sink.settings import SinkSettings


def show(
    ctx: click.Context,
    settings: SinkSettings,
    names: Sequence[str],
    *,
    replay: bool | None,
    as_json: bool,
) -> None:
    """``names`` and ``replay`` are for ``resume`` alone."""
    if names or replay is not None:
        raise click.UsageError("only headgate tables SINK resume takes tables and how")
    report = tables(settings)
    if as_json:
        print_json(report.as_json())
    else:
        show_tables(console(), report)
    ctx.exit(report.exit_code)


def resume(settings: SinkSettings, names: Sequence[str], *, replay: bool | None) -> None:
    """``replay``: also put again what the quarantine took in; ``False``: read again what lapsed."""
    if replay is False:
        raise RereadRefused(
            "what lapsed (headgate audit names it) is not read again for one table alone: whether "
            "a payment that somebody slept through brought it after all cannot be told for certain",
            "headgate audit names ranges and rows; send those records to the topic again, or "
            "headgate rollback takes all tables back before them",
        )
    if not replay:
        _tell_resumed(resume_tables(settings, names))
        return
    from headgate.operations.replay_tables import refuse_replay, replay_tables

    refuse_replay(settings, names)
    _tell_resumed(resume_and_open(settings, names))
    given = replay_tables(settings, names)
    for each in given:
        click.echo(f"replayed: {each}")
    if not given:
        click.echo("replayed: nothing waits in the quarantine")


def _tell_resumed(names: Sequence[str]) -> None:
    for name in names:
        click.echo(f"resumed: {name}")
