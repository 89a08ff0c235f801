"""Compares each commit's record of a keyed table with its manifests alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.control_protocol.record import KeyCounts
from headgate.control_protocol.table_history import History
from headgate.operations.audit_files import OnProgress
from headgate.operations.audit_report import Finding
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.stores.ahead import in_turn


@dataclass(slots=True)
class Deaths:
    """The result. ``puzzling`` commits do not add up, and others changed the table as well."""

    findings: list[Finding] = field(default_factory=list)
    right: int = 0
    puzzling: int = 0


def examine_deaths(reader: IcebergReader, history: History, on_progress: OnProgress) -> Deaths:
    """Compare the rows that each commit added and removed with the counts in its record (U10)."""
    deaths = Deaths()
    by_others = not history.complete or any(each.operation != "replace" for each in history.foreign)
    commits = [commit for commit in history.commits if commit.record.keys is not None]
    for done, (commit, died) in enumerate(zip(commits, in_turn(reader.died, commits), strict=True)):
        on_progress("commits", done, len(commits))
        counts = commit.record.keys
        if died is None or counts is None:
            continue
        if _adds_up(counts, commit.record.records, died):
            deaths.right += 1
        elif by_others:  # their rows of a key die too, and so do those that their deletes name
            deaths.puzzling += 1
        else:
            deaths.findings.append(
                Finding(
                    "change-count",
                    f"{commit.where}: {commit.record.records} rows came and {died} died; its "
                    f"record counts {counts.inserted} inserted, {counts.updated} updated, "
                    f"{counts.deleted} deleted and {counts.superseded} superseded",
                )
            )
    return deaths


def _adds_up(counts: KeyCounts, rows: int, died: int) -> bool:
    """Superseded records are rows that were written and died, or deletes, which leave no trace."""
    superseded = rows - counts.inserted - counts.updated
    return (
        0 <= superseded <= counts.superseded
        and died == counts.updated + counts.deleted + superseded
    )
