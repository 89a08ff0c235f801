"""Audits the quarantine like the table: its commits, its files, and each record there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.record import CommitRecord, Debt
from headgate.control_protocol.table_history import History, TableReader
from headgate.operations.audit_chain import examine_chain
from headgate.operations.audit_files import OnProgress, examine_commits, examine_live
from headgate.operations.audit_records import (
    SeenOffsets,
    TableRecords,
    scan_draft,
    scan_records,
)
from headgate.operations.audit_report import Finding
from headgate.operations.audit_source import EVERYTHING, between, difference
from headgate.operations.follower_access import FollowerReader, opened_follower
from headgate.sink.settings import SinkSettings

COLUMNS = ("topic", "partition", "offset")


@dataclass(slots=True)
class QuarantineEvidence:
    """What the quarantine shows. ``rows``: live ones of this sink; ``owed``: those to come.

    ``deleted_rows``: deleted by people.
    """

    rows: int = 0
    deleted_rows: int = 0
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
    settings: SinkSettings, reader: TableReader, lead: History, on_progress: OnProgress
) -> QuarantineEvidence:
    """Examine the quarantine. ``reader`` reads the sink's own table, and ``lead`` is what it says.

    Raises what loading a table raises.
    """
    assert lead.record is not None, "asked only of a sink that has committed"
    with opened_follower(settings, reader, settings.quarantine.table) as follower:
        evidence = _examined(follower, reader.view().uuid, lead.record, on_progress)
        evidence.remarks += _kept_elsewhere(lead, follower.reader.view().uuid)
        return evidence


def _examined(
    follower: FollowerReader, lead: str, record: CommitRecord, on_progress: OnProgress
) -> QuarantineEvidence:
    aside = follower.reader
    history, files = aside.history(), aside.live_files()
    live, damaged = examine_live(aside, files, on_progress)
    findings = [
        *examine_chain(history, follows=True),
        *examine_commits(aside, history, on_progress),
        *live,
    ]
    evidence = QuarantineEvidence(deleted_rows=history.deleted_rows)
    if history.head is not None:
        others = {found.snapshot_id for found in history.foreign if found.sink is not None}
        left_out = damaged | {file.path for file in files if file.added_by in others}
        evidence.records = scan_records(
            aside, COLUMNS, left_out, rewound={}, on_progress=on_progress
        )
    findings += _examine_offsets(history, evidence.records.partitions)
    findings += _examine_debts(follower, history, record, evidence, lead=lead)
    evidence.rows = sum(len(seen.offsets) for seen in evidence.records.partitions.values())
    evidence.findings = [
        Finding(finding.what, f"quarantine {history.table}: {finding.evidence}")
        for finding in findings
    ]
    return evidence


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
    follower: FollowerReader,
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
