"""Compares table and source: which records were lost, doubled or invented. Pure set arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from pyroaring import BitMap64

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import TopicState
from headgate.control_protocol.spark_batch_decision import is_record_of_query
from headgate.control_protocol.table_history import History
from headgate.operations.audit.report import Finding, PartitionAudit
from headgate.operations.audit.table_checks import OffsetMove, added_ranges
from headgate.operations.audit.table_records import EXAMPLES_MAX, SeenOffsets, TableRecords

EVERYTHING = 2**63


def count_stateful_query_commits(history: History) -> int:
    """Return how many commits of a Spark query hold rows that are not one or none per offset.

    What such a query makes of its records, and in which batch, is its own: it remembers (QUERY-15).
    """
    return sum(
        sum(span.end - span.begin for span in added_ranges(before.record, after.record).values())
        != after.record.source_record_count
        for before, after in pairwise(history.commits)
        if is_record_of_query(after.record) and not after.record.is_claim
    )


def find_sink_start_offsets(
    history: History, *, from_earliest: bool
) -> dict[TopicPartition, int | None]:
    """Return where the sink started in each partition; ``None`` if that expired with old snapshots.

    ``from_earliest``: an expired start was the log's beginning.

    The first claim records it (rule EPOCH-1), and no later one: whatever is left when that has
    expired goes on from where others ended. Partitions that appear later start at their log's
    beginning.
    """
    unknown = 0 if from_earliest else None
    first_offsets: dict[TopicPartition, int | None] = {}
    topic_ids: dict[str, TopicId] = {}
    for number, commit in enumerate(history.commits):
        record = commit.record
        for at, offset in record.offsets.items():
            known = topic_ids.get(at.topic)
            anew = known is not None and known != record.topic_ids.get(at.topic)
            if at in first_offsets and not anew:
                first = first_offsets[at]
                if record.is_operator_claim and first is not None:
                    first_offsets[at] = min(first, offset)
                continue
            if number == 0 and not history.complete and not _is_first_claim(record):
                first_offsets[at] = unknown
            else:
                first_offsets[at] = offset if record.is_claim else 0
        topic_ids.update(record.topic_ids)
    if not history.commits and not history.complete and history.tagged:
        first_offsets = dict.fromkeys(history.tagged.offsets, unknown)
    return first_offsets


def _is_first_claim(record: CommitRecord) -> bool:
    return record.is_claim and record.transaction.epoch == 1


def find_lowest_read_offsets(
    history: History, began: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """Return the offsets below which the sink has read nothing, so that rows there are others'.

    A claim may have gone back below where the sink began, by a person or a policy.
    """
    claims = [commit.record.offsets for commit in history.commits if commit.record.is_claim]
    return {
        at: min([begin, *(offsets.get(at, begin) for offsets in claims)])
        for at, begin in began.items()
        if begin
    }


def find_offsets_skipped_by_moves(
    history: History, moves: Sequence[OffsetMove]
) -> dict[TopicPartition, BitMap64]:
    """Return offsets that these moves skipped, and that no later commit covered."""
    forward = {(move.where, move.partition): move for move in moves if move.begin < move.end}
    missing: defaultdict[TopicPartition, BitMap64] = defaultdict(BitMap64)
    for before, after in pairwise(history.commits):
        if after.record.is_claim:
            for (where, at), move in forward.items():
                if where == after.description:
                    missing[at].add_range(move.begin, move.end)
            continue
        for at, span in added_ranges(before.record, after.record).items():
            if at in missing:
                missing[at].remove_range(span.begin, span.end)
    return dict(missing)


def find_offsets_rewound_by_operator(moves: Sequence[OffsetMove]) -> dict[TopicPartition, BitMap64]:
    """Return offsets that a person told the sink to read again."""
    again: defaultdict[TopicPartition, BitMap64] = defaultdict(BitMap64)
    for move in moves:
        if move.by_operator and move.end < move.begin:
            again[move.partition].add_range(move.end, move.begin)
    return dict(again)


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """One partition as the source shows it now: its log, and the offsets that hold records.

    ``begin``: below it, it was not read.
    """

    log: OffsetRange
    offsets: BitMap64 | None
    begin: int = 0

    @property
    def first(self) -> int:
        """Return the first offset that is compared."""
        return max(self.log.begin, self.begin)


@dataclass(slots=True)
class SourceEvidence:
    """What the brokers know; ``witnesses`` only for partitions that can be compared."""

    topics: Mapping[str, TopicState] = field(default_factory=dict)
    witnesses: dict[TopicPartition, SourceOffsets] = field(default_factory=dict)


def find_comparable_ranges_and_unproven(
    topics: Mapping[str, TopicState],
    topic_ids: Mapping[str, TopicId],
    spans: Mapping[TopicPartition, tuple[int | None, int]],
    seen: Mapping[TopicPartition, SeenOffsets],
) -> tuple[dict[TopicPartition, OffsetRange | None], list[str]]:
    """Return what to read from the source, and what cannot be proven for lack of it.

    A range is ``None`` for a partition whose beginning is unknown. ``topic_ids``: the topics that
    the stored offsets belong to.
    """
    ranges: dict[TopicPartition, OffsetRange | None] = {}
    unproven: list[str] = []
    for at, (begin, end) in spans.items():
        topic = topics.get(at.topic)
        if topic is not None and at.partition in topic.silent:
            unproven.append(f"{at}: no broker leads it now, so it was not compared")
        elif topic is None or at.partition not in topic.partitions:
            unproven.append(f"{at} is not in the source any more")
        elif topic_ids.get(at.topic, topic.topic_id) != topic.topic_id:
            unproven.append(f"{at}: the topic was re-created since")
        else:
            known = _begin_by_rows_noting_unproven(at, seen, unproven) if begin is None else begin
            log = topic.partitions[at.partition]
            if known is not None and known < min(log.begin, end):
                unproven.append(f"{at}: offsets below {log.begin} are no longer in the source")
            ranges[at] = _find_retained_part(log, known, end)
    return ranges, unproven


def _begin_by_rows_noting_unproven(
    at: TopicPartition, seen: Mapping[TopicPartition, SeenOffsets], unproven: list[str]
) -> int | None:
    """Return the best known beginning of a partition whose first claim has expired."""
    if at not in seen or not seen[at].offsets:
        unproven.append(f"{at}: where the sink began has expired")
        return None
    first = int(seen[at].offsets.min())
    unproven.append(f"{at}: records before {first}: where the sink began has expired")
    return first


def _find_retained_part(log: OffsetRange, begin: int | None, end: int) -> OffsetRange | None:
    if begin is None:
        return None
    first = min(max(begin, log.begin), end)
    return OffsetRange(first, max(first, min(end, log.end)))


def compare_partition(
    at: TopicPartition,
    span: tuple[int | None, int],
    witness: SourceOffsets | None,
    seen: SeenOffsets | None,
    *,
    quarantined: BitMap64 | None = None,
    put_again: BitMap64 | None = None,
    deleted: BitMap64 | None = None,
) -> tuple[PartitionAudit, list[Finding]]:
    """Compare one partition. ``span``: where the sink started, and the stored next offset.

    ``witness`` is ``None`` without a source, ``seen`` without coordinate columns. ``quarantined``
    are the offsets in the quarantine, if there is one; those ``put_again`` are also in a table,
    once (SUSPEND-6). ``deleted`` are those whose rows people deleted: they need not be anywhere.
    Only offsets that the source still retains are compared.
    """
    begin, end = span
    findings: list[Finding] = []
    produced = in_table = lost = twice = invented = lag = None
    inside = None
    if seen is not None:
        inside = offsets_between(seen.offsets, begin or 0, end)
        in_table, twice = len(inside), seen.twice
        findings += _compare_without_source(at, end, seen)
        both = (inside & quarantined) - seen.rewound if quarantined is not None else BitMap64()
        both -= put_again or BitMap64()
        twice += len(both)
        findings += difference_findings(
            "record-twice", f"{at}: in the table and in its quarantine", both
        )
        inside = inside | quarantined if quarantined is not None else inside
    if witness is not None:
        lag = witness.log.end - end
        if not witness.log.begin <= end <= witness.log.end:
            findings.append(
                Finding("offset-out-of-source", f"{at}: next is {end}, the log is {witness.log}")
            )
    if witness is not None and witness.offsets is not None:
        produced = len(witness.offsets)
        if inside is not None:
            missing = witness.offsets - inside - (deleted or BitMap64())
            extra = offsets_between(inside, witness.first, end) - witness.offsets
            lost, invented = len(missing), len(extra)
            findings += difference_findings(
                "record-lost", f"{at}: in the source, not in the table", missing
            )
            findings += difference_findings(
                "record-invented", f"{at}: in the table, not in the source", extra
            )
    audit = PartitionAudit(
        topic=at.topic,
        partition=at.partition,
        begin=begin,
        next_offset=end,
        produced=produced,
        in_table=in_table,
        in_quarantine=None if quarantined is None else len(quarantined),
        lost=lost,
        twice=twice,
        invented=invented,
        lag=lag,
    )
    return audit, findings


def find_missing_records(
    span: tuple[int | None, int],
    witness: SourceOffsets | None,
    seen: SeenOffsets | None,
    quarantined: BitMap64 | None,
) -> BitMap64:
    """Return the records that the source holds, and neither table nor quarantine."""
    if witness is None or witness.offsets is None or seen is None:
        return BitMap64()
    inside = offsets_between(seen.offsets, span[0] or 0, span[1])
    return witness.offsets - (inside | quarantined if quarantined is not None else inside)


def _compare_without_source(at: TopicPartition, end: int, seen: SeenOffsets) -> list[Finding]:
    findings = []
    if seen.twice:
        places = "; ".join(f"offset {offset} again in {path}" for offset, path in seen.examples)
        findings.append(
            Finding("record-twice", f"{at}: {count_of(seen.twice, 'row')} too many: {places}")
        )
    beyond = offsets_between(seen.offsets, end, EVERYTHING) - seen.rewound
    findings += difference_findings(
        "record-beyond", f"{at}: at or beyond the stored offset {end}", beyond
    )
    return findings


def offsets_between(offsets: BitMap64, begin: int, end: int) -> BitMap64:
    kept = offsets.copy()
    kept.remove_range(0, begin)
    kept.remove_range(end, EVERYTHING * 2 - 1)
    return kept


def difference_findings(what: str, where: str, offsets: BitMap64) -> list[Finding]:
    if not offsets:
        return []
    first = [offset for offset, _ in zip(offsets, range(EXAMPLES_MAX), strict=False)]
    more = ", ..." if len(offsets) > len(first) else ""
    listed = ", ".join(str(offset) for offset in first)
    return [Finding(what, f"{where}: {count_of(len(offsets), 'record')}, offsets {listed}{more}")]


class CommitCounts(NamedTuple):
    """What is wrong with commits, how many were compared, and of which topics nothing tells."""

    findings: list[Finding]
    compared: int
    unproven: list[str]


def check_commits_and_count_compared(
    history: History,
    witnesses: Mapping[TopicPartition, SourceOffsets],
    topic_ids: Mapping[str, TopicId],
    may_be_compacted: Callable[[str], bool] = lambda _: False,
) -> CommitCounts:
    """Compare each commit's rows with the records in its ranges; also count compared commits.

    Of topics that ``may_be_compacted``, which is asked for where records are absent, the source may
    hold fewer.
    """
    findings: list[Finding] = []
    compared, fewer = 0, 0
    if not witnesses or history.current_record is None:
        return CommitCounts(findings, compared, [])
    stored = (
        history.current_record.offsets
    )  # what lies beyond it (offsets were set back) was not read
    for before, after in pairwise(history.commits):
        ranges = added_ranges(before.record, after.record)
        same_topics = all(
            after.record.topic_ids.get(at.topic) == topic_ids.get(at.topic) for at in ranges
        )
        retained = all(
            _is_retained(witnesses.get(at), span) and span.end <= stored.get(at, 0)
            for at, span in ranges.items()
        )
        if after.record.is_claim or not (same_topics and retained):
            continue
        compared += 1
        source = sum(_count_records(witnesses[at], span) for at, span in ranges.items())
        record = after.record
        if source != record.source_record_count:
            if is_record_of_query(record):
                compared -= 1  # QUERY-15: its skipped offsets may hold none, its rows are its own
                continue
            topics = {at.topic for at in ranges}
            if source < record.source_record_count and any(map(may_be_compacted, topics)):
                compared, fewer = compared - 1, fewer + 1
                continue
            spans = ", ".join(f"{at} {span}" for at, span in sorted(ranges.items()))
            changed = record.source_record_count - record.quarantined - record.skipped
            what = count_of(changed, "change" if record.keys else "row")
            findings.append(
                Finding(
                    "commit-count",
                    f"{after.description}: {what}, {record.quarantined} quarantined and "
                    f"{record.skipped} skipped, but the source holds {count_of(source, 'record')} "
                    f"in {spans}",
                )
            )
    text = (
        f"{count_of(fewer, 'commit counts', 'commits count')} more records than the source holds: "
        "it may be compacted"
    )
    return CommitCounts(findings, compared, [text] if fewer else [])


def _is_retained(witness: SourceOffsets | None, span: OffsetRange) -> bool:
    if witness is None or witness.offsets is None:
        return False
    return span.begin >= witness.first


def _count_records(witness: SourceOffsets, span: OffsetRange) -> int:
    assert witness.offsets is not None  # checked by _is_retained
    return int(witness.offsets.range_cardinality(span.begin, span.end))


# Counts the table as a whole: rows, records, and why there are more rows than records. Pure.
#
# A reader counts all rows, whoever wrote them. So this includes rows that other sinks wrote from
# the same source, and rows that came again because a person set offsets back.


OFFSETS_SET = "offsets set"
BEFORE = "others before the sink began"
EXPIRED = "nobody knows whom: it has expired"
UNEXPLAINED = "unexplained"


@dataclass(slots=True)
class WholeTable:
    """Rows with coordinates of the sink's partitions, the distinct records, and the surplus.

    ``surplus`` by cause: another sink (``sink NAME``), ``OFFSETS_SET``, ``BEFORE``, ``EXPIRED``, or
    unknown.
    """

    rows: int = 0
    distinct: int = 0
    surplus: dict[str, int] = field(default_factory=dict)

    def add_surplus(self, cause: str, rows: int) -> None:
        if rows:
            self.surplus[cause] = self.surplus.get(cause, 0) + rows


def count_rows_of_all_sinks(
    own: TableRecords,
    others: Mapping[SinkName, TableRecords],
    record: CommitRecord,
    their_topics: Mapping[SinkName, Mapping[str, TopicId]],
) -> WholeTable:
    """Count what the sinks wrote of this sink's partitions, its own rows first."""
    whole = WholeTable()
    for at in record.offsets:
        seen = own.partitions.get(at, SeenOffsets())
        whole.add_surplus(OFFSETS_SET, seen.requested)
        whole.add_surplus(BEFORE, seen.before)
        whole.add_surplus(EXPIRED, seen.untold)
        whole.add_surplus(UNEXPLAINED, seen.twice)
        whole.rows += len(seen.offsets) + seen.requested + seen.before + seen.untold + seen.twice
        known = seen.offsets.copy()
        for sink, theirs in sorted(others.items()):
            if _may_be_same_topic(at, record, their_topics.get(sink, {})):
                _add_rows_of_other_sink(
                    whole, sink, theirs.partitions.get(at, SeenOffsets()), known
                )
        whole.distinct += len(known)
    return whole


def _add_rows_of_other_sink(
    whole: WholeTable, sink: SinkName, seen: SeenOffsets, into_known: BitMap64
) -> None:
    rows = len(seen.offsets) + seen.requested + seen.twice
    whole.rows += rows
    whole.add_surplus(f"sink {sink}", rows - len(seen.offsets - into_known))
    into_known |= seen.offsets


def _may_be_same_topic(
    at: TopicPartition, record: CommitRecord, theirs: Mapping[str, TopicId]
) -> bool:
    """Compare topic ids: a topic of the same name on another cluster holds other records."""
    known = theirs.get(at.topic)
    return known is None or known == record.topic_ids.get(at.topic, known)


def topics_of_other_sinks(history: History) -> Mapping[SinkName, Mapping[str, TopicId]]:
    """Return the topics of each other sink on the branch, as its newest commit names them."""
    foreign = [snapshot for snapshot in history.foreign if snapshot.topic_ids]
    return {snapshot.sink: snapshot.topic_ids for snapshot in foreign if snapshot.sink is not None}


def check_rows_of_undeclared_sinks(
    whole: WholeTable, declared: Collection[str]
) -> Iterator[Finding]:
    """Report rows that a sink repeated which the sink file does not declare."""
    for cause, rows in sorted(whole.surplus.items()):
        origin, _, sink = cause.partition(" ")
        if origin == "sink" and sink not in declared:
            yield Finding(
                "records-shared",
                f"{count_of(rows, 'row repeats a record', 'rows repeat records')} of this source: "
                f"sink {sink} fills the same table and branch from it, which table.shared_with "
                "does not name",
            )


class SkippedCheck(NamedTuple):
    """What is wrong with the counts of records that gave no row, and what cannot be proven."""

    findings: list[Finding]
    unproven: list[str]


def check_skipped_and_quarantined(history: History, settings: SinkSettings) -> SkippedCheck:
    """Check that the settings permit records that are neither a row nor quarantined."""
    findings, unproven = [], []
    by_query = sum(
        each.record.skipped for each in history.commits if is_record_of_query(each.record)
    )
    skipped = sum(commit.record.skipped for commit in history.commits) - by_query
    if by_query:  # QUERY-15
        unproven.append(
            f"{count_of(by_query, 'offset')} gave no row: a Spark query decides what becomes one"
        )
    if skipped and not settings.bad_record_limits.may_skip:
        evidence = (
            f"{count_of(skipped, 'record was', 'records were')} skipped, which no setting of this "
            "sink lets happen"
        )
        findings.append(Finding("skipped", evidence))
    elif skipped:
        by = [name for name, is_set in _settings_that_may_leave_out_records(settings) if is_set]
        why = f" ({' or '.join(by)} may have left them out)" if by else ""
        unproven.append(
            f"{count_of(skipped, 'record was', 'records were')} skipped{why}: nothing tells which"
        )
    kept = sum(commit.record.quarantined for commit in history.commits)
    if kept and not settings.quarantine.keeps_rejected_records:
        evidence = (
            f"{count_of(kept, 'record was', 'records were')} quarantined, but this sink has no "
            "quarantine"
        )
        findings.append(Finding("quarantined", evidence))
    return SkippedCheck(findings, unproven)


def _settings_that_may_leave_out_records(settings: SinkSettings) -> Iterator[tuple[str, bool]]:
    """Yield what may leave records out, and whether it is set."""
    yield "shape.where", bool(settings.shape.where)
    yield "maintenance.rows_late", bool(settings.maintenance.column_for_skipping_late_rows)


def describe_totals(whole: WholeTable) -> str:
    """Return the sum in words."""
    more = ", ".join(f"{rows:,} by {cause}" for cause, rows in sorted(whole.surplus.items()))
    surplus = f", {whole.rows - whole.distinct:,} more than records: {more}" if more else ""
    return (
        f"{count_of(whole.rows, 'row')} of {count_of(whole.distinct, 'different record')}{surplus}"
    )
