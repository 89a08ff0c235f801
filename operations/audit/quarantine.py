"""Audits the quarantine like the table: its commits, its files, and each record there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.table_history import History, TableReader
from headgate.data_plane.quarantine.read_diverted_records import MEANT_FOR, offsets_by_columns
from headgate.data_plane.quarantine.rejected_records import ROUTE, TABLE
from headgate.data_plane.routing.table_resolution import NO_ROUTE
from headgate.operations.access.tables import names_of_primary_and_quarantine
from headgate.operations.audit.files import OnProgress, find_files_of_other_sinks
from headgate.operations.audit.report import Finding, conclude_unreadable
from headgate.operations.audit.source_compare import (
    EVERYTHING,
    difference_findings,
    offsets_between,
)
from headgate.operations.audit.table_checks import (
    AuditedTable,
    FileRemovedMeanwhile,
    Role,
    check_and_count_pending_rows,
    find_late_deliveries,
    open_audited_table,
)
from headgate.operations.audit.table_records import (
    SeenOffsets,
    TableRecords,
    scan_records,
)
from headgate.runtime.sink_tables import SinkTables, TableAtRest

COLUMNS = ("topic", "partition", "offset")


@dataclass(slots=True)
class QuarantineEvidence:
    """What the quarantine shows. ``rows``: live ones of this sink; ``pending``: those to come.

    ``came``: what expired, and is there all the same. ``refused``: records that became no rows
    though a route names a table for them, by that table (empty: its name was not noted).
    ``unread``: why its rows cannot be read here; then nothing is known of its records.
    ``overtaken``: files were removed in order while it was read.
    """

    history: History
    rows: int = 0
    came: frozenset[PendingCommit] = frozenset()
    refused: dict[str, dict[TopicPartition, BitMap64]] = field(default_factory=dict)
    records: TableRecords = field(default_factory=TableRecords)
    pending: TableRecords = field(default_factory=TableRecords)
    remarks: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unread: str = ""
    overtaken: bool = False

    def offsets_below(self, at: TopicPartition, end: int) -> BitMap64:
        """Return the partition's offsets below the table's; more may wait there (rule
        QUARANTINE-3).

        Rows that are pending for the quarantine count: the table has decided them (rule PENDING-3).
        """
        there, pending = (
            records.partitions.get(at, SeenOffsets()).offsets
            for records in (self.records, self.pending)
        )
        return offsets_between(there | pending, 0, end)


def check_quarantine(
    tables: SinkTables,
    primary: History,
    on_progress: OnProgress,
    recreated_topics: Collection[str],
) -> QuarantineEvidence:
    """Examine the quarantine. ``primary`` is what the sink's own table says.

    ``recreated_topics``: those that may have been, so that an offset may mean two records.

    Raises what loading a table raises.
    """
    assert primary.current_record is not None, "asked only of a sink that has committed"
    settings, uuid = tables.settings, primary.uuid
    with tables.open_for_reading(settings.quarantine.table) as at_rest:
        table = open_audited_table(at_rest.reader, Role.QUARANTINE)
        try:
            evidence = _examine_quarantine(
                table, at_rest, primary, on_progress, routed=bool(settings.tables)
            )
        except FileNotFoundError as error:
            if not at_rest.reader.has_table_changed():
                raise
            raise FileRemovedMeanwhile(f"of the quarantine: {error}") from error
        evidence.overtaken = table.drop_findings_of_files_removed_since(tables.open_for_reading)
        seen = evidence.records.partitions.items()
        comparable = {at: some for at, some in seen if at.topic not in recreated_topics}
        table.findings += _check_offsets(table.history, comparable)
    own = table.history.uuid
    evidence.remarks += [*table.remarks, *_describe_former_quarantines(primary, own)]
    evidence.findings = table.findings_with_prefix(f"quarantine {table.history.table}: ")
    former = {
        d.table for d in primary.current_record.expired if d.secondary != own
    } - names_of_primary_and_quarantine(tables)
    for name in sorted(former - primary.filled.keys()):
        try:
            with tables.open_for_reading(name) as former_table:
                evidence.came |= find_late_deliveries(
                    former_table, primary.current_record.expired, uuid, COLUMNS
                )
        except HeadgateError:
            continue  # nothing tells, so what expired stays a finding
    return evidence


def _examine_quarantine(
    table: AuditedTable,
    at_rest: TableAtRest,
    primary: History,
    on_progress: OnProgress,
    *,
    routed: bool,
) -> QuarantineEvidence:
    record, history = primary.current_record, table.history
    assert record is not None, "asked only of a sink that has committed"
    table.examine_commits_and_files(on_progress)
    evidence = QuarantineEvidence(history)
    if history.head is not None:
        left_out = (
            table.damaged | find_files_of_other_sinks(table.files, history, record.sink).keys()
        )
        try:
            evidence.records = scan_records(
                table.reader, COLUMNS, left_out, on_progress=on_progress
            )
            if routed:
                evidence.refused = _find_records_refused_by_tables(table.reader, left_out)
        except (ValueError, NotImplementedError) as error:  # a column that people renamed
            table.findings += conclude_unreadable(error, "").findings
            evidence.unread, evidence.records = str(error), TableRecords()
    evidence.came = find_late_deliveries(at_rest, record.expired, primary.uuid, COLUMNS)
    columns = None if evidence.unread else COLUMNS
    check_and_count_pending_rows(table, at_rest, primary, columns=columns, into=evidence.pending)
    evidence.rows = sum(len(seen.offsets) for seen in evidence.records.partitions.values())
    return evidence


def _find_records_refused_by_tables(
    quarantine: TableReader, left_out: Collection[str]
) -> dict[str, dict[TopicPartition, BitMap64]]:
    """Return the records for which a route names a table that did not take them (SUSPEND-1,
    ROUTE-2)."""
    refused: dict[str, dict[TopicPartition, BitMap64]] = {}
    columns = (*COLUMNS, "error_class", "message", MEANT_FOR)
    present = [name for name in columns if name in quarantine.columns()]
    if "error_class" not in present:
        return refused
    groups = [name for name in ("topic", "partition", MEANT_FOR) if name in present]
    _, files = quarantine.scan(present)
    for batch in (b for file in files if file.path not in left_out for b in file.batches()):
        wanted = pc.is_in(batch["error_class"], value_set=pa.array((ROUTE, TABLE)))
        wanted = pc.and_(wanted, pc.is_valid(batch["offset"]))
        if "message" in present:
            unmatched = pc.starts_with(batch["message"], NO_ROUTE)
            wanted = pc.and_not(wanted, pc.fill_null(unmatched, fill_value=False))
        for row, offsets in offsets_by_columns(batch.filter(wanted), groups):
            records = refused.setdefault(row.get(MEANT_FOR) or "", {})
            at = TopicPartition(row["topic"], row["partition"])
            records.setdefault(at, BitMap64()).update(offsets)
    return refused


def _describe_former_quarantines(primary: History, uuid: str) -> Iterator[str]:
    """Name the former quarantines that took bad records before the one with this UUID
    (QUARANTINE-1)."""
    kept: Counter[str] = Counter()
    for commit in primary.commits:
        secondaries = commit.record.secondaries
        if commit.record.quarantined and secondaries and uuid not in secondaries.values():
            name, theirs = next(iter(secondaries.items()))
            kept[f"{name} with UUID {theirs}"] += commit.record.quarantined
    for former, records in kept.items():
        yield (
            f"{count_of(records, 'record was', 'records were')} quarantined in {former}, which is "
            "not the quarantine any more: only those count that somebody has copied from there"
        )


def _check_offsets(
    history: History, partitions: Mapping[TopicPartition, SeenOffsets]
) -> Iterator[Finding]:
    stored = history.current_record.offsets if history.current_record else {}
    for at, seen in sorted(partitions.items()):
        if seen.twice:
            places = "; ".join(f"offset {offset} again in {path}" for offset, path in seen.examples)
            yield Finding("record-twice", f"{at}: {count_of(seen.twice, 'row')} too many: {places}")
        end = stored.get(at, 0)
        beyond = offsets_between(seen.offsets, end, EVERYTHING)
        yield from difference_findings(
            "record-beyond", f"{at}: at or beyond its offset {end}", beyond
        )
