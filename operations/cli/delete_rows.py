"""Implements ``headgate delete``: shows what would be deleted, asks, and reports."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.control_protocol.counted_nouns import count_of
from headgate.operations.cli.options import as_json_option, load_settings, sink_file
from headgate.operations.command_output import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.config.sink_settings import SinkSettings
    from headgate.operations.control.delete_rows import Deleted, RowDeletion

_LATER = (
    "no reader shows them any more; their bytes go with headgate maintain, when files are "
    "rewritten and older snapshots expire (docs/guides/maintenance.md#deleting-rows)"
)


@click.command()
@sink_file
@click.option("--where", metavar="PREDICATE", help="Rows to delete: \"email = 'a@b.c'\".")
@click.option("--quarantine-where", metavar="PREDICATE", help="Quarantined records.")
@click.option("--table", "tables", multiple=True, help="Only in this table; default: all tables.")
@click.option("--dry-run", is_flag=True, help="Show what it would do; change nothing.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@as_json_option
@click.pass_context
def delete(
    ctx: click.Context,
    /,
    sink: Path,
    *,
    where: str | None,
    quarantine_where: str | None,
    tables: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete rows and quarantined records that match a condition.

    docs/guides/maintenance.md#deleting-rows has the rules.
    """
    if where is None and quarantine_where is None:
        raise click.UsageError("give --where, --quarantine-where, or both")
    settings = load_settings(ctx, sink)
    # imports Arrow: not for every command
    from headgate.operations.control.delete_rows import RowDeletion

    deletion = RowDeletion(where, quarantine_where, tables)
    if (dry_run or not yes) and not _show_and_confirm(
        settings, deletion, dry_run=dry_run, as_json=as_json
    ):
        return
    _delete_and_report(settings, deletion, as_json=as_json)


def _show_and_confirm(
    settings: SinkSettings, deletion: RowDeletion, *, dry_run: bool, as_json: bool
) -> bool:
    """Return whether rows match and are to be deleted now; a "no" aborts the command."""
    from headgate.operations.control.delete_rows import plan_deletion

    planned = plan_deletion(settings, deletion)
    ends_here = dry_run or not any(each.rows for each in planned)
    if as_json and ends_here:
        print_json([asdict(each) for each in planned])
    else:
        _echo_deletions(settings.redact, planned, "would be deleted", to_stderr=as_json)
    if ends_here:
        return False
    return click.confirm("Delete them?", abort=True, err=as_json)


def _delete_and_report(settings: SinkSettings, deletion: RowDeletion, *, as_json: bool) -> None:
    from headgate.operations.control.delete_rows import carry_out_deletion

    done = []
    try:
        for each in carry_out_deletion(settings, deletion):
            done.append(each)
            if not as_json:
                _echo_deletions(settings.redact, [each], "deleted")
    finally:  # a later table may fail: said again, the command counts 0 rows for the first ones
        if as_json and done:
            print_json([asdict(each) for each in done])
    if not as_json and any(each.rows for each in done):
        click.echo(_LATER)


def _echo_deletions(
    redact: Callable[[str], str], tables: list[Deleted], outcome: str, *, to_stderr: bool = False
) -> None:
    for each in tables:
        text = (
            f"{each.table}: {count_of(each.rows, 'row')} in {count_of(each.files, 'file')} "
            f"{outcome}"
        )
        if each.pending:
            text += (
                f"; {count_of(each.pending, 'row is', 'rows are')} still pending for it, and not "
                "looked at"
            )
        if each.expired:
            text += (
                f"; of {count_of(each.expired, 'row')} that expired none was looked at: --reread "
                "brings them"
            )
        click.echo(redact(text), err=to_stderr)
