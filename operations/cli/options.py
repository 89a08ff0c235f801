"""Defines what commands share: the sink file that they take, and how to show a sink's progress."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.control_protocol.errors import SinksClash

if TYPE_CHECKING:
    from headgate.config.sink_settings import SinkSettings
    from headgate.config.worker_settings import WorkerSettings
    from headgate.control_protocol.commit_record import CommitRecord

ExitCode = int
"""What a command ends with; ``docs/reference/commands.md`` says what each means."""

sink_file = click.argument("sink", type=click.Path(dir_okay=False, path_type=Path))
sink_files = click.argument(
    "sinks", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path)
)
as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document for scripts."
)

fleet_file_option = click.option(
    "--fleet",
    "fleet_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that a fleet's workers have.",
)

deleted_back_option = click.option(
    "--bring-back-deleted",
    "deleted_back",
    is_flag=True,
    help="Even if rows that people deleted come back (HG-246).",
)


def require_either_sinks_or_fleet(sinks: Sequence[Path], fleet_file: Path | None) -> None:
    """Raise ``UsageError`` unless either is named, and not both."""
    if bool(sinks) is bool(fleet_file):
        raise click.UsageError("name sink files, or --fleet FILE")


def load_settings(ctx: click.Context, sink: Path) -> SinkSettings:
    """Load the settings, and keep them so that the error handler can mask their secrets.

    Commands call it before they import what they work with: a mistake in the file is told at once.
    """
    with pausing_garbage_collection():
        from headgate.config.load import load

        ctx.find_root().obj = load(sink)
    settings: SinkSettings = ctx.find_root().obj
    return settings


def load_worker_settings(ctx: click.Context, file: Path) -> WorkerSettings:
    """As ``load_settings``, the file of a fleet's workers."""
    with pausing_garbage_collection():
        from headgate.config.load import load_worker_file

        ctx.find_root().obj = load_worker_file(file)
    settings: WorkerSettings = ctx.find_root().obj
    return settings


@contextmanager
def pausing_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: it takes a third of the time of imports, and finds little."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_all_settings(ctx: click.Context, sinks: Sequence[Path]) -> Mapping[Path, SinkSettings]:
    """Return the settings of several sink files. Raises as ``load``, and for a file named twice."""
    if len(set(sinks)) < len(sinks):
        raise SinksClash("a sink file is named twice", "name each file once")
    return {sink: load_settings(ctx, sink) for sink in sinks}


def worst_exit_code(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the most urgent exit code: 1, else the largest."""
    distinct = set(codes)
    return 1 if 1 in distinct else max(distinct, default=0)


def warn_if_fleet_may_undo(settings: SinkSettings, command: str) -> None:
    """Say who may undo it, for a file whose control topic is that of a fleet's sink (FLEET-7)."""
    from headgate.runtime.fleet.sink_files import default_control_topic_of_fleet_sink

    if settings.control.topic == default_control_topic_of_fleet_sink(settings.name):
        click.echo(f"if a fleet runs it, its worker undoes this: headgate fleet {command} lasts")


def echo_next_offsets(record: CommitRecord) -> None:
    for at, offset in sorted(record.offsets.items()):
        click.echo(f"{at}: next offset {offset}")
