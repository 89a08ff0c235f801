"""Examines one table of an audit: its commits, its files, and what is pending for it.

The sink's own table, one that a ledger has filled and the quarantine are examined by the same
steps; their roles say what their commits must look like.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise

from headgate.control_protocol.commit_record import TAKEOVER, CommitRecord, PendingCommit
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import LogUnreadable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.spark_batch_decision import (
    QUERY_TOPIC,
    is_record_of_query,
    without_query_offset,
)
from headgate.control_protocol.table_format import SupportsKeyedAudit
from headgate.control_protocol.table_history import History, LiveFile, SinkCommit, TableReader
from headgate.operations.audit.files import (
    OnProgress,
    check_files_of_commits,
    check_live_files,
    find_which_were_delivered,
    missing_file_finding,
)
from headgate.operations.audit.report import Finding
from headgate.operations.audit.table_records import TableRecords, scan_records, scan_staged_files
from headgate.runtime.sink_tables import TableAtRest
from headgate.tables.storage.damaged_file_error import FileDamaged

# Checks what the sequence of commit records alone proves: epochs, order, offsets, counts. Pure.


def check_commit_chain(
    history: History, *, is_secondary: bool = False, is_ledger: bool = False
) -> list[Finding]:
    """Return every finding, in the order of the branch.

    ``is_secondary``: another table decides its commits (rule PENDING-5). ``is_ledger``: the table
    decides for others, and has no rows itself.
    """
    findings = [Finding("record-unreadable", text) for text in history.unreadable]
    findings += _check_tag(history)
    for commit in history.commits:
        expected_rows = 0 if is_ledger else commit.record.records
        findings += _check_counts(commit, expected_rows, is_secondary=is_secondary)
    for before, after in pairwise(history.commits):
        if before.record.primary == after.record.primary:
            findings += _check_commit_order(before, after, is_secondary=is_secondary)
        findings += _check_offset_order(before, after)
    return findings


def _check_tag(history: History) -> Iterator[Finding]:
    newest = history.commits[-1] if history.commits else None
    if history.tag is None:
        if history.claimed or newest:
            yield Finding("tag-missing", f"{history.table}: the sink's tag was deleted")
        return
    if history.tag_on_branch is False:
        reason = "was rolled back to before it" if history.complete else "does not hold it any more"
        yield Finding(
            "rolled-back",
            f"the sink's tag is on snapshot {history.tag}, but {history.branch} {reason}",
        )
    elif newest and history.tag != newest.snapshot_id:
        yield Finding(
            "tag-behind",
            f"the sink's tag is on snapshot {history.tag}, but its newest commit on "
            f"{history.branch} is {newest.description}",
        )


def _check_counts(
    commit: SinkCommit, expected_rows: int, *, is_secondary: bool
) -> Iterator[Finding]:
    if expected_rows != commit.added_records:
        yield Finding(
            "record-count",
            f"{commit.description}: its record claims {count_of(expected_rows, 'row')}, its "
            f"snapshot's summary says {commit.added_records}",
        )
    adopts = commit.record.command == TAKEOVER
    if commit.record.is_claim and commit.record.records and not (is_secondary or adopts):
        yield Finding("claim-with-rows", f"{commit.description}: a claim of an epoch added rows")


def _check_commit_order(
    before: SinkCommit, after: SinkCommit, *, is_secondary: bool
) -> Iterator[Finding]:
    one, two = before.record, after.record
    if two.transaction.epoch < one.transaction.epoch:
        yield Finding("epoch-fell", f"{after.description} comes after {before.description}")
    elif two.gives_back_missed_rows and two.transaction == one.transaction:
        pass  # SUSPEND-6: giving rows back is not a transaction of its own
    elif two.is_same_commit(one):
        yield Finding("commit-twice", f"{after.description} repeats {before.description}")
    elif two.transaction <= one.transaction:
        yield Finding("transaction-order", f"{after.description} comes after {before.description}")
    elif two.transaction.epoch == one.transaction.epoch and two.coordinator != one.coordinator:
        yield Finding(
            "two-coordinators",
            f"epoch {one.transaction.epoch} was used by {one.coordinator} and by {two.coordinator}",
        )
    is_claimed = two.is_claim or is_secondary or is_record_of_query(two)  # QUERY-13
    if two.transaction.epoch > one.transaction.epoch and not is_claimed:
        yield Finding("epoch-unclaimed", f"{after.description} opens its epoch without a claim")
    if two.group_id != one.group_id:
        yield Finding(
            "group-changed",
            f"{after.description}: written under group {two.group_id!r}, "
            f"before under {one.group_id!r}",
        )


def _check_offset_order(before: SinkCommit, after: SinkCommit) -> Iterator[Finding]:
    one, two = before.record, after.record
    for partition, begin in sorted(one.offsets.items()):
        end = two.offsets.get(partition)
        if _is_topic_recreated(one, two, partition.topic) or end == begin:
            continue
        if end is None:
            yield Finding(
                "offsets-lost", f"{after.description}: {partition} has no offset any more"
            )
        elif end < begin and not two.is_claim:
            yield Finding(
                "offsets-went-back",
                f"{after.description}: {partition} went back from {begin} to {end}",
            )


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """A claim that started a partition at ``end`` though the epoch before had reached ``begin``."""

    where: str
    partition: TopicPartition
    begin: int
    end: int
    by_operator: bool = False
    command: str | None = None

    def __str__(self) -> str:
        by_hand = f"headgate {self.command or 'offsets set or resume --accept'}"
        who = by_hand if self.by_operator else "a claim"
        return f"{self.where}: {who} moved {self.partition} from {self.begin} to {self.end}"


def find_offset_moves(history: History) -> Iterator[OffsetMove]:
    """Yield where an epoch started elsewhere than the last one ended, by policy or by a person."""
    for before, after in pairwise(history.commits):
        one, two = before.record, after.record
        for partition, begin in sorted(one.offsets.items()):
            end = two.offsets.get(partition, begin)
            if two.is_claim and end != begin and not _is_topic_recreated(one, two, partition.topic):
                yield OffsetMove(
                    after.description, partition, begin, end, two.is_operator_claim, two.command
                )


def find_recreated_topics(history: History) -> frozenset[str]:
    """Return topics that were re-created in between: the same offsets stand for other records.

    The record names those of which that has expired.
    """
    record = history.current_record
    noted = (record.recreated_topics if record else None) or ""
    return frozenset(filter(None, noted.split(","))) | frozenset(
        topic
        for before, after in pairwise(history.commits)
        for topic in before.record.topic_ids.keys() & after.record.topic_ids.keys()
        if topic != QUERY_TOPIC and _is_topic_recreated(before.record, after.record, topic)
    )


def find_topics_of_unknown_identity(history: History) -> frozenset[str]:
    """Return topics of which neither record nor history tells whether they were re-created.

    A topic's id changes with a claim only, and the first epoch has had one.
    """
    record = history.current_record
    if record is None or record.recreated_topics is not None or history.complete:
        return frozenset()
    oldest = history.commits[0].record if history.commits else record
    known = oldest.transaction.epoch <= 1
    return frozenset() if known else frozenset(record.topic_ids) - {QUERY_TOPIC}


def _is_topic_recreated(one: CommitRecord, two: CommitRecord, topic: str) -> bool:
    """Return whether the topic was re-created between the commits, so that its offsets restart."""
    return one.topic_ids.get(topic) != two.topic_ids.get(topic)


def added_ranges(before: CommitRecord, after: CommitRecord) -> Mapping[TopicPartition, OffsetRange]:
    """Return the range that a commit says it added, per partition."""
    ranges = {}
    for partition, end in without_query_offset(after.offsets).items():  # QUERY-15
        begin = (
            0
            if _is_topic_recreated(before, after, partition.topic)
            else before.offsets.get(partition, 0)
        )
        if begin < end:
            ranges[partition] = OffsetRange(begin, end)
    return ranges


Columns = tuple[str, str, str]
"""The columns that hold topic, partition and offset."""


class Role(Enum):
    """What a table is for the sink."""

    PRIMARY = auto()
    LEDGER = auto()
    SECONDARY = auto()
    QUARANTINE = auto()

    @property
    def is_secondary(self) -> bool:
        """Return whether another table decides its commits (rule PENDING-5)."""
        return self in {Role.SECONDARY, Role.QUARANTINE}


class FileRemovedMeanwhile(FileNotFoundError):
    """A file is gone that the table named when it was opened, and it has moved since."""


@dataclass(slots=True)
class AuditedTable:
    """A table as it is now, and what was found in it."""

    role: Role
    reader: TableReader
    history: History
    files: list[LiveFile]
    damaged: frozenset[str] = frozenset()
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def examine_commits_and_files(self, on_progress: OnProgress) -> None:
        """Check the commits, and the live files; a ledger has none."""
        ledger = self.role is Role.LEDGER
        self.findings += check_commit_chain(
            self.history, is_secondary=self.role.is_secondary, is_ledger=ledger
        )
        if not ledger:
            self.findings += check_files_of_commits(self.reader, self.history, on_progress)
            live, self.damaged = check_live_files(self.reader, self.files, on_progress)
            self.findings += live

    def drop_findings_of_files_removed_since(
        self, open_now: Callable[[str], AbstractContextManager[TableAtRest]]
    ) -> bool:
        """Drop missing files that the table names no more: a compaction or expiry removed them.

        Returns whether there were any: the rest of what was read does not fit then.
        """
        found = any(finding.what == "file-missing" for finding in self.findings)
        if not found or not self.reader.has_table_changed():
            return False
        with open_now(self.history.table) as now:
            removed = self.damaged - {file.path for file in now.reader.live_files()}
        in_order = {missing_file_finding(file) for file in self.files if file.path in removed}
        kept = [finding for finding in self.findings if finding not in in_order]
        overtaken, self.findings = len(kept) < len(self.findings), kept
        return overtaken

    def findings_with_prefix(self, prefix: str) -> list[Finding]:
        """Return the findings with the table's name, or what else says which one it is."""
        return [Finding(each.what, f"{prefix}{each.evidence}") for each in self.findings]


def open_audited_table(reader: TableReader, role: Role) -> AuditedTable:
    """Read the table's commits and its list of files."""
    return AuditedTable(role, reader, reader.history(), reader.live_files())


def check_and_count_pending_rows(
    table: AuditedTable,
    at_rest: TableAtRest,
    primary: History,
    *,
    columns: Columns | None,
    into: TableRecords,
) -> int:
    """PENDING-7: check and count rows that are pending, and that the table's record does not show.

    Adds the records to ``into`` if ``columns`` name them, and returns the number of rows. Those of
    a keyed table may be replaced again, so it has none: only its files are checked.
    """
    known, rows = table.history.current_record, 0
    whom = "the quarantine" if table.role is Role.QUARANTINE else table.history.table
    for pending_commit in primary.current_record.pending_commits if primary.current_record else ():
        delivered = known is not None and known.has_received(pending_commit, primary.uuid)
        own = pending_commit.secondary == table.history.uuid
        if not own or not pending_commit.manifest or delivered:
            continue
        rows += pending_commit.rows
        table.remarks.append(
            f"{pending_commit.description} of transaction {pending_commit.transaction} are pending "
            f"for {whom}"
        )
        if not columns and isinstance(table.reader, SupportsKeyedAudit):
            table.findings += check_pending_files(table.reader, pending_commit, primary.uuid)
        else:
            table.findings += _check_pending_rows(at_rest, pending_commit.manifest, columns, into)
    return rows


def check_pending_files(
    reader: SupportsKeyedAudit, pending_commit: PendingCommit, primary: str
) -> list[Finding]:
    """Check that the files of a pending commit exist, unless it was delivered after ``reader`` read
    its table.

    A running sink removes key files as soon as they are delivered (PENDING-7).
    """
    missing = _check_staged_files_exist(reader, pending_commit.manifest)
    if not missing:
        return []
    now = reader.open_reader_as_of_now().view().current_record
    return [] if now is not None and now.has_received(pending_commit, primary) else missing


def _check_staged_files_exist(reader: SupportsKeyedAudit, manifest: str) -> list[Finding]:
    """Check that the files of a pending commit exist, with rows or with keys."""
    try:
        gone = reader.missing_staged_files(manifest)
    except FileNotFoundError as error:
        return [Finding("pending-commit-missing", f"{manifest} cannot be delivered: {error}")]
    except FileDamaged as error:
        return [Finding("file-unreadable", f"{error}; it is pending")]
    return [Finding("pending-commit-missing", f"{path} is gone, and pending") for path in gone]


def _check_pending_rows(
    table: TableAtRest, manifest: str, columns: Columns | None, into: TableRecords
) -> list[Finding]:
    """Read pending rows; without columns, check only that the files can be read."""
    try:
        files = table.staged_rows(manifest, columns or ())
        if columns:
            scan_staged_files(files, columns, into)
        else:
            for file in files:  # each is opened only once it is read
                next(iter(file.batches()), None)
    except FileNotFoundError as error:
        return [Finding("pending-commit-missing", f"{manifest} cannot be delivered: {error}")]
    except (FileDamaged, LogUnreadable) as error:
        return [Finding("file-unreadable", f"{error}; it is pending")]
    return []


# Finds what expired (rule PENDING-8): late deliveries may have brought it all the same.


def expired_finding(pending_commit: PendingCommit) -> Finding:
    """Report what was pending for a secondary table that has not received it (rule PENDING-8)."""
    which = "transaction" if pending_commit.manifest else "transactions up to"
    return Finding(
        "rows-expired",
        f"{pending_commit.description} of {which} {pending_commit.transaction} were pending for "
        f"{pending_commit.table} for too long, and are not delivered any more",
    )


def find_late_deliveries(
    secondary: TableAtRest,
    pending_commits: Collection[PendingCommit],
    primary: str,
    columns: Columns | None,
) -> frozenset[PendingCommit]:
    """Return which of these expired pending commits (PENDING-8) a late delivery has brought into
    the table.

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
            and view.record.has_received(pending_commit, primary)
            and _is_record_of_delivery(view.record, pending_commit)
        ):
            came.add(pending_commit)
            continue
        try:
            files_of[pending_commit] = {
                file.path for file in secondary.staged_rows(pending_commit.manifest, ())
            }
        except (FileNotFoundError, FileDamaged, LogUnreadable):
            continue  # nothing tells: what expired stays a finding
    known = find_which_were_delivered(reader, files_of, primary) if files_of else {}
    untold = [pending_commit for pending_commit, is_so in known.items() if is_so is None]
    live = _scan_live_records_if_readable(reader, columns) if untold and columns else TableRecords()
    came |= {pending_commit for pending_commit, is_so in known.items() if is_so}
    came |= {d for d in untold if columns and _has_all_rows_of(secondary, d, columns, live)}
    together = {
        pending_commit.transaction for pending_commit in came
    }  # one call brings all of a transaction
    return frozenset(
        d for d in pending_commits if d.secondary == view.uuid and d.transaction in together
    )


def _is_record_of_delivery(record: CommitRecord, pending_commit: PendingCommit) -> bool:
    """Return whether the record is of the delivery of this pending commit, and of no later one."""
    return (
        record.transaction == pending_commit.transaction
        and record.coordinator == pending_commit.coordinator
    )


def _scan_live_records_if_readable(reader: TableReader, columns: Columns) -> TableRecords:
    """Return the records of the live rows; none where the rows cannot be read here."""
    try:
        return scan_records(reader, columns, frozenset(), on_progress=lambda *_: None)
    except (ValueError, NotImplementedError):
        return TableRecords()


def _has_all_rows_of(
    secondary: TableAtRest,
    pending_commit: PendingCommit,
    columns: Columns,
    live: TableRecords,
) -> bool:
    pending_records = TableRecords()
    try:
        scan_staged_files(
            secondary.staged_rows(pending_commit.manifest, columns), columns, pending_records
        )
    except (FileNotFoundError, ValueError, NotImplementedError):
        return False
    return bool(pending_records.partitions) and all(
        seen.offsets <= live.get_or_add_offsets_of(at).offsets
        for at, seen in pending_records.partitions.items()
    )
