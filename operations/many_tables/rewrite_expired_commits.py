"""Writes again the rows that were pending for a table for too long (rules PENDING-8, SUSPEND-6).

The rows lie in the files of the expired pending commits, which only the ledger still names: an
orphan clean-up may delete them. So they are copied into new files, without the rows that a delayed
delivery added after all; the columns that identify a row's record decide which. Rows that were in
the table, and that somebody deleted from it, are left out, too. One catalog call adds the files.
It requires the table's tag and head as they were read, and its record says up to which transaction
that was done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyroaring import BitMap64

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import REREAD, PendingCommit, Replayed
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import DeletedBack, ReplayUnfit, RereadRefused, RetryLater
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import CommitAttempt, Landed, Refused, TableView
from headgate.control_protocol.table_format import LoadedReader
from headgate.control_protocol.table_history import FileRows
from headgate.operations.access.open_secondary_tables import (
    FilledTables,
    call_for_tables,
    commit_record_of_checked_view,
    require_many_tables,
    require_unkeyed,
)
from headgate.operations.audit.files import find_which_were_delivered
from headgate.operations.audit.table_checks import (
    find_recreated_topics,
    find_topics_of_unknown_identity,
)
from headgate.operations.audit.table_records import (
    TableRecords,
    bitmap_of_ranges,
    positions_of_records,
    scan_records,
    scan_staged_files,
)
from headgate.operations.control.operator_claim import current_actor, try_announce_command
from headgate.runtime.maintenance.compaction import rewrite_pending_files
from headgate.runtime.sink_tables import SinkTables, open_tables_creating_nothing, require_catalog
from headgate.tables.storage.file_io import delete_quietly

_TRIES = 5
_ELSEWISE = (
    "send those records to the topic again (headgate audit names transactions and rows), or take "
    "all tables back before them with headgate rollback"
)
_GONE = "files of expired rows are gone"
Columns = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class RewrittenTable:
    """What one table got of its expired rows. ``there``: rows that it had after all.

    ``deleted``: rows that it had, and that somebody deleted; ``failed``: why it got none.
    """

    table: str
    rows: int = 0
    there: int = 0
    deleted: int = 0
    failed: str = ""

    def __str__(self) -> str:
        if self.failed:
            return f"{self.table}: {self.failed}"
        there = f"; {self.there} were there already" if self.there else ""
        deleted = f"; {self.deleted} were deleted, and stay so" if self.deleted else ""
        return f"{self.table}: {count_of(self.rows, 'row')} written again{there}{deleted}"


class _RemainingRows(NamedTuple):
    """The rows written to new files, and how many were left out: present or deleted ones."""

    files: list[WrittenFile]
    present_count: int
    deleted_count: int


def require_rewritable_by_coordinates(
    settings: SinkSettings, names: Collection[str] = ()
) -> Columns:
    """Return the columns that tell which record a row comes from, in every table of the sink.

    Raises ``ReplayUnfit`` if there are none, and for tables with a key: what they have taken since
    may be newer. Raises ``ConfigurationError`` for a sink of one table.
    """
    require_catalog(settings)
    require_many_tables(settings.tables)
    require_unkeyed(settings.tables, names, "expired", "")
    columns = settings.tables.record_columns.coordinate_columns
    if columns is None:
        raise ReplayUnfit(
            "tables.record_columns names no topic, partition and offset: which rows a "
            "late delivery "
            "has brought after all cannot be told",
            _ELSEWISE,
        )
    return columns


def rewrite_expired_commits_of_tables(
    settings: SinkSettings, names: Collection[str]
) -> tuple[RewrittenTable, ...]:
    """Write again what has expired of these tables; without names, of all that are in order.

    Without names a table that fails stops no other: its result says why. Raises ``ReplayUnfit``,
    ``ReplayRefused``, ``RereadRefused`` if the rows are not available, ``DeletedBack`` if nothing
    tells whether they were in the table and were deleted, ``RetryLater`` if the sink has to deliver
    first or somebody else is faster, and what tables and storage raise. What was written again by
    then is in the tables once.
    """
    columns = require_rewritable_by_coordinates(settings, names)
    with open_tables_creating_nothing(settings) as tables:
        session = _RewriteSession(tables, columns)
        written = call_for_tables(
            names,
            session.rewritable_tables,
            session.rewrite_expired_commits_of_table,
            lambda name, why: RewrittenTable(name, failed=why),
        )
    done = " ".join(each.table for each in written if not each.failed)
    try_announce_command(settings, f"{REREAD} {done}".rstrip())
    return written


class _RewriteSession:
    """The ledger as it was read, for one table after the other."""

    def __init__(self, tables: SinkTables, columns: Columns) -> None:
        self._settings = tables.settings
        self._tables = FilledTables(tables)
        self._columns = columns
        history = self._tables.ledger_reader.history()
        self._renewed = find_recreated_topics(history) | find_topics_of_unknown_identity(history)
        record = self._tables.ledger.record
        self._expired = (
            tuple(
                pending_commit for pending_commit in record.expired if pending_commit.record_count
            )
            if record
            else ()
        )

    def rewritable_tables(self) -> Sequence[str]:
        """Return routed tables without a key that have expired pending commits and were not
        replaced since."""
        ledger, settings = commit_record_of_checked_view(self._tables.ledger), self._settings
        names = {
            pending_commit.table
            for pending_commit in self._expired
            if ledger.secondary_uuid(pending_commit.table) == pending_commit.secondary
        }
        names -= {settings.quarantine.table, *self._tables.suspension_reasons()}
        routing = settings.tables.routing
        return sorted(name for name in names if not routing.key_of(name))

    def rewrite_expired_commits_of_table(self, name: str) -> RewrittenTable:
        """Write in one call; start over if the table has moved meanwhile."""
        reason = ""
        for _ in range(_TRIES):
            reader, view = self._tables.require_table_as_sink_left_it(name)
            if not (pending_commits := self._expired_commits_requiring_rewritable(view)):
                return RewrittenTable(name)
            files, present, deleted = self._write_rows_never_in_table(reader, pending_commits)
            rows = sum(file.records for file in files)
            until = replace(
                commit_record_of_checked_view(view).replayed or Replayed(),
                expired=max(d.transaction for d in pending_commits),
            )
            record = commit_record_of_checked_view(view).with_missed_rows_replayed(
                rows, until, command=REREAD, actor=current_actor()
            )
            outcome = self._tables.open_table(name).commit(
                CommitAttempt(view, record, tuple(files))
            )
            if isinstance(outcome, Landed):
                return RewrittenTable(name, rows, present, deleted)
            reason = outcome.reason
            if isinstance(outcome, Refused):
                delete_quietly(reader.table.io, [file.path for file in files])
                continue
            if (
                commit_record_of_checked_view(
                    self._tables.require_table_as_sink_left_it(name)[1]
                ).replayed
                == until
            ):
                return RewrittenTable(name, rows, present, deleted)
            break
        raise RetryLater(
            f"the expired rows of {name} could not be written again: {reason}",
            "run the command again: rows that are already there are not written twice",
        )

    def _expired_commits_requiring_rewritable(self, view: TableView) -> tuple[PendingCommit, ...]:
        """Return what expired for this table and was not written again yet.

        Raises ``RereadRefused`` for what nothing names any more, and ``RetryLater`` while a delayed
        delivery may still land, or older commits are still pending.
        """
        record, of = commit_record_of_checked_view(view), f"what expired of {view.table}"
        done = record.replayed.expired if record.replayed else None
        pending = [
            pending_commit for pending_commit in self._expired if pending_commit.table == view.table
        ]
        if pending and all(pending_commit.secondary != view.uuid for pending_commit in pending):
            raise RereadRefused(
                f"{of} was decided for an earlier table of that name, which is gone", _ELSEWISE
            )
        pending_commits = [
            pending_commit
            for pending_commit in pending
            if pending_commit.secondary == view.uuid
            and (done is None or pending_commit.transaction > done)
        ]
        if not pending_commits:
            return ()
        if sums := [
            pending_commit for pending_commit in pending_commits if not pending_commit.manifest
        ]:
            raise RereadRefused(
                f"{of} up to transaction {sums[-1].transaction} was so much that the ledger counts "
                f"it only: {sums[-1].description}",
                _ELSEWISE,
            )
        until, still = (
            max(pending_commit.transaction for pending_commit in pending_commits),
            commit_record_of_checked_view(self._tables.ledger).pending_commits,
        )
        older = any(d.secondary == view.uuid and d.transaction <= until for d in still)
        if older or not all(
            record.has_received(pending_commit, self._tables.ledger.uuid)
            for pending_commit in pending_commits
        ):
            raise RetryLater(
                f"rows are still pending for {view.table} that are no newer than what expired",
                "start the sink, or wait for its next delivery; then ask again",
            )
        return tuple(pending_commits)

    def _write_rows_never_in_table(
        self, reader: LoadedReader, pending_commits: Sequence[PendingCommit]
    ) -> _RemainingRows:
        """Write to new files what is neither in the table nor was deleted from it."""
        expired, came = TableRecords(), TableRecords()
        try:
            paths = {
                pending_commit: {
                    file.path for file in self._read_staged_rows_of(reader, pending_commit)
                }
                for pending_commit in pending_commits
            }
            known = find_which_were_delivered(reader, paths, self._tables.ledger.uuid)
            for pending_commit in pending_commits:
                scan_staged_files(
                    self._read_staged_rows_of(reader, pending_commit), self._columns, expired
                )
                if known[pending_commit]:
                    scan_staged_files(
                        self._read_staged_rows_of(reader, pending_commit), self._columns, came
                    )
            present = scan_records(reader, self._columns, frozenset(), on_progress=lambda *_: None)
        except FileNotFoundError as error:
            raise RereadRefused(f"{_GONE}: {error}", _ELSEWISE) from error
        except (ValueError, NotImplementedError) as error:  # such as equality deletes
            why = f"the table's rows cannot be read here: {error}"
            raise RereadRefused(why, _ELSEWISE) from error
        if expired.foreign_rows:
            raise RereadRefused(
                f"of {count_of(expired.foreign_rows, 'row')} that expired nothing says which "
                "record it is of",
                _ELSEWISE,
            )
        if untold := [
            pending_commit for pending_commit, came_in in known.items() if came_in is None
        ]:
            raise DeletedBack(
                f"whether {untold[0].description} of transaction {untold[0].transaction} came into "
                f"{untold[0].table} after all, and were deleted there since, has expired with "
                "older snapshots of the table",
                _ELSEWISE,
            )
        there = _records_in_both(expired, present)
        if again := sorted(self._renewed & {at.topic for at in there}):
            raise RereadRefused(
                f"{', '.join(again)} was re-created since the sink began, or its ledger does not "
                "show any more that it was not: offsets name two records, and which of them the "
                "table has cannot be told",
                _ELSEWISE,
            )
        gone = self._find_deleted_records(reader, expired, came, there)
        without = {at: there.get(at, BitMap64()) | gone.get(at, BitMap64()) for at in there | gone}
        dead = self._find_positions_of_records(reader, pending_commits, without) if without else {}
        manifests = [pending_commit.manifest for pending_commit in pending_commits]
        size_bytes = self._settings.coordinator.target_file_bytes
        try:
            rewritten = rewrite_pending_files(
                reader.table, self._settings.name, manifests, dead, default_file_bytes=size_bytes
            )
        except ValueError as error:
            raise RereadRefused(str(error), _ELSEWISE) from error
        except FileNotFoundError as error:
            raise RereadRefused(f"{_GONE}: {error}", _ELSEWISE) from error
        written = list(rewritten.written.files) if rewritten.written else []
        if rewritten.unfit:
            delete_quietly(reader.table.io, [file.path for file in written])
            path, why = next(iter(rewritten.unfit.items()))
            raise RereadRefused(
                f"{path} does not fit the table's columns of today: {why}", _ELSEWISE
            )
        return _RemainingRows(written, sum(map(len, there.values())), sum(map(len, gone.values())))

    def _read_staged_rows_of(
        self, reader: LoadedReader, pending_commit: PendingCommit
    ) -> Iterator[FileRows]:
        return reader.staged_rows(pending_commit.manifest, self._columns)

    def _find_deleted_records(
        self,
        reader: LoadedReader,
        expired: TableRecords,
        delivered: TableRecords,
        present: Mapping[TopicPartition, BitMap64],
    ) -> dict[TopicPartition, BitMap64]:
        """Return what was in the table and is not any more, and what a person deleted by command.

        ``delivered``: the records of what a delivery has brought after all.
        """
        listed = reader.history().deleted.ranges_of_topics(
            commit_record_of_checked_view(self._tables.ledger).topic_ids
        )
        gone = {}
        for at, seen in expired.partitions.items():
            once = delivered.get_or_add_offsets_of(at).offsets | bitmap_of_ranges(
                listed.get(at, ())
            )
            if left := (seen.offsets & once) - present.get(at, BitMap64()):
                gone[at] = left
        return gone

    def _find_positions_of_records(
        self,
        reader: LoadedReader,
        pending_commits: Sequence[PendingCommit],
        records: Mapping[TopicPartition, BitMap64],
    ) -> dict[str, BitMap64]:
        """Return, by file, the positions of the rows of these records."""
        positions: dict[str, BitMap64] = {}
        for pending_commit in pending_commits:
            for file in self._read_staged_rows_of(reader, pending_commit):
                begin = 0
                for batch in file.batches():
                    places = (
                        begin + place
                        for place in positions_of_records(batch, self._columns, records)
                    )
                    positions.setdefault(file.path, BitMap64()).update(places)
                    begin += batch.num_rows
        return positions


def _records_in_both(one: TableRecords, other: TableRecords) -> dict[TopicPartition, BitMap64]:
    """Return, by partition, the records that both have."""
    return {
        at: both
        for at, seen in one.partitions.items()
        if at in other.partitions and (both := seen.offsets & other.partitions[at].offsets)
    }
