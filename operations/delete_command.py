"""``headgate delete``: says what would go, asks, and says what went."""

from __future__ import annotations

from dataclasses import asdict

import click

from headgate.operations.delete_rows import Asked, Deleted, carry_out, plan
from headgate.operations.terminal import print_json
from headgate.sink.settings import SinkSettings

_LATER = (
    "no reader shows them any more; their bytes go with headgate maintain, when files are written "
    "anew and older snapshots expire (docs/maintenance.md#deleting-rows)"
)


def delete(
    settings: SinkSettings, asked: Asked, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Raises as ``carry_out``."""
    if dry_run or not yes:
        planned = plan(settings, asked)
        if not as_json:
            _say(settings, planned, "would be deleted")
        elif dry_run:
            print_json([asdict(each) for each in planned])
        if dry_run or not any(each.rows for each in planned):
            return
        click.confirm("Delete them?", abort=True, err=as_json)
    done = []
    for each in carry_out(settings, asked):
        done.append(each)
        if not as_json:
            _say(settings, [each], "deleted")
    if as_json:
        print_json([asdict(each) for each in done])
    elif any(each.rows for each in done):
        click.echo(_LATER)


def _say(settings: SinkSettings, tables: list[Deleted], what: str) -> None:
    for each in tables:
        text = f"{each.table}: {each.rows} rows in {each.files} files {what}"
        if each.owed:
            text += f"; {each.owed} rows are still owed to it, and were not looked at"
        click.echo(settings.redacted(text))
