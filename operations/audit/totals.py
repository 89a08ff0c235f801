"""Counts the table as a whole: rows, records, and why there are more rows than records. Pure.

A reader counts all rows, whoever wrote them. So this includes rows that other sinks wrote from the
same source, and rows that came again because a person set offsets back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition
from headgate.control_protocol.table_history import History
from headgate.operations.audit.records import SeenOffsets, TableRecords
from headgate.operations.audit.report import Finding

OFFSETS_SET = "offsets set"
UNEXPLAINED = "unexplained"


@dataclass(slots=True)
class WholeTable:
    """Rows with coordinates of the sink's partitions, the distinct records, and the surplus.

    ``surplus`` by cause: another sink (``sink NAME``), ``OFFSETS_SET``, or unknown.
    """

    rows: int = 0
    distinct: int = 0
    surplus: dict[str, int] = field(default_factory=dict)

    def count(self, cause: str, rows: int) -> None:
        if rows:
            self.surplus[cause] = self.surplus.get(cause, 0) + rows


def whole_table(
    own: TableRecords,
    others: Mapping[SinkName, TableRecords],
    record: CommitRecord,
    their_topics: Mapping[SinkName, Mapping[str, TopicId]],
) -> WholeTable:
    """Count what the sinks wrote of this sink's partitions, its own rows first."""
    whole = WholeTable()
    for at in record.offsets:
        seen = own.partitions.get(at, SeenOffsets())
        whole.count(OFFSETS_SET, seen.told)
        whole.count(UNEXPLAINED, seen.twice)
        whole.rows += len(seen.offsets) + seen.told + seen.twice
        known = seen.offsets.copy()
        for sink, theirs in sorted(others.items()):
            if _same_topic(at, record, their_topics.get(sink, {})):
                _count_theirs(whole, sink, theirs.partitions.get(at, SeenOffsets()), known)
        whole.distinct += len(known)
    return whole


def _count_theirs(whole: WholeTable, sink: SinkName, seen: SeenOffsets, known: BitMap64) -> None:
    rows = len(seen.offsets) + seen.told + seen.twice
    whole.rows += rows
    whole.count(f"sink {sink}", rows - len(seen.offsets - known))
    known |= seen.offsets


def _same_topic(at: TopicPartition, record: CommitRecord, theirs: Mapping[str, TopicId]) -> bool:
    """Compare topic ids: a topic of the same name on another cluster holds other records."""
    known = theirs.get(at.topic)
    return known is None or known == record.topic_ids.get(at.topic, known)


def topics_of_others(history: History) -> Mapping[SinkName, Mapping[str, TopicId]]:
    """Return the topics of each other sink on the branch, as its newest commit names them."""
    foreign = [found for found in history.foreign if found.topic_ids]
    return {found.sink: found.topic_ids for found in foreign if found.sink is not None}


def shared(whole: WholeTable, meant: Collection[str]) -> Iterator[Finding]:
    """Report rows that another sink repeated, unless the sink file says that it should."""
    for cause, rows in sorted(whole.surplus.items()):
        kind, _, sink = cause.partition(" ")
        if kind == "sink" and sink not in meant:
            yield Finding(
                "records-shared",
                f"{rows} rows repeat records of this source: sink {sink} fills the same table "
                "and branch from it, which table.shared_with does not name",
            )


def set_aside(history: History, settings: SinkSettings) -> tuple[list[Finding], list[str]]:
    """Check that the settings permit records that are neither a row nor quarantined.

    Returns findings, and what cannot be proven.
    """
    findings, unproven = [], []
    skipped = sum(commit.record.skipped for commit in history.commits)
    if skipped and not settings.limits.may_skip:
        evidence = f"{skipped} records were skipped, which no setting of this sink lets happen"
        findings.append(Finding("skipped", evidence))
    elif skipped:
        unproven.append(f"{skipped} records were skipped: nothing tells which")
    kept = sum(commit.record.quarantined for commit in history.commits)
    if kept and not settings.quarantine.keeps:
        evidence = f"{kept} records were quarantined, but this sink has no quarantine"
        findings.append(Finding("quarantined", evidence))
    return findings, unproven


def accounts(whole: WholeTable) -> str:
    """Return the sum in words."""
    more = ", ".join(f"{rows:,} by {cause}" for cause, rows in sorted(whole.surplus.items()))
    surplus = f", {whole.rows - whole.distinct:,} more than records: {more}" if more else ""
    return f"{whole.rows:,} rows of {whole.distinct:,} different records{surplus}"
