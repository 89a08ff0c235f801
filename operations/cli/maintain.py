"""Implements ``headgate maintain``: reports what was done to each table, or would be."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import Unreachable
from headgate.operations.cli.options import ExitCode, as_json_option, load_settings, sink_file
from headgate.operations.command_output import print_json

if TYPE_CHECKING:
    from headgate.config.sink_settings import SinkSettings
    from headgate.runtime.maintenance.table_maintenance import Done

_STEPS = click.Choice(["rows", "compact", "expire", "orphans"])


@click.command()
@sink_file
@click.option("--table", "tables", multiple=True, help="Only this table, not all of the sink.")
@click.option("--only", "steps", multiple=True, type=_STEPS, help="Only this job; default: all.")
@click.option("--dry-run", is_flag=True, help="Show what it would do; change nothing.")
@as_json_option
@click.pass_context
def maintain(ctx: click.Context, /, sink: Path, **asked: Any) -> None:
    """Compact files, expire snapshots, delete orphan files.

    docs/guides/maintenance.md says when the sink does so by itself.
    """
    settings = load_settings(ctx, sink)
    ctx.exit(_maintain_and_report(settings, **asked))


def _maintain_and_report(
    settings: SinkSettings,
    tables: Collection[str],
    steps: Collection[str],
    *,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    """Print what was done to each table, and return the exit code. Raises as ``maintain``."""
    from headgate.operations.control.maintain import STEPS
    from headgate.operations.control.maintain import maintain as maintain_tables
    from headgate.operations.render_command_results import showing_progress

    results: list[Done] = []
    with showing_progress() as on_progress:
        for done in maintain_tables(
            settings, tables, steps or STEPS, dry_run=dry_run, on_progress=on_progress
        ):
            results.append(done)
            if not as_json:
                click.echo(settings.redact(_describe_maintained_table(done, dry_run=dry_run)))
    if as_json:
        print_json([asdict(done) for done in results])
    return Unreachable.exit_code if any(done.failed for done in results) else 0


def _describe_maintained_table(done: Done, *, dry_run: bool) -> str:
    """Return what people read about one table."""
    would = "would: " if dry_run else ""
    about = f"about {done.into_files}" if dry_run else str(done.into_files)
    compacted = f"{count_of(done.compacted_files, 'small file')} into {about}"
    gone = (
        f"{count_of(done.expired_snapshots, 'snapshot')} expired, "
        f"{count_of(done.orphans, 'orphan')} deleted"
    )
    rows = f"{count_of(done.expired_rows, 'row')} expired, " if done.expired_rows else ""
    lines = [f"{done.table}: {would}{rows}{compacted}, {gone}"]
    if done.young_orphans:
        lines.append(
            f"  {count_of(done.young_orphans, 'unreferenced file is', 'unreferenced files are')} "
            "too young, and may still be committed"
        )
    lines += [f"  left alone: {why}" for why in done.left]
    lines += [f"  failed: {done.failed}"] if done.failed else []
    return "\n".join(lines)
