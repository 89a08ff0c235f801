"""What commands share: the sink file that they take, and where a sink has come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from headgate.control_protocol.record import CommitRecord
    from headgate.sink.settings import SinkSettings

sink_file = click.argument("sink", type=click.Path(dir_okay=False, path_type=Path))
as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document for scripts."
)


def loaded(ctx: click.Context, sink: Path) -> SinkSettings:
    """The settings, kept for the error handler so that it can mask their secrets."""
    from headgate.sink.load import load

    ctx.find_root().obj = load(sink)
    settings: SinkSettings = ctx.find_root().obj
    return settings


def echo_positions(record: CommitRecord) -> None:
    for at, offset in sorted(record.offsets.items()):
        click.echo(f"{at}: next offset {offset}")
