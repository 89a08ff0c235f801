"""Defines the commands that stop a sink, start it again, and restart it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.operations.cli.options import (
    echo_next_offsets,
    load_settings,
    sink_file,
    warn_if_fleet_may_undo,
)

if TYPE_CHECKING:
    from headgate.operations.control.stop import StopResult


@click.command()
@sink_file
@click.pass_context
def stop(ctx: click.Context, sink: Path) -> None:
    """Make every participant leave until headgate start.

    The table stores it: who is started meanwhile waits, too.
    """
    settings = load_settings(ctx, sink)
    from headgate.operations.control.stop import stop_sink as ask

    _echo_stop_result(ask(settings), "stopped: no participant works until headgate start")
    warn_if_fleet_may_undo(settings, "stop")


@click.command()
@sink_file
@click.pass_context
def start(ctx: click.Context, sink: Path) -> None:
    """Let a stopped sink work again.

    Its processes wait for that, or are started by you.
    """
    settings = load_settings(ctx, sink)
    from headgate.operations.control.stop import read_claimable_record
    from headgate.operations.control.stop import start_sink as ask

    was_stopped = read_claimable_record(settings).stopped
    record = ask(settings)
    if was_stopped:
        click.echo("started: waiting processes continue within seconds")
    else:
        click.echo("no person had stopped it: headgate status SINK says what it does")
    echo_next_offsets(record)


@click.command()
@sink_file
@click.pass_context
def restart(ctx: click.Context, sink: Path) -> None:
    """Make every participant leave in order and come again."""
    settings = load_settings(ctx, sink)
    from headgate.operations.control.stop import restart_sink as ask

    _echo_stop_result(ask(settings), "restarted: running processes continue within seconds")


def _echo_stop_result(done: StopResult, text: str) -> None:
    if done.participants is None:
        text = (
            "stored in the table; who still works is not known: the brokers, or the catalog, do "
            "not answer (headgate status SINK)"
        )
    click.echo(text)
    if done.participants:
        click.echo(f"not seen leaving yet: {', '.join(done.participants)}")
    echo_next_offsets(done.record)
