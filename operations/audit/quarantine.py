"""Audits the quarantine like the table: its commits, its files, and each record there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.record import CommitRecord, Debt
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
    """What the quarantine shows. ``rows``: live ones of this sink; ``owed``: those to come.

    ``came``: what lapsed, and is there all the same. ``refused``: records that became no rows
    though a route names a table for them, by that table (empty: its name was not noted).
    """

    history: History
    rows: int = 0
    came: frozenset[Debt] = frozenset()
    refused: dict[str, dict[TopicPartition, BitMap64]] = field(default_factory=dict)
    records: TableRecords = field(default_factory=TableRecords)
    owed: TableRecords = field(default_factory=TableRecords)
    remarks: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def upto(self, at: TopicPartition, end: int) -> BitMap64:
        """Return the partition's offsets below the table's; more may wait there (rule Q5).

        Rows that the quarantine is owed count: the table has decided them (rule D3).
        """
        there, owed = (
            records.partitions.get(at, SeenOffsets()).offsets
            for records in (self.records, self.owed)
        )
        return between(there | owed, 0, end)


def examine_quarantine(
    tables: SinkTables, lead: History, on_progress: OnProgress
) -> QuarantineEvidence:
    """Examine the quarantine. ``lead`` is what the sink's own table says.

    Raises what loading a table raises.
    """
    assert lead.record is not None, "asked only of a sink that has committed"
    settings, uuid = tables.settings, tables.reader.view().uuid
    with tables.at_rest(settings.quarantine.table) as table:
        own = table.reader.view().uuid
        evidence = _examined(table, uuid, lead.record, on_progress, routed=bool(settings.tables))
        evidence.remarks += _kept_elsewhere(lead, own)
    former = {d.table for d in lead.record.lapsed if d.follower != own} - own_tables(settings)
    for name in sorted(former - lead.filled.keys()):
        try:
            with tables.at_rest(name) as table:
                evidence.came |= came_after_all(table, lead.record.lapsed, uuid, COLUMNS)
        except HeadgateError:
            continue  # nothing tells, so what lapsed stays a finding
    return evidence


def came_after_all(
    follower: TableAtRest,
    debts: Collection[Debt],
    lead: str,
    columns: tuple[str, str, str] | None,
) -> frozenset[Debt]:
    """Return which of these lapsed debts (D8) a late payment has brought into the table.

    The table shows it: by its own record, by the files of the debt, or by all of their rows.
    """
    reader, view = follower.reader, follower.reader.view()
    files_of, came = dict[Debt, set[str]](), set[Debt]()
    for debt in (debt for debt in debts if debt.follower == view.uuid and debt.manifest):
        if view.record and view.record.pays(debt, lead) and _of_one(view.record, debt):
            came.add(debt)
            continue
        try:
            files_of[debt] = {file.path for file in follower.drafted(debt.manifest, ())}
        except FileNotFoundError:
            continue
    known = landed(reader, files_of, lead) if files_of else {}
    untold = [debt for debt, is_so in known.items() if is_so is None]
    live = _live_records(reader, columns) if untold and columns else TableRecords()
    came |= {debt for debt, is_so in known.items() if is_so}
    came |= {d for d in untold if columns and _all_there(follower, d, columns, live)}
    together = {debt.transaction for debt in came}  # one call brings all of a transaction
    return frozenset(d for d in debts if d.follower == view.uuid and d.transaction in together)


def _of_one(record: CommitRecord, debt: Debt) -> bool:
    """Return whether the record is of the payment of this debt, and of no later one."""
    return record.transaction == debt.transaction and record.coordinator == debt.coordinator


def _live_records(reader: TableReader, columns: tuple[str, str, str]) -> TableRecords:
    try:
        return scan_records(reader, columns, frozenset(), rewound={}, on_progress=lambda *_: None)
    except (ValueError, NotImplementedError):
        return TableRecords()


def _all_there(
    follower: TableAtRest, debt: Debt, columns: tuple[str, str, str], live: TableRecords
) -> bool:
    wanted = TableRecords()
    try:
        scan_draft(follower.drafted(debt.manifest, columns), columns, wanted)
    except (FileNotFoundError, ValueError, NotImplementedError):
        return False
    return bool(wanted.partitions) and all(
        seen.offsets <= live.of(at).offsets for at, seen in wanted.partitions.items()
    )


def _examined(
    follower: TableAtRest,
    lead: str,
    record: CommitRecord,
    on_progress: OnProgress,
    *,
    routed: bool,
) -> QuarantineEvidence:
    aside = follower.reader
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
    evidence.came = came_after_all(follower, record.lapsed, lead, COLUMNS)
    findings += _examine_offsets(history, evidence.records.partitions)
    findings += _examine_debts(follower, history, record, evidence, lead=lead)
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


def _kept_elsewhere(lead: History, uuid: str) -> Iterator[str]:
    """Name the former quarantines that took bad records before the one with this UUID (Q2)."""
    kept: Counter[str] = Counter()
    for commit in lead.commits:
        followers = commit.record.followers
        if commit.record.quarantined and followers and uuid not in followers.values():
            name, theirs = next(iter(followers.items()))
            kept[f"{name} with UUID {theirs}"] += commit.record.quarantined
    for former, records in kept.items():
        yield (
            f"{records} records were quarantined in {former}, which is not the quarantine any "
            "more: only those count that somebody has copied from there"
        )


def lapsed(debt: Debt) -> Finding:
    """Report what a follower was owed, and has not received (rule D8)."""
    which = "transaction" if debt.manifest else "transactions up to"
    return Finding(
        "rows-lapsed",
        f"{debt.said} of {which} {debt.transaction} were owed to {debt.table} for too long, "
        "and are not paid any more",
    )


def _examine_debts(
    follower: TableAtRest,
    history: History,
    record: CommitRecord,
    evidence: QuarantineEvidence,
    *,
    lead: str,
) -> Iterator[Finding]:
    """D7: check what the table's record owes and the quarantine's record does not show."""
    known = history.record
    for debt in record.debts:
        paid = known is not None and known.pays(debt, lead)
        if debt.follower != history.uuid or not debt.manifest or paid:
            continue
        try:
            scan_draft(follower.drafted(debt.manifest, COLUMNS), COLUMNS, evidence.owed)
        except FileNotFoundError as error:
            yield Finding("debt-missing", f"transaction {debt.transaction} cannot be paid: {error}")
        evidence.remarks.append(
            f"{debt.rows} rows of transaction {debt.transaction} are owed to the quarantine"
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
