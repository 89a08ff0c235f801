"""Ends the demo: what the table holds now, the audit's verdict, and what to type next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.identifiers import TransactionId
from headgate.control_protocol.table_history import History, SinkCommit
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport
from headgate.operations.demo.control_topic_observer import pid_of
from headgate.operations.demo.screen import Screen
from headgate.operations.demo.workspace import CATALOG_FILE, TABLE
from headgate.operations.render_command_results import show_audit, showing_progress
from headgate.runtime.sink_tables import open_tables_creating_nothing

ROWS_SHOWN = 4
COLUMNS_SHOWN = ("trip_id", "pickup_at", "distance_km", "fare", "kafka_partition", "kafka_offset")


@dataclass(frozen=True, slots=True)
class Contents:
    """What the table holds: its history, and a few rows."""

    history: History
    rows: Sequence[dict[str, Any]]

    def has_reached_within_epoch(self, transaction: TransactionId) -> bool:
        """Return whether a commit of the transaction's epoch is that transaction or later."""
        return any(
            commit.record.transaction.epoch == transaction.epoch
            and commit.record.transaction.number >= transaction.number
            for commit in self.history.commits
        )


def read_history_and_first_rows(settings: SinkSettings) -> Contents:
    """Return the table's history of commits, and the first few of its rows."""
    with open_tables_creating_nothing(settings) as tables:
        history, (_, files) = tables.reader.history(), tables.reader.scan(COLUMNS_SHOWN)
        batches = (batch.slice(0, ROWS_SHOWN) for file in files for batch in file.batches())
        rows = (row for batch in batches for row in batch.to_pylist())
        return Contents(history, list(islice(rows, ROWS_SHOWN)))


def show_contents(screen: Screen, contents: Contents) -> None:
    screen.show_heading("Snapshots of the table, each with the offsets that it holds")
    screen.console.print(_table_of_commits(contents.history.commits))
    screen.show_heading("A few rows")
    screen.console.print(_row_table(contents.rows))


def _table_of_commits(commits: Sequence[SinkCommit]) -> Table:
    places = sorted({at for commit in commits for at in commit.record.offsets})
    # In 80 columns, for a topic of four partitions.
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("epoch", "txn", "snapshot", "by pid", "rows"):
        table.add_column(heading, justify="right", no_wrap=True)
    for at in places:
        table.add_column(str(at), justify="right", no_wrap=True)
    for commit in commits:
        record = commit.record
        table.add_row(
            str(record.transaction.epoch),
            str(record.transaction.number),
            str(commit.snapshot_id),
            str(pid_of(record.coordinator.member)),
            "claim" if record.is_claim else f"{record.records:,}",
            *(str(record.offsets.get(at, 0)) for at in places),
            style="dim" if record.is_claim else "",
        )
    return table


def _row_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in COLUMNS_SHOWN:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell_text(row[column]) for column in COLUMNS_SHOWN))
    return table


def _cell_text(value: object) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)


def audit_and_show(screen: Screen, settings: SinkSettings) -> AuditReport:
    screen.show_heading("The audit: every record of the topic against every row of the table")
    with showing_progress() as on_progress:
        report = audit(settings, on_progress=on_progress)
    show_audit(screen.console, report)
    return report


def show_next_commands(
    screen: Screen,
    sink_file: Path,
    survivor_log: Path,
    *,
    kafka_runs: bool,
    is_store_local: bool = True,
) -> None:
    """Show what to type next.

    ``is_store_local``: the table is in the demo's folder, not on its object store.
    """
    stopped = (
        "Kafka is stopped, the table stays" if is_store_local else "Kafka and the store are stopped"
    )
    screen.show_heading("What to type next" + ("" if kafka_runs else f" ({stopped})"))
    for what, command in next_commands(
        sink_file, survivor_log, kafka_runs=kafka_runs, is_store_local=is_store_local
    ):
        line = Text.assemble((f"  {what:<20} ", "dim"), command)
        screen.console.print(line, soft_wrap=True)  # text to copy must not be folded


def next_commands(
    sink_file: Path, survivor_log: Path, *, kafka_runs: bool, is_store_local: bool = True
) -> list[tuple[str, str]]:
    """Return what there is to see, each with the command that works from the current folder."""
    headgate, sink = headgate_command(), _shell_path(sink_file)
    catalog = _shell_path(sink_file.with_name(CATALOG_FILE))
    pyiceberg = _shell_path(Path(sys.executable).with_name("pyiceberg"))
    # Without Kafka there is no topic to compare with: the table alone must prove it.
    alone = "" if kafka_runs else " --accept-unproven"
    files = [
        ("the sink's file", f"less {sink}"),
        ("the survivor's log", f"less {_shell_path(survivor_log)}"),
    ]
    table = [
        ("where it stands", f"{headgate} status {sink}"),
        ("the audit again", f"{headgate} audit {sink}{alone}"),
    ]
    reader = [("another reader", f"{pyiceberg} --uri sqlite:///{catalog} describe {TABLE}")]
    commands = [
        *files,
        *(table if is_store_local or kafka_runs else []),
        *(reader if is_store_local else []),
        ("a sink of your own", f"{headgate} init my-sink"),
    ]
    if kafka_runs:
        return [*commands, ("one more participant", f"{headgate} run {sink}")]
    left_on = f"{headgate} demo{'' if is_store_local else ' --store s3'} --keep"
    return [*commands, ("with Kafka left on", left_on)]


def headgate_command() -> str:
    """Return how to call this ``headgate`` from here: by its name if it is on the path."""
    own = Path(sys.executable).with_name("headgate")
    found = shutil.which(own.name)
    return own.name if found and Path(found) == own else _shell_path(own)


def _shell_path(path: Path) -> str:
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith("..") else relative)
