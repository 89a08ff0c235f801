"""Audits the quarantine like the table: its commits, its files, and each record there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.table_history import History, TableReader
from headgate.data_plane.quarantine.diverted_records import MEANT_FOR
from headgate.data_plane.quarantine.rejected_records import ROUTE, TABLE
from headgate.data_plane.routing.targets import NO_ROUTE
from headgate.operations.access.routed_tables import own_tables
from headgate.operations.audit.commit_chain import examine_chain
from headgate.operations.audit.files import (
    OnProgress,
    examine_commits,
    examine_live,
    landed,
    of_other_sinks,
)
from headgate.operations.audit.records import (
    SeenOffsets,
    TableRecords,
    rows_where,
    scan_draft,
    scan_records,
)
from headgate.operations.audit.report import Finding
from headgate.operations.audit.source import EVERYTHING, between, difference
from headgate.runtime.sink_tables import SinkTables, TableAtRest

COLUMNS = ("topic", "partition", "offset")


@dataclass(slots=True)
class QuarantineEvidence:
    """What the quarantine shows. ``rows``: live ones of this sink; ``pending``: those to come.

    ``came``: what expired, and is there all the same. ``refused``: records that became no rows
    though a route names a table for them, by that table (empty: its name was not noted).
    """

    history: History
    rows: int = 0
    came: frozenset[PendingCommit] = frozenset()
    refused: dict[str, dict[TopicPartition, BitMap64]] = field(default_factory=dict)
    records: TableRecords = field(default_factory=TableRecords)
    pending: TableRecords = field(default_factory=TableRecords)
    remarks: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def upto(self, at: TopicPartition, end: int) -> BitMap64:
        """Return the partition's offsets below the table's; more may wait there (rule Q5).

        Rows that the quarantine is pending count: the table has decided them (rule D3).
        """
        there, pending = (
            records.partitions.get(at, SeenOffsets()).offsets
            for records in (self.records, self.pending)
        )
        return between(there | pending, 0, end)


def examine_quarantine(
    tables: SinkTables, primary: History, on_progress: OnProgress
) -> QuarantineEvidence:
    """Examine the quarantine. ``primary`` is what the sink's own table says.

    Raises what loading a table raises.
    """
    assert primary.record is not None, "asked only of a sink that has committed"
    settings, uuid = tables.settings, tables.reader.view().uuid
    with tables.at_rest(settings.quarantine.table) as table:
        own = table.reader.view().uuid
        evidence = _examined(table, uuid, primary.record, on_progress, routed=bool(settings.tables))
        evidence.remarks += _kept_elsewhere(primary, own)
    former = {d.table for d in primary.record.expired if d.secondary != own} - own_tables(settings)
    for name in sorted(former - primary.filled.keys()):
        try:
            with tables.at_rest(name) as table:
                evidence.came |= came_after_all(table, primary.record.expired, uuid, COLUMNS)
        except HeadgateError:
            continue  # nothing tells, so what expired stays a finding
    return evidence


def came_after_all(
    secondary: TableAtRest,
    pending_commits: Collection[PendingCommit],
    primary: str,
    columns: tuple[str, str, str] | None,
) -> frozenset[PendingCommit]:
    """Return which of these expired pending commits (D8) a late delivery has brought into the
    table.

    The table shows it: by its own record, by the files of the pending commit, or by all of their
    rows.
    """
    reader, view = secondary.reader, secondary.reader.view()
    files_of, came = dict[PendingCommit, set[str]](), set[PendingCommit]()
    for pending_commit in (
        pending_commit
        for pending_commit in pending_commits
        if pending_commit.secondary == view.uuid and pending_commit.manifest
    ):
        if (
            view.record
            and view.record.delivers(pending_commit, primary)
            and _of_one(view.record, pending_commit)
        ):
            came.add(pending_commit)
            continue
        try:
            files_of[pending_commit] = {
                file.path for file in secondary.drafted(pending_commit.manifest, ())
            }
        except FileNotFoundError:
            continue
    known = landed(reader, files_of, primary) if files_of else {}
    untold = [pending_commit for pending_commit, is_so in known.items() if is_so is None]
    live = _live_records(reader, columns) if untold and columns else TableRecords()
    came |= {pending_commit for pending_commit, is_so in known.items() if is_so}
    came |= {d for d in untold if columns and _all_there(secondary, d, columns, live)}
    together = {
        pending_commit.transaction for pending_commit in came
    }  # one call brings all of a transaction
    return frozenset(
        d for d in pending_commits if d.secondary == view.uuid and d.transaction in together
    )


def _of_one(record: CommitRecord, pending_commit: PendingCommit) -> bool:
    """Return whether the record is of the delivery of this pending commit, and of no later one."""
    return (
        record.transaction == pending_commit.transaction
        and record.coordinator == pending_commit.coordinator
    )


def _live_records(reader: TableReader, columns: tuple[str, str, str]) -> TableRecords:
    try:
        return scan_records(reader, columns, frozenset(), rewound={}, on_progress=lambda *_: None)
    except (ValueError, NotImplementedError):
        return TableRecords()


def _all_there(
    secondary: TableAtRest,
    pending_commit: PendingCommit,
    columns: tuple[str, str, str],
    live: TableRecords,
) -> bool:
    wanted = TableRecords()
    try:
        scan_draft(secondary.drafted(pending_commit.manifest, columns), columns, wanted)
    except (FileNotFoundError, ValueError, NotImplementedError):
        return False
    return bool(wanted.partitions) and all(
        seen.offsets <= live.of(at).offsets for at, seen in wanted.partitions.items()
    )


def _examined(
    secondary: TableAtRest,
    primary: str,
    record: CommitRecord,
    on_progress: OnProgress,
    *,
    routed: bool,
) -> QuarantineEvidence:
    aside = secondary.reader
    history, files = aside.history(), aside.live_files()
    live, damaged = examine_live(aside, files, on_progress)
    findings = [
        *examine_chain(history, follows=True),
        *examine_commits(aside, history, on_progress),
        *live,
    ]
    evidence = QuarantineEvidence(history)
    if history.head is not None:
        left_out = damaged | of_other_sinks(files, history, record.sink).keys()
        evidence.records = scan_records(
            aside, COLUMNS, left_out, rewound={}, on_progress=on_progress
        )
        if routed:
            evidence.refused = _refused(aside, left_out)
    evidence.came = came_after_all(secondary, record.expired, primary, COLUMNS)
    findings += _examine_offsets(history, evidence.records.partitions)
    findings += _examine_pending_commits(secondary, history, record, evidence, primary=primary)
    evidence.rows = sum(len(seen.offsets) for seen in evidence.records.partitions.values())
    evidence.findings = [
        Finding(finding.what, f"quarantine {history.table}: {finding.evidence}")
        for finding in findings
    ]
    return evidence


def _refused(
    aside: TableReader, left_out: Collection[str]
) -> dict[str, dict[TopicPartition, BitMap64]]:
    """Return the records for which a route names a table that did not take them (I1, R2)."""
    found: dict[str, dict[TopicPartition, BitMap64]] = {}
    columns = (*COLUMNS, "error_class", "message", MEANT_FOR)
    present = [name for name in columns if name in aside.columns()]
    if "error_class" not in present:
        return found
    _, files = aside.scan(present)
    for file in (file for file in files if file.path not in left_out):
        classes = (ROUTE, TABLE)
        for row in (r for b in file.batches() for r in rows_where(b, "error_class", classes)):
            if str(row.get("message") or "").startswith(NO_ROUTE):
                continue
            records = found.setdefault(row.get(MEANT_FOR) or "", {})
            at = TopicPartition(row["topic"], row["partition"])
            records.setdefault(at, BitMap64()).add(row["offset"])
    return found


def _kept_elsewhere(primary: History, uuid: str) -> Iterator[str]:
    """Name the former quarantines that took bad records before the one with this UUID (Q2)."""
    kept: Counter[str] = Counter()
    for commit in primary.commits:
        secondaries = commit.record.secondaries
        if commit.record.quarantined and secondaries and uuid not in secondaries.values():
            name, theirs = next(iter(secondaries.items()))
            kept[f"{name} with UUID {theirs}"] += commit.record.quarantined
    for former, records in kept.items():
        yield (
            f"{records} records were quarantined in {former}, which is not the quarantine any "
            "more: only those count that somebody has copied from there"
        )


def expired(pending_commit: PendingCommit) -> Finding:
    """Report what a secondary table was pending, and has not received (rule D8)."""
    which = "transaction" if pending_commit.manifest else "transactions up to"
    return Finding(
        "rows-expired",
        f"{pending_commit.said} of {which} {pending_commit.transaction} were pending for "
        f"{pending_commit.table} for too long, "
        "and are not delivered any more",
    )


def _examine_pending_commits(
    secondary: TableAtRest,
    history: History,
    record: CommitRecord,
    evidence: QuarantineEvidence,
    *,
    primary: str,
) -> Iterator[Finding]:
    """D7: check what the table's record has pending and the quarantine's record does not show."""
    known = history.record
    for pending_commit in record.pending_commits:
        delivered = known is not None and known.delivers(pending_commit, primary)
        if pending_commit.secondary != history.uuid or not pending_commit.manifest or delivered:
            continue
        try:
            scan_draft(
                secondary.drafted(pending_commit.manifest, COLUMNS), COLUMNS, evidence.pending
            )
        except FileNotFoundError as error:
            yield Finding(
                "pending-commit-missing",
                f"transaction {pending_commit.transaction} cannot be delivered: {error}",
            )
        evidence.remarks.append(
            f"{pending_commit.rows} rows of transaction {pending_commit.transaction} are "
            "pending for the quarantine"
        )


def _examine_offsets(
    history: History, partitions: Mapping[TopicPartition, SeenOffsets]
) -> Iterator[Finding]:
    stored = history.record.offsets if history.record else {}
    for at, seen in sorted(partitions.items()):
        if seen.twice:
            places = "; ".join(f"offset {offset} again in {path}" for offset, path in seen.examples)
            yield Finding("record-twice", f"{at}: {seen.twice} rows too many: {places}")
        end = stored.get(at, 0)
        beyond = between(seen.offsets, end, EVERYTHING)
        yield from difference("record-beyond", f"{at}: at or beyond its offset {end}", beyond)
