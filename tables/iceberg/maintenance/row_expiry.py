"""Removes rows that are older than their owner wants to keep them, beside a sink (EXPIRY-1 to
EXPIRY-3).

A file that holds nothing younger goes by its metadata alone. Of others the due rows are marked as
dead, once that is worth it. What no reader shows any more goes from storage as everything else
does: with expired snapshots, and with worn files.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression, LessThan, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import SetPropertiesUpdate, TableUpdate
from pyiceberg.types import (
    DateType,
    NestedField,
    PrimitiveType,
    TimestampType,
    TimestamptzType,
)
from pyroaring import BitMap64

from headgate.control_protocol.commit_record_codec import (
    expired_before_ms,
    expired_before_property,
    expired_row_count,
    expired_rows_property,
    maintenance_property,
)
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import RowExpiryUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.tables.iceberg.commit_request import summary_counts_of_files, with_totals_after
from headgate.tables.iceberg.maintenance.compaction_plan import read_data_files_and_deletes
from headgate.tables.iceberg.maintenance.maintenance_commit import (
    MaintenanceCommit,
    Settled,
)
from headgate.tables.iceberg.manifests import is_writable_spec
from headgate.tables.iceberg.row_deletion import MatchingRows, is_delete_mode_copy_on_write
from headgate.tables.iceberg.upsert.delete_manifests import Deletions
from headgate.tables.iceberg.upsert.live_files import DeadRows, Head
from headgate.tables.storage.file_io import with_whole_reads

ROW_EXPIRY = "row-expiry"
DAY_MS = 24 * 3_600_000
WAIT_MS = DAY_MS
"""So long a few due rows of a file wait for more of them: marking is a file and a commit."""

HOUR_MS = 3_600_000
"""The limit is of whole hours."""

_TIMES = (DateType, TimestampType, TimestamptzType)


def expiry_limit_ms(now_ms: int, metadata_updated_ms: int, age_ms: int) -> int:
    """EXPIRY-1: return the time below which rows are due, of whole hours.

    ``metadata_updated_ms``: when the table's metadata last changed, as its catalog or whoever
    committed has it: a clock that is ahead here must not make rows die early.
    """
    return (min(now_ms, metadata_updated_ms) - age_ms) // HOUR_MS * HOUR_MS


def describe_limit(limit_ms: int) -> str:
    """Return the limit as people read it."""
    return dt.datetime.fromtimestamp(limit_ms // 1_000, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


def require_expiry_time_column(name: str, schema: Schema, column: str) -> NestedField:
    """Return the column of the rows' times. Raises ``RowExpiryUnfit``."""
    found = next((each for each in schema.fields if each.name == column), None)
    if found is None:
        raise RowExpiryUnfit(
            f"{name} has no column {column!r} by which rows would expire",
            "correct maintenance.rows_by, or leave maintenance.rows_after_ms out",
        )
    if not isinstance(found.field_type, _TIMES):
        raise RowExpiryUnfit(
            f"{name}: the column {column!r} is {found.field_type}, and rows expire by a time",
            "name a date, timestamp or timestamptz in maintenance.rows_by",
        )
    return found


@dataclass(frozen=True, slots=True)
class DueRows:
    """What is due on one head: whole files, and positions of live rows in others.

    ``rows``: live ones, of both, and those that others' equality deletes hide; ``dead``: all
    positions of the others that are dead then. ``waiting``: due rows that are not worth it yet;
    ``timeless``: rows without a value.
    """

    head: Head
    whole: dict[str, DataFile] = field(default_factory=dict)
    parts: dict[str, DataFile] = field(default_factory=dict)
    dead: dict[str, BitMap64] = field(default_factory=dict)
    rows: int = 0
    waiting: int = 0
    timeless: int = 0
    left: tuple[str, ...] = ()


class _FilesToMark(NamedTuple):
    """Paths of files whose due rows are to be marked, and why others stay as they are."""

    paths: set[str]
    reasons_left: tuple[str, ...]


class RowExpiry(MaintenanceCommit[DueRows]):
    """Removes rows of one table whose ``column`` is below a limit (epoch milliseconds).

    ``dead_per_thousand``: with more due rows than this a file is marked at once. Raises
    ``RowExpiryUnfit``, and what loading a table and storage raise.
    """

    def __init__(
        self,
        catalog: Catalog,
        identifier: str,
        of: tuple[SinkName, str],
        *,
        column: str,
        limit_ms: int,
        dead_per_thousand: int,
        calling: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__(catalog, identifier, of, calling)
        self._column, self._limit_ms = column, limit_ms
        self._dead_per_thousand = dead_per_thousand
        self._matching: dict[int, MatchingRows] = {}
        self._dead_rows = DeadRows()
        self.done: DueRows | None = None

    def find_due_rows(self) -> DueRows | None:
        """Return what is due now; ``None`` without the sink's tag."""
        table = self._catalog.load_table(self._identifier)
        parent = self._head_if_tag_exists(table.metadata)
        return None if parent is None else self._find_due_rows(table, parent)

    def try_commit(self) -> Settled:
        """Try once, on the current head; nothing due, or landed before, is ``LANDED`` as well."""
        table = self._catalog.load_table(self._identifier)
        metadata = table.metadata
        if (landed := self._find_landed_earlier(metadata)) is not None:
            self.done = landed
            return Settled.LANDED
        parent = self._head_if_tag_exists(metadata)
        if parent is None:
            return Settled.GONE
        due = self._find_due_rows(table, parent)
        if not due.rows:
            self.done = due
            return Settled.LANDED
        dead = [(due.head.data[path], bits) for path, bits in sorted(due.dead.items())]
        retiring = {*due.whole, *due.parts}
        deletions = self._build_deletions(table, due.head, "expired", dead=dead, retiring=retiring)
        summary, removed = self._summary(metadata, parent, deletions, due), frozenset(due.whole)
        snapshot, manifests = self._write_snapshot(
            table, parent, summary, deletions=deletions, removed=removed
        )
        outcome = self._commit_snapshot(table, snapshot, manifests, due)
        if outcome is Settled.LANDED:
            self.done = due
        return outcome

    # ------------------------------------------------------------------------------- what is due

    def _find_due_rows(self, table: Table, parent: Snapshot) -> DueRows:
        of = require_expiry_time_column(self._identifier, table.schema(), self._column)
        data, head = read_data_files_and_deletes(table, parent)
        files = [entry.data_file for entry in data]
        io = with_whole_reads(table.io)
        whole, others = dict[str, DataFile](), list[DataFile]()
        for file in files:
            if self._is_due_as_a_whole(file, of) and is_writable_spec(
                table, table.specs()[file.spec_id]
            ):
                whole[file.file_path] = file
            else:
                others.append(file)
        due = self._finder_of_rows_below(self._limit_ms, of).matching_positions_by_path(
            table, others
        )
        dead = {path: self._dead_rows.dead_positions_of(io, head, path) for path in (*whole, *due)}
        alive = {path: live for path, rows in due.items() if (live := rows - dead[path])}
        by_path = {file.file_path: file for file in others}
        parts, left = self._files_to_mark_now(table, alive, by_path, of)
        return DueRows(
            head,
            whole,
            {path: by_path[path] for path in parts},
            {path: dead[path] | alive[path] for path in parts},
            rows=sum(file.record_count - len(dead[path]) for path, file in whole.items())
            + sum(len(alive[path]) for path in parts),
            waiting=sum(len(rows) for path, rows in alive.items() if path not in parts),
            timeless=sum((file.null_value_counts or {}).get(of.field_id, 0) for file in files),
            left=left,
        )

    def _is_due_as_a_whole(self, file: DataFile, time_column: NestedField) -> bool:
        """EXPIRY-2: return whether metadata alone says that each row has a time, below the limit.

        An unknown number of nulls is not none.
        """
        upper = (file.upper_bounds or {}).get(time_column.field_id)
        nulls = (file.null_value_counts or {}).get(time_column.field_id)
        if nulls != 0 or upper is None or len(upper) != _size_of_bound(time_column):
            return False
        kind = cast("PrimitiveType", time_column.field_type)
        return cast("int", from_bytes(kind, upper)) < _limit_in_column_units(
            self._limit_ms, time_column
        )

    def _files_to_mark_now(
        self,
        table: Table,
        due_rows: Mapping[str, BitMap64],
        files: Mapping[str, DataFile],
        time_column: NestedField,
    ) -> _FilesToMark:
        """EXPIRY-2: return files with more due rows than wait, or with some that have waited."""
        if due_rows and is_delete_mode_copy_on_write(table.properties):
            count = sum(map(len, due_rows.values()))
            why = f"{count_of(count, 'due row')} in files with others: the table is copy-on-write"
            return _FilesToMark(set(), (why,))
        many = {
            path
            for path, rows in due_rows.items()
            if len(rows) * 1_000 > self._dead_per_thousand * files[path].record_count
        }
        few = [files[path] for path in due_rows if path not in many]
        waited = self._finder_of_rows_below(
            self._limit_ms - WAIT_MS, time_column
        ).matching_positions_by_path(table, few)
        long_due = {path for path, rows in waited.items() if rows & due_rows[path]}
        return _FilesToMark(many | long_due, ())

    def _finder_of_rows_below(self, limit_ms: int, time_column: NestedField) -> MatchingRows:
        """Return what finds the rows below this limit: each file is read once for it."""
        if limit_ms not in self._matching:
            self._matching[limit_ms] = MatchingRows(
                _rows_older_than(self._column, limit_ms, time_column)
            )
        return self._matching[limit_ms]

    # ---------------------------------------------------------------------------------- the call

    def _summary(
        self, metadata: TableMetadata, parent: Snapshot, deletions: Deletions, due: DueRows
    ) -> Summary:
        retired: Iterable[DataFile] = (entry.data_file for entry in deletions.retired)
        removed = [*due.whole.values(), *retired]
        counts = summary_counts_of_files(metadata, deletions.added, removed)
        marked = {
            maintenance_property(self._sink): ROW_EXPIRY,
            expired_before_property(self._sink): str(self._limit_ms),
            expired_rows_property(self._sink): str(due.rows),
        }
        summary = Summary(Operation.DELETE, **counts, **marked)
        return with_totals_after(parent, summary)

    def _updates(self, metadata: TableMetadata, snapshot: Snapshot) -> tuple[TableUpdate, ...]:
        """EXPIRY-1: the limit that the table stores never goes back; the rows add up."""
        properties, sink = metadata.properties, self._sink
        due = self._sent[snapshot.snapshot_id]
        limit = max(self._limit_ms, expired_before_ms(sink, properties) or self._limit_ms)
        total = expired_row_count(sink, properties) + due.rows
        stored = {
            expired_before_property(sink): str(limit),
            expired_rows_property(sink): str(total),
        }
        return (*super()._updates(metadata, snapshot), SetPropertiesUpdate(updates=stored))


def _size_of_bound(time_column: NestedField) -> int:
    """Return how long a bound of the column is: files of a former type may have others."""
    return 4 if isinstance(time_column.field_type, DateType) else 8


def _limit_in_column_units(limit_ms: int, time_column: NestedField) -> int:
    """Return the limit as the column counts; a day is due when it is over."""
    return limit_ms // DAY_MS if isinstance(time_column.field_type, DateType) else limit_ms * 1_000


def limit_as_filter_literal(limit_ms: int, time_column: NestedField) -> str:
    """Return the limit as a condition on the column has it."""
    moment = dt.datetime.fromtimestamp(limit_ms // 1_000, dt.UTC)
    if isinstance(time_column.field_type, DateType):
        return moment.date().isoformat()
    zoned = isinstance(time_column.field_type, TimestamptzType)
    return (moment if zoned else moment.replace(tzinfo=None)).isoformat()


def _rows_older_than(
    column_name: str, limit_ms: int, time_column: NestedField
) -> BooleanExpression:
    return LessThan(
        term=Reference(name=column_name),
        value=literal(limit_as_filter_literal(limit_ms, time_column)),
    )
