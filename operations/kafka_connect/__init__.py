"""Moves over from Iceberg's Kafka Connect sink: ``headgate import`` and ``takeover``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.control_protocol.redaction import to_printable_line
from headgate.operations.cli.options import load_settings, sink_file

if TYPE_CHECKING:
    from headgate.config.sink_settings import SinkSettings


@click.command("import")
@click.argument("connector", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--worker",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The worker's file, which has what all of its connectors share.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key that neither file has, such as value.converter=NAME.",
)
@click.option(
    "--leave-out", "left_out", multiple=True, metavar="KEY", help="Go on without a refused key."
)
@click.option("--topic", default="", help="A topic that topics.regex matches, and that will stay.")
@click.option("--dry-run", is_flag=True, help="Say what becomes of each key; write nothing.")
@click.pass_context
def import_command(
    ctx: click.Context,
    connector: Path,
    *,
    worker: Path | None,
    overrides: tuple[str, ...],
    left_out: tuple[str, ...],
    topic: str,
    dry_run: bool,
) -> None:
    """Write a sink file from a Kafka Connect connector's.

    Says of each key what became of it (docs/guides/from-kafka-connect.md). Exits with 1 if
    something has to be added by hand.
    """
    from headgate.operations.kafka_connect.import_connector import import_connector

    given_keys = {key: value for key, _, value in (text.partition("=") for text in overrides)}
    if "" in given_keys or not all("=" in text for text in overrides):
        raise click.UsageError("--set takes KEY=VALUE, such as value.converter=NAME")
    to_add_by_hand = import_connector(
        connector,
        worker=worker,
        overrides=given_keys,
        left_out=left_out,
        topic=topic,
        folder=None if dry_run else Path(),
        say=click.echo,
    )
    ctx.exit(1 if to_add_by_hand else 0)


@click.command("takeover")
@sink_file
@click.option(
    "--from",
    "connector",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The connector's file, as headgate import takes it.",
)
@click.option("--adopt", is_flag=True, help="Add the files that were announced, not committed.")
@click.option("--heal", is_flag=True, help="With --adopt: also those that the connector lost.")
@click.option(
    "--began",
    multiple=True,
    metavar="TOPIC/PARTITION=OFFSET",
    help="Where the connector began, if nothing says so any more.",
)
@click.option("--back", is_flag=True, help="Let the connector go on where the sink stopped.")
@click.option("--yes", is_flag=True, help="Do it; without this the plan is shown, and no more.")
@click.pass_context
def takeover_command(
    ctx: click.Context,
    sink: Path,
    *,
    connector: Path,
    adopt: bool,
    heal: bool,
    began: tuple[str, ...],
    back: bool,
    yes: bool,
) -> None:
    """Go on exactly where a Kafka Connect connector stopped.

    Shows the plan; writes nothing without --yes (docs/guides/from-kafka-connect.md).
    """
    if heal and not adopt:
        raise click.UsageError("--heal goes with --adopt")
    if back and (adopt or began):
        raise click.UsageError("--back goes with --yes alone")
    settings = load_settings(ctx, sink)
    from headgate.operations.kafka_connect import takeover as taking
    from headgate.operations.kafka_connect.connector_file import read_connector_file

    keys = read_connector_file(connector)
    if back:
        way = taking.plan_handback_to_connector(settings, keys)
        _show_plan(settings, way.describe_plan(), yes=yes)
        if yes:
            taking.carry_out_handback_to_connector(settings, way)
            click.echo("done; next: start the connector")
        return
    request = taking.TakeoverRequest(adopt, heal, taking.parse_began_offsets(began))
    planned = taking.plan_takeover_of_sink(settings, keys, request)
    _show_plan(settings, planned.describe_plan(), yes=yes)
    if yes:
        taking.carry_out_takeover(settings, planned)
        click.echo(f"taken over; next: headgate run {sink}")


def _show_plan(settings: SinkSettings, lines: Iterable[str], *, yes: bool) -> None:
    """Show a plan and, without ``yes``, what carries it out."""
    for text in lines:
        click.echo(to_printable_line(settings.redact(text)))
    if not yes:
        click.echo("nothing was changed; --yes does it")
