"""Examines one table of an audit: its commits, its files, and what is pending for it.

The sink's own table, one that a ledger has filled and the quarantine are examined by the same
steps; their roles say what their commits must look like.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.table_history import History, LiveFile, TableReader
from headgate.operations.audit.commit_chain import examine_chain
from headgate.operations.audit.files import OnProgress, examine_commits, examine_live, landed
from headgate.operations.audit.records import TableRecords, scan_draft, scan_records
from headgate.operations.audit.report import Finding
from headgate.runtime.sink_tables import TableAtRest
from headgate.tables.iceberg.pending_manifests import read_staged_files
from headgate.tables.iceberg.reader import IcebergReader

Columns = tuple[str, str, str]
"""The columns that hold topic, partition and offset."""


class Role(Enum):
    """What a table is for the sink."""

    PRIMARY = auto()
    LEDGER = auto()
    SECONDARY = auto()
    QUARANTINE = auto()

    @property
    def receives(self) -> bool:
        """Return whether another table decides its commits (rule D5)."""
        return self in {Role.SECONDARY, Role.QUARANTINE}


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

    def examine(self, on_progress: OnProgress) -> None:
        """Check the commits, and the live files; a ledger has none."""
        ledger = self.role is Role.LEDGER
        self.findings += examine_chain(self.history, follows=self.role.receives, ledger=ledger)
        if not ledger:
            self.findings += examine_commits(self.reader, self.history, on_progress)
            live, self.damaged = examine_live(self.reader, self.files, on_progress)
            self.findings += live

    def prefixed(self, prefix: str) -> list[Finding]:
        """Return the findings with the table's name, or what else says which one it is."""
        return [Finding(each.what, f"{prefix}{each.evidence}") for each in self.findings]


def open_audited(reader: TableReader, role: Role) -> AuditedTable:
    """Read the table's commits and its list of files."""
    return AuditedTable(role, reader, reader.history(), reader.live_files())


def examine_pending_commits(
    table: AuditedTable,
    at_rest: TableAtRest,
    primary: History,
    *,
    columns: Columns | None,
    into: TableRecords,
    keyed: bool = False,
) -> int:
    """D7: check what the primary table has pending and the table's own record does not show.

    Adds the records to ``into`` if ``columns`` name them, and returns the number of rows; those of
    a keyed table may be replaced again.
    """
    known, rows = table.history.record, 0
    whom = "the quarantine" if table.role is Role.QUARANTINE else table.history.table
    for pending_commit in primary.record.pending_commits if primary.record else ():
        delivered = known is not None and known.delivers(pending_commit, primary.uuid)
        own = pending_commit.secondary == table.history.uuid
        if not own or not pending_commit.manifest or delivered:
            continue
        rows += pending_commit.rows
        table.remarks.append(
            f"{pending_commit.said} of transaction {pending_commit.transaction} are pending for "
            f"{whom}"
        )
        if keyed and isinstance(table.reader, IcebergReader):
            table.findings += examine_pending(table.reader, pending_commit, primary.uuid)
        else:
            table.findings += _read_pending(at_rest, pending_commit.manifest, columns, into)
    return rows


def examine_pending(
    reader: IcebergReader, pending_commit: PendingCommit, primary: str
) -> list[Finding]:
    """Check that the files of a pending commit exist, unless it was delivered after ``reader`` read
    its table.

    A running sink removes key files as soon as they are delivered (D7).
    """
    missing = _examine_files(reader, pending_commit)
    if not missing:
        return []
    now = reader.afresh().view().settled
    return [] if now is not None and now.delivers(pending_commit, primary) else missing


def _examine_files(reader: IcebergReader, pending_commit: PendingCommit) -> list[Finding]:
    """Check that the files of a pending commit exist, with rows or with keys."""
    io = reader.table.io
    try:
        paths = [file.file_path for file in read_staged_files(io, pending_commit.manifest)]
    except FileNotFoundError as error:
        return [
            Finding(
                "pending-commit-missing", f"{pending_commit.manifest} cannot be delivered: {error}"
            )
        ]
    gone = [path for path in paths if not io.new_input(path).exists()]
    return [Finding("pending-commit-missing", f"{path} is gone, and pending") for path in gone]


def _read_pending(
    table: TableAtRest, manifest: str, columns: Columns | None, into: TableRecords
) -> list[Finding]:
    """Read pending rows; without columns, check only that the files can be read."""
    try:
        files = table.drafted(manifest, columns or ())
        if columns:
            scan_draft(files, columns, into)
    except FileNotFoundError as error:
        return [Finding("pending-commit-missing", f"{manifest} cannot be delivered: {error}")]
    return []


# Finds what expired (rule D8): late deliveries may have brought it all the same.


def expired(pending_commit: PendingCommit) -> Finding:
    """Report what was pending for a secondary table that has not received it (rule D8)."""
    which = "transaction" if pending_commit.manifest else "transactions up to"
    return Finding(
        "rows-expired",
        f"{pending_commit.said} of {which} {pending_commit.transaction} were pending for "
        f"{pending_commit.table} for too long, and are not delivered any more",
    )


def came_after_all(
    secondary: TableAtRest,
    pending_commits: Collection[PendingCommit],
    primary: str,
    columns: Columns | None,
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


def _live_records(reader: TableReader, columns: Columns) -> TableRecords:
    try:
        return scan_records(reader, columns, frozenset(), rewound={}, on_progress=lambda *_: None)
    except (ValueError, NotImplementedError):
        return TableRecords()


def _all_there(
    secondary: TableAtRest,
    pending_commit: PendingCommit,
    columns: Columns,
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
