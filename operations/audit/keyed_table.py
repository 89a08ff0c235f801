"""Checks what can be proven about one keyed table, the sink's own or one that routes name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.control_protocol.commit_record import CommitRecord, KeyCounts
from headgate.control_protocol.table_history import History, LiveFile, TableReader
from headgate.operations.audit.changelog_replay import FoldEvidence
from headgate.operations.audit.commit_chain import Move
from headgate.operations.audit.files import OnProgress
from headgate.operations.audit.records import count_keys
from headgate.operations.audit.replay_compare import Fault
from headgate.operations.audit.report import Finding
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.storage.read_ahead import in_turn

# Compares each commit's record of a keyed table with its manifests alone.


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


DEATHS_UNTOLD = "this kind of table does not tell which rows each commit removed"
NOT_FOLDED = (
    "a keyed table holds the last record of each key: they were not compared with the "
    "source, so some may be missing or outdated"
)


@dataclass(slots=True)
class Told:
    """Findings, and what is proven or not; ``expired``: unproven only without the source."""

    findings: list[Finding] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)


def offsets_behind(record: CommitRecord, moves: Sequence[Move]) -> list[str]:
    """Return why the table does not show the records up to the stored offsets, if it does not."""
    return [
        f"{move.partition}: offsets were set back from {move.begin}, and the sink has not "
        "reached that point again: rows may be newer than the stored offsets"
        for move in moves
        if record.offsets.get(move.partition, 0) < move.begin
    ]


def told_of_deaths(reader: IcebergReader, history: History, on_progress: OnProgress) -> Told:
    """Check that each commit removed as many rows as its record counts (U10)."""
    told, deaths = Told(), examine_deaths(reader, history, on_progress)
    told.findings += deaths.findings
    if deaths.right:
        told.proven.append(
            f"{deaths.right} commits made as many rows die as they updated, deleted and superseded"
        )
    if deaths.puzzling:
        told.expired.append(
            f"{deaths.puzzling} commits made other rows die than they count, and others changed "
            "the table"
        )
    return told


def told_of_rows(history: History, live_rows: int) -> Told:
    """Check that as many rows are live as the commits inserted and did not delete (U10)."""
    told = Told()
    counts = [commit.record.keys for commit in history.commits if commit.record.keys]
    expected = sum(each.inserted - each.deleted for each in counts)
    if any(not found.upkeep for found in history.foreign) or not history.complete:
        told.expired.append(
            "live rows are not counted: others changed the table, or older commits have expired"
        )
    elif expected != live_rows:
        told.findings.append(
            Finding(
                "row-count",
                f"{live_rows} rows are live, the commits inserted {expected} more than they "
                "deleted",
            )
        )
    else:
        told.proven.append(
            f"{expected} rows are live: as many as the commits inserted and did not delete"
        )
    return told


def told_of_keys(
    reader: TableReader,
    history: History,
    files: Sequence[LiveFile],
    *,
    key: tuple[str, ...],
    memory_bytes: int,
) -> Told:
    """Check that no key has two live rows (U1)."""
    told = Told()
    absent = [name for name in key if name not in reader.columns()]
    if absent or history.head is None:
        told.unproven.append(f"the table has no column {', '.join(absent) or 'filled yet'}")
        return told
    rows_max = sum(file.records for file in files if not file.deletes)
    try:
        rows, different = count_keys(reader, key, rows_max, memory_bytes)
    except (ValueError, NotImplementedError) as error:  # pyiceberg cannot read equality deletes
        told.unproven.append(f"the keys cannot be read here: {error}")
        return told
    if rows != different:
        text = f"{rows} live rows have {different} different keys"
        told.findings.append(Finding("key-twice", text))
    else:
        told.proven.append(f"each of {rows} live rows has a key of its own")
    return told


def told_of_fold(
    fold: FoldEvidence,
    history: History,
    compacted: Mapping[str, bool | None],
    unexplained: int,
) -> Told:
    """Report the comparison. Nothing tells which rows others deleted or the sink skipped.

    ``unexplained``: how many records the sink skipped beyond those that change nothing.
    """
    told, faults = Told(), fold.faults
    removed = sum(snapshot.removed_rows for snapshot in history.foreign)
    missing = faults.count(Fault.LOST)
    behind = missing + faults.count(Fault.OUTDATED)
    besides: Collection[Fault] = ()
    if missing and missing - faults.old <= removed:
        besides = (Fault.LOST,)
        why = [f"others deleted {removed} rows of the table"] if removed else []
        if faults.old:
            why.append(
                f"of {faults.old} of them the records lie below the oldest commit that is left: "
                "whether somebody deleted them has expired"
            )
        told.unproven.append(f"{missing} keys have no row, and {', '.join(why)}")
    elif behind and behind <= unexplained:
        besides = (Fault.LOST, Fault.OUTDATED)
        told.unproven.append(
            f"{behind} keys lack the row of their last record, and the sink skipped "
            f"{unexplained} records that can be read now"
        )
    told.findings += fold.findings(frozenset(besides))
    told.unproven += fold.unproven(compacted)
    compared = f"{faults.rows:,} rows are the last records of their keys, value by value"
    told.proven.append(f"{compared}: of {faults.records:,} changes that the source holds")
    return told
