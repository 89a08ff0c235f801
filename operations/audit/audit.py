"""Checks that every record of the source is in the table exactly once. Read-only.

From the table alone it checks the order of the sink's commits (``table_checks``), their files
(``files``) and, with coordinate columns, each record (``table_records``); if the source answers,
also against its records (``source_compare``). The report says what cannot be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from pyroaring import BitMap64

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_format_registry import describe_weaker_guarantee
from headgate.control_protocol.commit_record import REPLAY, REREAD, CommitRecord, PendingCommit
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    RetryLater,
    TableChanged,
    TableMissing,
)
from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition, TransactionId
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.spark_batch_decision import is_record_of_query, without_query_offset
from headgate.control_protocol.table_format import LoadedReader
from headgate.control_protocol.table_history import History, LiveFile
from headgate.coordinator.settings import OffsetPolicy, RollbackPolicy
from headgate.data_plane.quarantine.read_diverted_records import DivertedRecords
from headgate.operations.access.kafka_connection import (
    find_offsets_with_records,
    open_reachable_source_topics,
    which_topics_are_compacted,
)
from headgate.operations.access.tables import (
    open_every_routed_table,
    open_tables_for_audit,
    routed_tables_in_ledger,
)
from headgate.operations.audit.expired_rows import ExpiredRecords
from headgate.operations.audit.files import (
    OnProgress,
    check_row_count,
    count_files_of_unknown_sinks,
    find_files_of_other_sinks,
    find_unattributed_offsets_by_file,
    live_row_count,
)
from headgate.operations.audit.keyed_tables import (
    KeyedTables,
    describe_unfinished_rewinds,
    find_offsets_of_earlier_table,
)
from headgate.operations.audit.quarantine import QuarantineEvidence, check_quarantine
from headgate.operations.audit.report import (
    AuditReport,
    Finding,
    PartitionAudit,
    conclude_unreadable,
)
from headgate.operations.audit.source_compare import (
    BEFORE,
    EXPIRED,
    SourceEvidence,
    SourceOffsets,
    WholeTable,
    check_commits_and_count_compared,
    check_rows_of_undeclared_sinks,
    check_skipped_and_quarantined,
    compare_partition,
    count_rows_of_all_sinks,
    count_stateful_query_commits,
    describe_totals,
    find_comparable_ranges_and_unproven,
    find_lowest_read_offsets,
    find_missing_records,
    find_offsets_rewound_by_operator,
    find_offsets_skipped_by_moves,
    find_sink_start_offsets,
    topics_of_other_sinks,
)
from headgate.operations.audit.table_checks import (
    Columns,
    FileRemovedMeanwhile,
    OffsetMove,
    Role,
    check_and_count_pending_rows,
    expired_finding,
    find_late_deliveries,
    find_offset_moves,
    find_recreated_topics,
    find_topics_of_unknown_identity,
    open_audited_table,
)
from headgate.operations.audit.table_records import (
    SeenOffsets,
    TableRecords,
    bitmap_of_ranges,
    scan_records,
)
from headgate.operations.status.held_partitions import (
    HeldPartition,
    describe_held_partitions,
    find_held_partitions_of_unchanged_topics,
)
from headgate.operations.status.returned_connector import (
    describe_commits_since_takeover,
    fenced_connector_of,
)
from headgate.runtime.sink_tables import SinkTables, TableAtRest, translate_table_error

_TRIES = 3


def _ignore_progress(*_: object) -> None: ...


def audit(
    settings: SinkSettings, *, with_source: bool = True, on_progress: OnProgress = _ignore_progress
) -> AuditReport:
    """Examine the sink.

    Without ``with_source`` the brokers are not asked; if they do not answer, the audit uses the
    table alone and says so. Raises ``RetryLater`` if the table or its storage cannot be reached
    or files are removed under each try, and what ``open_tables_for_audit`` raises if it is gone.
    """
    for tries_left in reversed(range(_TRIES)):
        with open_tables_for_audit(settings, asks_group=with_source) as tables:
            report, missing, overtaken = None, None, False
            try:
                under_way = SinkAudit(tables, on_progress)
                under_way.examine_primary()
                under_way.examine_records(with_source=with_source)
                report, overtaken = under_way.to_report(), under_way.overtaken
            except FileNotFoundError as error:
                missing, overtaken = error, isinstance(error, FileRemovedMeanwhile)
            except OSError as error:  # a storage that fails says nothing of the table
                what = f"the rows of {settings.table.identifier} or of its quarantine"
                raise translate_table_error(error, f"{what} cannot be read") from error
            # The fault may only have been expired or compacted away during the audit: look again.
            if report and not (report.findings or overtaken):
                return report
            moved = overtaken or tables.reader.has_table_changed()
            if tries_left and moved:
                continue
            if report:
                return report
            if moved:
                raise RetryLater(
                    f"files were removed under each of {_TRIES} tries: {missing}",
                    "audit when less is compacted or expired",
                ) from missing
            raise TableChanged(
                f"{settings.table.identifier} refers to a metadata file that is missing: {missing}",
                "somebody deleted it; restore it, or roll the table back with its owner",
            ) from missing
    raise AssertionError("the last try returns or raises")


def _source_records_are(number: int) -> str:
    return count_of(number, "record of the source is", "records of the source are")


def _lost_beyond_row_expiry_finding(surplus: int, expired: int) -> Finding:
    text = f"{surplus} more old records have no row than the {expired} rows that have expired"
    return Finding("record-lost", text)


class _Received(NamedTuple):
    """The rows that a secondary table received or that are pending for it."""

    rows: int
    is_complete: bool
    """Whether no commit has expired from its history, or was decided after the ledger was read."""


class _ExpiryGap(NamedTuple):
    """What expired rows do not explain (EXPIRY-3), and how many more they may explain, and why."""

    surplus: int
    untold_max: int
    why: str


class _PlaceColumns(NamedTuple):
    """The columns that identify a row's record, and the topic if no column holds it."""

    columns: tuple[str, str, str] | None
    topic: str


class SinkAudit:
    """One audit under way, which gathers evidence step by step.

    The rows of a sink of many tables are those of all tables together.
    """

    def __init__(self, tables: SinkTables, on_progress: OnProgress) -> None:
        settings, reader = tables.settings, tables.reader
        self._tables = tables
        self._settings = settings
        self._reader = reader
        self._on_progress = on_progress
        self._many = bool(settings.tables)
        self._primary = open_audited_table(reader, Role.LEDGER if self._many else Role.PRIMARY)
        self._history: History = self._primary.history
        self._files: list[LiveFile] = self._primary.files
        self._allowed: list[OffsetMove] = []
        self.overtaken = False
        """Whether a table moved on, so that what was read of it does not fit the rest."""
        self._ends_decided_since: dict[TopicPartition, int] = {}  # delivered since the ledger's
        self._newest_decided: TransactionId | None = None  # as the ledger said when asked again
        self._renewed = find_recreated_topics(self._history)
        self._untold = find_topics_of_unknown_identity(self._history) - self._renewed
        self._findings: list[Finding] = []
        self._proven: list[str] = []
        self._unproven: list[str] = []
        self._expired: list[str] = []  # unproven only if records could not be compared
        self._remarks: list[str] = list(filter(None, [describe_weaker_guarantee(settings)]))
        self._whole: WholeTable | None = None
        self._partitions: list[PartitionAudit] = []
        self._quarantine: QuarantineEvidence | None = None
        self._held: tuple[HeldPartition, ...] = ()
        self._deleted_rows = 0
        self._unlisted = 0  # of those that people deleted, rows whose records nothing tells
        self._deleted: dict[TopicPartition, BitMap64] = {}
        self._removed = 0  # rows that others took away
        self._begins: Mapping[TopicPartition, int] = {}  # below them, rows are not the sink's
        self._nameless_rows = 0  # rows, maybe the sink's, that do not say of which record they are
        self._floors: dict[TopicPartition, int] = {}  # below them, snapshots of others have expired
        self._note_deleted_rows(self._history)
        self._secondaries: set[str] = set()  # the UUIDs of tables that were examined
        self._free_rows = count_stateful_query_commits(self._history)
        self._mixed = False  # some files hold rows of nobody knows which sink
        self._found_deleted = 0  # records that are missing because people deleted their rows
        self._absent: dict[TopicPartition, BitMap64] = {}  # that the source holds, and nobody else
        self._harmless = 0  # skipped records that could not have become rows anyway
        self._aged: ExpiredRecords | None = None
        self._keyed = KeyedTables(settings, on_progress)
        self._compacted: Mapping[str, bool | None] = {}
        self._may_have_lost: dict[str, bool] = {}  # topics, as far as they were asked about
        self._put_again: Mapping[TopicPartition, BitMap64] = {}
        """Offsets of the quarantine's records that were given back to their tables (SUSPEND-6)."""
        self._reread: dict[str, TransactionId] = {}  # by UUID, up to which expired rows were
        self._came: frozenset[PendingCommit] = frozenset()  # expired, and received all the same
        self._out_of_sight = 0  # rows decided for tables that are gone or may not be read
        self._unread: dict[str, HeadgateError] = {}  # the other tables are examined all the same
        self._unread_quarantine = ""  # why nobody knows which records are there

    def examine_primary(self) -> None:
        primary = self._primary
        primary.examine_commits_and_files(self._on_progress)
        self.overtaken |= primary.drop_findings_of_files_removed_since(
            self._tables.open_for_reading
        )
        self._findings += primary.findings
        connector = fenced_connector_of(self._reader)
        if beside := describe_commits_since_takeover(connector) if connector else "":
            self._findings.append(Finding("connector-beside", beside))
        self._examine_offset_moves()
        self._conclude_commit_order()
        if self._many:
            return
        if not self._settings.replaces_primary_rows:
            self._examine_row_count()
        self._proven.append(
            f"{count_of(len(self._files), 'live file')}: each there, once, of the right size"
        )
        if self._keyed.is_single_keyed_table:
            self._keyed.register_and_examine_table(primary)
            self._add_keyed_conclusions()

    def _has_ledger_decided_since(self, delivered: CommitRecord | None) -> bool:
        """Return whether a delivery is of a transaction that the ledger decided after it was read.

        One that it does not name now either was never decided, or the ledger went back.
        """
        known = self._history.current_record
        if not known or not delivered or delivered.primary != self._history.uuid:
            return False
        if delivered.transaction <= known.transaction:
            return False
        if self._newest_decided is None or delivered.transaction > self._newest_decided:
            with self._tables.open_for_reading(self._tables.name) as now:
                newest = now.reader.view().record
            if newest is None:
                return False
            self._newest_decided = newest.transaction
        return delivered.transaction <= self._newest_decided

    def _note_deleted_rows(self, history: History) -> None:
        """Note what was deleted from one of the sink's tables, or from its quarantine."""
        self._removed += history.foreign_removed_row_count
        for at, floor in history.offsets_with_full_history_above.items():
            self._floors[at] = max(floor, self._floors.get(at, 0))
        deleted = history.deleted
        self._deleted_rows += deleted.rows
        self._unlisted += deleted.unidentified_row_count
        topic_ids = self._history.current_record.topic_ids if self._history.current_record else {}
        for at, ranges in deleted.ranges_of_topics(topic_ids).items():
            self._deleted[at] = self._deleted.get(at, BitMap64()) | bitmap_of_ranges(ranges)

    def _conclude_commit_order(self) -> None:
        if self._history.tag is not None and self._history.tag_on_branch is None:
            self._unproven.append(
                f"whether {self._history.branch} still holds what is under the sink's tag: others "
                "have committed since, and what would tell has expired (HG-204)"
            )
        if not self._history.complete:
            self._expired.append("older snapshots have expired: their commits cannot be examined")
        if commits := self._history.commits:
            back = "" if any(move.end < move.begin for move in self._allowed) else ", offsets"
            self._proven.append(
                f"{count_of(len(commits), 'commit')} in order: epochs{back} never fall"
            )

    def _examine_offset_moves(self) -> None:
        policies = self._settings.coordinator
        allowed = (
            policies.on_rollback is RollbackPolicy.KEEP_OFFSETS
            or policies.on_offset_out_of_range is not OffsetPolicy.FAIL
        )
        for move in find_offset_moves(self._history):
            if allowed or move.by_operator:
                why = "" if move.by_operator else ", as a policy of this sink allows"
                self._unproven.append(f"{move}{why}")
                self._allowed.append(move)
            else:
                self._findings.append(
                    Finding("gap", f"{move}, which no policy of this sink allows")
                )

    def _examine_row_count(self) -> None:
        findings, expired = check_row_count(self._history, self._files)
        self._findings += findings
        self._expired += expired

    @property
    def _quarantine_if_read(self) -> QuarantineEvidence | None:
        return None if self._unread_quarantine else self._quarantine

    # ----------------------------------------------------------------- each record, and the source

    def examine_records(self, *, with_source: bool) -> None:
        record, settings = self._history.current_record, self._settings
        if record is None:
            self._unproven.append("the sink has not committed anything yet")
            return
        began = find_sink_start_offsets(
            self._history, from_earliest=self._settings.source.start_at == "earliest"
        )
        ends = without_query_offset(record.offsets)  # QUERY-15
        spans = {at: (began.get(at), end) for at, end in sorted(ends.items())}
        self._begins = find_lowest_read_offsets(self._history, began)
        seen = self._scan_secondaries(record) if self._many else self._scan_primary()
        if settings.quarantine.keeps_rejected_records:
            quarantine = check_quarantine(
                self._tables, self._history, self._on_progress, self._renewed | self._untold
            )
            self._quarantine, self._findings = quarantine, [*self._findings, *quarantine.findings]
            self._unread_quarantine = self._unread_quarantine or quarantine.unread
            self.overtaken |= quarantine.overtaken
            self._remarks += quarantine.remarks
            self._note_deleted_rows(quarantine.history)
        if self._unread_quarantine:
            self._unproven.append(
                f"the quarantine cannot be read here: {self._unread_quarantine}: which records are "
                "there instead of in a table is unknown"
            )
        self._report_expired_pending_commits(record)
        for topic in sorted(self._renewed):
            self._unproven.append(
                f"{topic}: re-created while this sink filled the table, so offsets mean two "
                "records; only the commits' counts are compared"
            )
        if self._untold:
            self._unproven.append(
                f"{', '.join(sorted(self._untold))}: whether re-created while this sink filled the "
                "table has expired with its older snapshots, and an older release did not note it: "
                "an offset may mean two records"
            )
        self._unproven += [] if with_source else ["the source was not asked"]
        source = (
            self._read_and_replay_source(record, spans, seen) if with_source else SourceEvidence()
        )
        self._held = find_held_partitions_of_unchanged_topics(settings, record, source.topics)
        if not self._many:  # rows of a sink's one table expire (EXPIRY-1)
            self._aged = ExpiredRecords(settings, self._reader, self._history, record.topic_ids)
        lost, readable = list[Finding](), self._quarantine_if_read
        for at, span in spans.items():
            is_comparable = seen is not None and at.topic not in self._renewed
            in_table = seen.partitions.get(at, SeenOffsets()) if seen and is_comparable else None
            if in_table and at in self._ends_decided_since:
                since = OffsetRange(span[1], max(span[1], self._ends_decided_since[at]))
                in_table = replace(in_table, offsets=in_table.offsets - bitmap_of_ranges([since]))
            quarantined = (
                readable.offsets_below(at, span[1]) if readable and is_comparable else None
            )
            witness = source.witnesses.get(at)
            if witness is not None and self._unread_quarantine:
                witness = replace(witness, offsets=None)
            partition, new = self._compare_partition(
                at, span, witness, in_table, quarantined=quarantined
            )
            self._partitions.append(partition)
            lost += [finding for finding in new if finding.what == "record-lost"]
            self._note_findings_of_partition(at, new)
        self._conclude_missing_and_keyed_records(lost)
        self._conclude_skipped_records()
        self._compare_commit_counts(source)
        self._count_rows_of_all_sinks(record, seen)
        self._add_final_conclusions(seen)

    def _note_findings_of_partition(self, at: TopicPartition, new: Sequence[Finding]) -> None:
        """Note all but lost records, which are explained together."""
        explicable = {"record-twice"} if self._mixed or self._free_rows else set[str]()
        if at.topic in self._untold:  # all of these may be rows of an earlier topic of that name
            explicable = {"record-twice", "record-beyond", "record-invented"}
        for finding in new:
            if finding.what in explicable:
                self._unproven.append(finding.evidence)
            elif finding.what == "record-invented" and self._may_be_compacted(at.topic):
                self._unproven.append(f"{finding.evidence}: the topic may be compacted")
            elif finding.what != "record-lost":
                self._findings.append(finding)

    def _may_be_compacted(self, topic: str) -> bool:
        """Return whether Kafka may have removed records of the topic, or does not say."""
        if topic not in self._may_have_lost:
            try:
                known = which_topics_are_compacted(self._settings.kafka, [topic])[topic]
            except HeadgateError:
                known = None
            self._may_have_lost[topic] = known is not False
        return self._may_have_lost[topic]

    def _report_expired_pending_commits(self, record: CommitRecord) -> None:
        """PENDING-8: whether a table that is gone had received what expired is unknown."""
        known = self._secondaries | {self._quarantine.history.uuid if self._quarantine else ""}
        for pending_commit in self._find_expired_undelivered(record):
            finding = expired_finding(pending_commit)
            if pending_commit.secondary in known:
                self._findings.append(finding)
            else:
                gone = (
                    f"that table (UUID {pending_commit.secondary}) is gone, and may have "
                    "received them"
                )
                self._unproven.append(f"{finding.evidence}: {gone}")

    def _find_expired_undelivered(self, record: CommitRecord) -> Sequence[PendingCommit]:
        """PENDING-8: return what was pending for secondary tables, and which they have not received
        since.

        SUSPEND-6: a table's record also says which of it was written again.
        """
        came = self._came | (self._quarantine.came if self._quarantine else frozenset())
        return [
            each
            for each in record.expired
            if each not in came
            and not self._keyed.is_of_earlier_table(each)
            and (
                each.secondary not in self._reread
                or each.transaction > self._reread[each.secondary]
            )
        ]

    def _record_columns(self) -> _PlaceColumns:
        """Return the columns that identify a row's record, or the topic if no column holds it."""
        places = self._settings.table.record_columns
        if self._keyed.is_single_keyed_table:
            columns = (places.topic, places.partition, places.offset)
            return _PlaceColumns(columns, self._settings.source.topics[0])
        return _PlaceColumns(places.coordinate_columns, "")

    def _scan_primary(self) -> TableRecords | None:
        if self._keyed.is_single_keyed_table:
            self._keyed.examine_keys(self._primary)
            self._add_keyed_conclusions()
            if self._primary.damaged:
                return None
        columns, topic = self._record_columns()
        if columns is None:
            self._unproven.append(
                "table.record_columns does not name topic, partition and offset: only counts can "
                "be compared, not single records"
            )
            return None
        absent = [name for name in columns if name and name not in self._reader.columns()]
        if absent or self._history.head is None:
            self._unproven.append(f"the table has no column {', '.join(absent) or 'filled yet'}")
            return None
        try:
            seen = scan_records(
                self._reader,
                columns,
                self._primary.damaged,
                into=TableRecords(
                    rewound=find_offsets_rewound_by_operator(self._allowed), begins=self._begins
                ),
                on_progress=self._on_progress,
                sinks_of_foreign_files=find_files_of_other_sinks(
                    self._files, self._history, self._settings.name
                ),
                only_topic=topic,
                unattributed_below=find_unattributed_offsets_by_file(
                    self._files, self._history, self._settings.name
                ),
            )
        except (ValueError, NotImplementedError) as error:  # equality deletes, for example
            unread = conclude_unreadable(error, "the rows cannot be read here")
            self._findings += unread.findings
            self._unproven += unread.unproven
            return None
        self._report_files_of_unknown_sinks()
        if is_comparable := sum(partition.requested for partition in seen.partitions.values()):
            self._unproven.append(
                f"{count_of(is_comparable, 'row')} came again because offsets were set back"
            )
        self._note_rows_without_coordinates(seen.foreign_rows, self._history)
        return seen

    def _note_rows_without_coordinates(
        self, rows: int, history: History, *, prefix: str = ""
    ) -> None:
        """Tell of rows that say no record: as many missing records may be those."""
        theirs = min(rows, sum(f.added_records for f in history.foreign if f.sink is None))
        if rows == theirs:
            text = (
                f"{prefix}{count_of(rows, 'row of others carries', 'rows of others carry')} no "
                "coordinates"
            )
            self._remarks += [text] if rows else []
            return
        of_others = f", at most {theirs} of them of others" if theirs else ""
        self._unproven.append(
            f"{prefix}{count_of(rows, 'row carries', 'rows carry')} no coordinates{of_others}"
        )
        self._nameless_rows += rows - theirs

    def _scan_secondaries(self, record: CommitRecord) -> TableRecords | None:
        """Examine every table that the ledger has filled."""
        seen = TableRecords(
            rewound=find_offsets_rewound_by_operator(self._allowed), begins=self._begins
        )
        columns = self._settings.tables.record_columns.coordinate_columns
        if columns is None:
            self._unproven.append(
                "tables.record_columns does not name topic, partition and offset: only counts can "
                "be compared, not single records"
            )
        with open_every_routed_table(self._tables, self._history) as tables:
            self._unread = dict(tables.unread)
            self._examine_secondaries(tables.tables, columns, seen, record)
        return seen if columns else None

    def _examine_secondaries(
        self,
        tables: Mapping[str, TableAtRest],
        columns: Columns | None,
        seen: TableRecords,
        record: CommitRecord,
    ) -> None:
        self._report_suspended_tables(record)
        rows, complete = 0, self._history.complete
        for name, table in tables.items():
            received, whole = self._examine_secondary_or_report(name, table, columns, seen)
            rows, complete = rows + received, complete and whole
        tables = {name: table for name, table in tables.items() if name not in self._unread}
        # A table that no retained commit decides for was filled by one that has expired.
        absent = sorted(
            {*routed_tables_in_ledger(self._tables, self._history), *self._unread} - tables.keys()
        )
        self._unproven += [str(error) for error in self._unread.values()]
        complete = complete and not self._find_expired_undelivered(record)
        self._put_again = self._find_records_replayed_from_quarantine(tables)
        self._proven.append(
            f"{count_of(len(self._files), 'live file')} of {count_of(len(tables), 'table')}: each "
            "of the right size"
        )
        decided = sum(commit.record.records for commit in self._history.commits)
        self._out_of_sight = max(0, decided - rows) if absent else 0
        if absent:
            text = (
                f"{', '.join(absent)} cannot be examined: not there, or not to be read; "
                f"{self._out_of_sight} rows that the ledger decided are in none of the others"
            )
            older = "" if self._history.complete else "; what it decided before has expired"
            self._unproven.append(f"{text}{older}")
        elif recreated := sorted(self._keyed.earlier):
            self._unproven.append(
                f"{', '.join(recreated)}: re-created, and what had been decided for the table "
                "before is not there: rows are not counted"
            )
        elif complete and decided != rows:
            self._findings.append(
                Finding(
                    "row-count",
                    f"the ledger decided {count_of(decided, 'row')}; {rows} were received by its "
                    "tables or are pending",
                )
            )

    def _report_suspended_tables(self, record: CommitRecord) -> None:
        """SUSPEND-1: report suspended tables; that a table takes nothing is not a fault of the
        sink."""
        for suspended in record.suspended:
            self._remarks.append(f"{suspended.table} is suspended: {suspended.why}")

    def _examine_secondary_or_report(
        self, name: str, table: TableAtRest, columns: Columns | None, seen: TableRecords
    ) -> _Received:
        """Return the rows it received or that are pending for it, and whether nothing has expired.

        Nothing for a table that does not answer.
        """
        try:
            return self._examine_secondary(table, columns, seen)
        except Exception as error:
            if isinstance(error, FileNotFoundError) and table.reader.has_table_changed():
                raise FileRemovedMeanwhile(f"of table {name}: {error}") from error
            self._unread[name] = translate_table_error(error, f"table {name} cannot be read")
            return _Received(0, is_complete=False)

    def _examine_secondary(
        self, at_rest: TableAtRest, columns: Columns | None, seen: TableRecords
    ) -> _Received:
        table = open_audited_table(at_rest.reader, Role.SECONDARY)
        history, name = table.history, table.history.table
        table.examine_commits_and_files(self._on_progress)
        self.overtaken |= table.drop_findings_of_files_removed_since(self._tables.open_for_reading)
        self._files += table.files
        self._note_deleted_rows(history)
        if decided_since := self._has_ledger_decided_since(history.current_record):
            assert history.current_record is not None
            for at, end in history.current_record.offsets.items():
                self._ends_decided_since[at] = max(end, self._ends_decided_since.get(at, 0))
        self._secondaries.add(history.uuid)
        if self._keyed.is_keyed(name):
            self._keyed.register_and_examine_table(table)
            self._keyed.examine_keys(table)
            if decided_since:  # its rows are newer than any replay of what the ledger had decided
                self._keyed.tables[name].whole, self.overtaken = False, True
            columns = None
        if before := find_offsets_of_earlier_table(self._history, name, history.uuid):
            self._keyed.earlier[name] = before
        absent = [n for n in columns or () if n not in table.reader.columns()]
        if absent:
            self._unproven.append(f"{name} has no column {', '.join(absent)}")
            columns = None
        nameless, is_unknown = seen.foreign_rows, bool(absent)
        if columns and history.head is not None:
            try:
                scan_records(
                    table.reader,
                    columns,
                    table.damaged
                    | find_files_of_other_sinks(table.files, history, self._settings.name).keys(),
                    on_progress=self._on_progress,
                    into=seen,
                    unattributed_below=find_unattributed_offsets_by_file(
                        table.files, history, self._settings.name
                    ),
                )
            except (ValueError, NotImplementedError) as error:  # equality deletes, for example
                unread = conclude_unreadable(error, f"{name}: the rows cannot be read here")
                table.findings += unread.findings
                self._unproven += unread.unproven
                columns, is_unknown = None, True
        self._note_rows_without_coordinates(
            seen.foreign_rows - nameless, history, prefix=f"{name}: "
        )
        self._came |= self._find_and_remark_late_deliveries(at_rest)
        pending = check_and_count_pending_rows(
            table, at_rest, self._history, columns=columns, into=seen
        )
        if is_unknown:  # each row may be of any record
            self._nameless_rows += max(0, live_row_count(table.files)) + pending
        self._remarks += table.remarks
        self._findings += table.findings_with_prefix(f"{name}: ")
        delivered = [c.record for c in history.commits if c.record.primary == self._history.uuid]
        again = self._remark_and_count_quarantine_replays(name, delivered)
        if (
            history.current_record
            and history.current_record.replayed
            and history.current_record.replayed.expired
        ):
            self._reread[history.uuid] = history.current_record.replayed.expired
        rows = sum(record.records for record in delivered) - again + pending
        return _Received(rows, is_complete=history.complete and not decided_since)

    def _remark_and_count_quarantine_replays(
        self, name: str, delivered: Sequence[CommitRecord]
    ) -> int:
        """Tell of rows that commands wrote again; return how many came from the quarantine."""
        again = sum(record.records for record in delivered if record.command == REPLAY)
        if again:
            self._remarks.append(
                f"{name}: {count_of(again, 'record was', 'records were')} replayed from the "
                "quarantine"
            )
        if rewritten := sum(record.records for record in delivered if record.command == REREAD):
            self._remarks.append(
                f"{name}: "
                f"{count_of(rewritten, 'row that had expired was', 'rows that had expired were')} "
                "written again"
            )
        return again

    def _find_and_remark_late_deliveries(self, secondary: TableAtRest) -> frozenset[PendingCommit]:
        record = self._history.current_record
        columns = self._settings.tables.record_columns.coordinate_columns
        present = columns and all(name in secondary.reader.columns() for name in columns)
        pending_commits, primary = record.expired if record else (), self._history.uuid
        came = find_late_deliveries(
            secondary, pending_commits, primary, columns if present else None
        )
        if rows := sum(pending_commit.rows for pending_commit in came):
            name = secondary.reader.view().table
            self._remarks.append(f"{name}: {count_of(rows, 'row')} expired, and came after all")
        return came

    def _find_records_replayed_from_quarantine(
        self, tables: Mapping[str, TableAtRest]
    ) -> Mapping[TopicPartition, BitMap64]:
        replayed: dict[TopicPartition, BitMap64] = {}
        records = {name: table.reader.view().record for name, table in tables.items()}
        # Rows that were written again are no quarantine's: the sink may never have had one.
        marks = {
            name: record.replayed
            for name, record in records.items()
            if record and record.replayed and record.replayed.offsets
        }
        if not marks:
            return replayed
        try:
            with self._tables.open_for_reading(self._settings.quarantine.table) as at_rest:
                reader = cast("LoadedReader", at_rest.reader)  # replays are of tables in a catalog
                record = reader.view().record
        except TableMissing as error:
            self._unread_quarantine = error.message
            return {}
        if record is None:
            return replayed
        quarantine = DivertedRecords(
            reader.table, self._settings.name, self._settings.table.branch, record
        )
        for name, mark in marks.items():
            try:
                held = quarantine.offsets_for_table(name)
            except RetryLater:
                raise
            except HeadgateError as error:  # a column that people renamed
                self._unread_quarantine = error.message
                return {}
            left = quarantine.offsets_not_given_back(held, mark)
            for at, offsets in held.items():
                replayed[at] = replayed.get(at, BitMap64()) | (offsets - left.get(at, BitMap64()))
        return replayed

    def _report_files_of_unknown_sinks(self) -> None:
        """Where other sinks fill the table, a file that others rewrote may hold rows of each."""
        unknown = {
            SinkName(name): dict[str, TopicId]() for name in self._settings.table.shared_with
        }
        others = {**unknown, **self._history.others, **topics_of_other_sinks(self._history)}
        record = self._history.current_record
        read = set(record.topic_ids.items()) if record else set[tuple[str, TopicId]]()
        sharers = {sink for sink, topics in others.items() if not topics or read & topics.items()}
        own = self._settings.name
        if sharers and (files := count_files_of_unknown_sinks(self._files, self._history, own)):
            self._mixed = True
            self._unproven.append(
                f"{count_of(files, 'file is', 'files are')} of no sink's own folder, and their "
                f"snapshots do not tell whose rows they hold: those of {own}, or of "
                f"{', '.join(sorted(sharers))}"
            )

    def _count_rows_of_all_sinks(self, record: CommitRecord, seen: TableRecords | None) -> None:
        if seen is None or self._renewed:
            return
        others = {**self._history.others, **topics_of_other_sinks(self._history)}
        self._whole = whole = count_rows_of_all_sinks(seen, seen.others, record, others)
        self._findings += check_rows_of_undeclared_sinks(whole, self._settings.table.shared_with)
        adopted = any(c.record.is_claim and c.record.records for c in self._history.commits)
        if adopted and (rows := whole.surplus.get(BEFORE)):
            self._unproven.append(
                f"below where the sink began {count_of(rows, 'row is', 'rows are')} there again: "
                "by others, or by the claim that added their files"
            )
        if rows := whole.surplus.get(EXPIRED):
            self._unproven.append(
                f"{count_of(rows, 'row is', 'rows are')} there again, in files that lie in no "
                "sink's folder: whether they were so before the sink began has expired"
            )
        self._remarks.append(describe_totals(whole))

    def _read_and_replay_source(
        self,
        record: CommitRecord,
        spans: Mapping[TopicPartition, tuple[int | None, int]],
        seen: TableRecords | None,
    ) -> SourceEvidence:
        """Replay the topics of keyed tables, and compare the others record by record."""
        self._keyed.moved_past = find_offsets_skipped_by_moves(self._history, self._allowed)
        keyed_spans = {
            at: span for at, span in spans.items() if self._keyed.may_take_topic(at.topic)
        }
        others = {at: span for at, span in spans.items() if at not in keyed_spans}
        source = self._read_topics_of_unkeyed_tables(record, others, seen)
        if keyed_spans and source.topics:
            self._compare_keyed_tables(record, keyed_spans, seen, source)
        return source

    def _compare_keyed_tables(
        self,
        record: CommitRecord,
        keyed_spans: Mapping[TopicPartition, tuple[int | None, int]],
        seen: TableRecords | None,
        source: SourceEvidence,
    ) -> None:
        one = self._keyed.is_single_keyed_table
        ranges = self._find_ranges_noting_unproven(
            source, record, keyed_spans, seen if one else None
        )
        for at in keyed_spans if one else ranges:
            topic = source.topics.get(at.topic)
            if topic is not None and at.partition in topic.partitions:
                span = ranges.get(at)
                log = topic.partitions[at.partition]
                source.witnesses[at] = SourceOffsets(log, None, span.begin if span else 0)
        if not one:
            self._unproven += [
                f"{at}: {self._keyed.unproven_if_not_replayed}"
                for at, span in ranges.items()
                if span is None
            ]
        try:
            topics = {at.topic: source.topics[at.topic] for at in ranges}
            self._compacted = which_topics_are_compacted(self._settings.kafka, topics)
        except RetryLater as error:
            self._unproven.append(f"tables with a key were not compared: {error.message}")
            return
        left_out = dict(self._keyed.moved_past)
        for at in keyed_spans:
            quarantined = (
                self._quarantine.offsets_below(at, keyed_spans[at][1])
                if self._quarantine
                else BitMap64()
            )
            deleted = self._deleted.get(at, BitMap64())
            left_out[at] = left_out.get(at, BitMap64()) | quarantined | deleted
        known = {at: span for at, span in ranges.items() if span is not None}
        behind = describe_unfinished_rewinds(record, self._allowed)
        self._unproven += behind[:1]
        # A query decides what a row is: a replay would make others of its records (QUERY-15).
        by_query = any(is_record_of_query(commit.record) for commit in self._history.commits)
        untold = self._renewed or self._untold or behind or by_query or self._unread_quarantine
        if not (untold or (one and seen is None)):
            still = record.with_pending(
                record.pending_commits, tuple(self._find_expired_undelivered(record))
            )
            self._keyed.compare_with_replay(still, self._history.uuid, known, left_out)

    def _read_topics_of_unkeyed_tables(
        self,
        record: CommitRecord,
        spans: Mapping[TopicPartition, tuple[int | None, int]],
        seen: TableRecords | None,
    ) -> SourceEvidence:
        try:
            with open_reachable_source_topics(self._settings) as topics:
                source = SourceEvidence(topics.describe())
            ranges = self._find_ranges_noting_unproven(source, record, spans, seen)
            offsets = find_offsets_with_records(
                self._settings,
                {at: span for at, span in ranges.items() if span is not None},
                lambda records: self._on_progress("source records", records, 0),
            )
        except (RetryLater, ConfigurationError) as error:
            what = "asked" if self._keyed.is_single_keyed_table else "compared"
            self._unproven.append(f"the source was not {what}: {error.message}")
            return SourceEvidence()
        missing = find_offsets_skipped_by_moves(self._history, self._allowed)
        for at in ranges:
            log, span = source.topics[at.topic].partitions[at.partition], ranges[at]
            expected = offsets[at] - missing.get(at, BitMap64()) if at in offsets else None
            source.witnesses[at] = SourceOffsets(log, expected, span.begin if span else 0)
        return source

    def _find_ranges_noting_unproven(
        self,
        source: SourceEvidence,
        record: CommitRecord,
        spans: Mapping[TopicPartition, tuple[int | None, int]],
        seen: TableRecords | None,
    ) -> dict[TopicPartition, OffsetRange | None]:
        known = seen.partitions if seen else {}
        ranges, unproven = find_comparable_ranges_and_unproven(
            source.topics, record.topic_ids, spans, known
        )
        self._unproven += unproven
        return ranges

    def _conclude_missing_and_keyed_records(self, lost: list[Finding]) -> None:
        self._harmless = (
            self._keyed.explained_skip_count
        )  # the source shows that they are rows of no table
        self._explain_missing_records(lost)
        self._report_refused_records()
        self._keyed.conclude_replays(self._compacted, self._skipped_record_count)
        self._add_keyed_conclusions()
        self._partitions = [
            self._keyed.partition_with_replay_counts(partition) for partition in self._partitions
        ]

    def _add_keyed_conclusions(self) -> None:
        is_comparable = self._keyed.take_conclusions()
        self._findings += is_comparable.findings
        self._proven += is_comparable.proven
        self._unproven += is_comparable.unproven
        self._expired += is_comparable.expired

    def _explain_missing_records(self, lost: list[Finding]) -> None:
        """Explain missing records: some were deleted or skipped, but the table does not say which.

        What is missing below the oldest commit that is left is not known to be lost: what others
        deleted, and where a person moved offsets, has expired with it.
        """
        missing = sum(partition.lost or 0 for partition in self._partitions)
        surplus, expired, untold = self._compare_absent_with_expired()
        if missing and missing <= self._out_of_sight:  # nobody can say which rows those tables have
            self._unproven.append(f"{_source_records_are(missing)} in no table that is there")
            return
        if missing and self._free_rows:  # QUERY-15
            self._unproven.append(f"{_source_records_are(missing)} without a row of their own")
            return
        skipped = max(0, self._skipped_record_count - self._harmless)
        reasons = (
            ("others deleted", self._removed),
            ("persons deleted", self._unlisted),
            ("the sink skipped", skipped),
            ("rows that carry no coordinates:", self._nameless_rows),
        )
        why = [f"{who} {rows}" for who, rows in reasons if rows]
        why += [f"{count_of(expired, 'row')} expired{untold}"] if expired else []
        explained = self._removed + self._unlisted + skipped + expired + self._nameless_rows
        if surplus:
            lost = [*lost, _lost_beyond_row_expiry_finding(surplus, self._history.expired_rows)]
            missing += surplus
        old = sum(
            records.range_cardinality(0, self._floors.get(at, 0))
            for at, records in self._absent.items()
        )
        if old and missing - old <= explained:
            why.append(
                f"{old} of them lie below the oldest commit that is left: whether somebody deleted "
                "or passed over them has expired"
            )
        elif missing > explained:
            self._findings += lost
            text = f"{_source_records_are(missing)} absent, and {', '.join(why)}"
            self._remarks += [f"{text}: nothing tells which"] if why else []
            return
        if missing:
            text = f"{_source_records_are(missing)} absent, and {', '.join(why)}"
            self._unproven.append(text)

    def _compare_absent_with_expired(self) -> _ExpiryGap:
        """EXPIRY-3: return how many more absent records are old than rows have expired.

        Also how many expired rows may be those of absent records whose time is unknown, and why.
        """
        known, aged = self._history.expired_rows, self._aged
        if aged is None or not known:
            return _ExpiryGap(0, 0, "")
        left = max(0, known - aged.count)
        if not aged.can_tell_expired:
            return _ExpiryGap(0, left, f" ({aged.why_unknown})")
        untold = f" ({aged.unread} of the records cannot be read as rows any more)"
        return _ExpiryGap(max(0, aged.count - known), min(left, aged.unread), untold)

    def _report_refused_records(self) -> None:
        """Tell of records that a table did not take: a keyed one may have wrong rows for it."""
        for table, records in sorted(self._quarantine.refused.items() if self._quarantine else ()):
            left = {at: some - self._put_again.get(at, BitMap64()) for at, some in records.items()}
            changes = sum(
                len(some)
                for at, some in left.items()
                if (self._keyed.is_keyed(table) if table else self._keyed.may_take_topic(at.topic))
            )
            others = sum(map(len, left.values())) - changes
            name = table or "the tables that routes name for them"
            if changes:
                one, many = "record, a change of a key, is", "records, changes of keys, are"
                self._unproven.append(
                    f"{count_of(changes, one, many)} in the quarantine, since {name} did not take "
                    "them: rows may be missing, or be older than their last change"
                )
            if others:
                self._remarks.append(
                    f"{count_of(others, 'record is', 'records are')} in the quarantine, since "
                    f"{name} did not take them"
                )

    def _compare_partition(
        self,
        at: TopicPartition,
        span: tuple[int | None, int],
        witness: SourceOffsets | None,
        seen: SeenOffsets | None,
        *,
        quarantined: BitMap64 | None,
    ) -> tuple[PartitionAudit, list[Finding]]:
        again = self._put_again.get(at)
        if self._keyed.takes_all_of_topic(at.topic):  # whatever was put again is in the replay
            seen, again = seen if self._keyed.is_single_keyed_table else None, None
        elif witness is not None and self._keyed.may_take_topic(at.topic):
            witness = replace(witness, offsets=self._keyed.offsets_outside_keyed_tables(at))
        deleted, gone = (
            self._deleted.get(at, BitMap64()),
            find_missing_records(span, witness, seen, quarantined),
        )
        self._found_deleted += len(gone & deleted)
        self._absent[at] = gone - deleted
        if self._aged is not None:
            expired = self._aged.find_and_count_expired_among(at, self._absent[at])
            self._absent[at] -= expired
            deleted = deleted | expired
        return compare_partition(
            at, span, witness, seen, quarantined=quarantined, put_again=again, deleted=deleted
        )

    def _conclude_skipped_records(self) -> None:
        """What the source shows to be nothing for its tables is as it should be."""
        findings, unproven = check_skipped_and_quarantined(self._history, self._settings)
        self._findings += findings
        if self._free_rows:
            self._unproven.append(
                f"{count_of(self._free_rows, 'commit is', 'commits are')} of a stateful Spark "
                "query: what their rows are to the records is its own"
            )
        whole = (
            self._history.complete
            and self._skipped_record_count <= self._keyed.explained_skip_count
        )
        (self._remarks if whole else self._unproven).extend(unproven)

    @property
    def _skipped_record_count(self) -> int:
        return sum(commit.record.skipped for commit in self._history.commits)

    def _compare_commit_counts(self, source: SourceEvidence) -> None:
        topic_ids = {name: topic.topic_id for name, topic in source.topics.items()}
        witnesses: Mapping[TopicPartition, SourceOffsets] = source.witnesses
        verb, what = "hold", "as many rows as the source has records"
        if self._keyed.is_single_keyed_table:
            witnesses = self._keyed.source_offsets_of_replay(witnesses, self._compacted)
            verb, what = "count", "each record that the source has of them"
        findings, compared, unproven = check_commits_and_count_compared(
            self._history, witnesses, topic_ids, self._may_be_compacted
        )
        self._findings += findings
        self._unproven += unproven
        if compared:
            self._proven.append(
                f"{count_of(compared, f'commit {verb}s', f'commits {verb}')} {what}"
            )

    def _add_final_conclusions(self, seen: TableRecords | None) -> None:
        surplus = self._whole is not None and bool(self._whole.surplus)
        doubtful = self._renewed or self._untold or self._nameless_rows
        if seen is not None and not (doubtful or surplus):
            both = "in the table and its quarantine"
            where = both if self._quarantine_if_read else "in the table"
            beyond = "" if self._allowed else ", none beyond the stored offsets"
            self._proven.append(f"no record is {where} twice{beyond}")
        (self._remarks if self._prove_completeness() else self._unproven).extend(self._expired)
        self._expired = []

    def _prove_completeness(self) -> bool:
        """Return whether the table was proven to hold everything that the source holds."""
        if self._keyed.is_single_keyed_table:
            return not self._findings and self._keyed.proves_completeness(self._compacted)
        compared = [partition.lost == 0 for partition in self._partitions]
        if (
            self._keyed.unexamined_tables_with_records or self._untold
        ):  # no partition counts what that may hide as lost
            return False
        if compared and all(compared):
            forward = any(move.begin < move.end for move in self._allowed)
            but = ", except those that moved offsets skip" if forward else ""
            deleted = f", except {self._found_deleted} that people deleted"
            but += deleted * bool(self._found_deleted)
            expired = self._aged.count if self._aged else 0
            but += f", except {expired} whose rows have expired" * bool(expired)
            self._proven.append(
                f"every record that the source holds up to the stored offsets is there{but}"
            )
        return bool(compared) and all(compared)

    # --------------------------------------------------------------------------------- the verdict

    def to_report(self) -> AuditReport:
        history = self._history
        if self.overtaken:
            lost = [finding for finding in self._findings if finding.what == "record-lost"]
            self._findings = [finding for finding in self._findings if finding not in lost]
            self._unproven += [
                "tables moved on while they were read: some rows could not be compared",
                *(finding.evidence for finding in lost),
            ]
        return AuditReport(
            sink=self._settings.name,
            table=self._settings.table.identifier,
            uuid=history.uuid,
            branch=history.branch,
            snapshot_id=history.head,
            epochs=tuple(sorted({c.record.transaction.epoch for c in history.commits})),
            commits=sum(not commit.record.is_claim for commit in history.commits),
            claims=sum(commit.record.is_claim for commit in history.commits),
            committed_records=sum(commit.record.records for commit in history.commits),
            live_files=len(self._files),
            live_rows=live_row_count(self._files),
            rows=self._whole.rows if self._whole else None,
            distinct=self._whole.distinct if self._whole else None,
            surplus=self._whole.surplus if self._whole else {},
            quarantined_rows=self._quarantine_if_read.rows if self._quarantine_if_read else None,
            skipped_records=self._skipped_record_count,
            partitions=tuple(self._partitions),
            # What was disproved must not be listed as proven next to the finding.
            proven=() if self._findings or self.overtaken else tuple(self._proven),
            unproven=(*self._unproven, *self._expired),
            findings=tuple(self._findings),
            remarks=tuple(self._remarks),
            deleted_rows=self._deleted_rows,
            expired_rows=history.expired_rows,
            held=self._held,
            unread=tuple(sorted(self._unread)),
            waiting=tuple(
                describe_held_partitions(self._settings.changes, self._held, history.commits)
            ),
        )
