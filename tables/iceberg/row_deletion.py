"""Deletes rows from a table by a person's command, beside its sink or without it.

One call (COMPACTION-1) marks them as deleted, by deletion vectors (version 3) or position delete
files (version 2); it requires the head on which they were found, and they are found again on a
newer one. The history records their number and who asked for it. It leaves out the predicate, which
may name a person to be forgotten. Properties of the table list the offsets of their records.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, NotIn, NotNull, Or, parser
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    bind,
    extract_field_ids,
    rewrite_not,
)
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import SetPropertiesUpdate, TableUpdate
from pyroaring import BitMap64

from headgate.control_protocol.commit_record_codec import (
    decode_record,
    deleted_rows_property,
    maintenance_property,
)
from headgate.control_protocol.errors import DeletionRefused, HeadgateError, PredicateUnfit
from headgate.control_protocol.identifiers import SinkName, TopicPartition
from headgate.control_protocol.rows_deleted_by_people import (
    DeletedRecords,
    RangesByPartition,
    deleted_list_properties,
    ranges_of_offsets,
)
from headgate.control_protocol.table_format import MatchingCount
from headgate.tables.iceberg.catalog import translate_catalog_error
from headgate.tables.iceberg.commit_request import summary_counts_of_files, with_totals_after
from headgate.tables.iceberg.maintenance.compaction_plan import read_data_files_and_deletes
from headgate.tables.iceberg.maintenance.maintenance_commit import (
    MaintenanceCommit,
    Settled,
    retry_until_settled,
)
from headgate.tables.iceberg.reader import live_batches_of_file
from headgate.tables.iceberg.tag_lineage import deleted_records_of, summary_properties_of
from headgate.tables.iceberg.upsert.delete_manifests import Deletions
from headgate.tables.iceberg.upsert.live_files import DeadRows, Head
from headgate.tables.iceberg.upsert.position_deletes import bitmap_of
from headgate.tables.storage.file_io import with_whole_reads

# Finds the rows of data files that match a predicate in pyiceberg's syntax of row filters.
#
# Data files never change, so each is read once, and only where its statistics allow a match. Nulls
# match as in SQL: only ``is null``. pyiceberg 0.12 lets them match ``not in``.


_POSITION = "position in the file"


def parse_predicate(predicate: str) -> BooleanExpression:
    """Parse a predicate. Raises ``PredicateUnfit``."""
    try:
        return _with_sql_null_semantics(rewrite_not(parser.parse(predicate)))
    except Exception as error:  # pyparsing's, and whatever literals raise
        place = getattr(error, "loc", None)
        where = "" if place is None else f" at or behind character {place + 1}"
        raise PredicateUnfit(
            f"{predicate!r} is no predicate{where}",
            "write as in: email = 'a@b.c' and day >= '2026-01-31' or id in (1, 2)",
        ) from error


@dataclass(slots=True)
class MatchingRows:
    """Finds rows of one table, whose schema may change between two calls."""

    predicate: BooleanExpression
    _known: dict[str, BitMap64] = field(default_factory=dict)

    def matching_positions_by_path(
        self, table: Table, files: Iterable[DataFile]
    ) -> dict[str, BitMap64]:
        """Return the positions of matching rows, by data file; dead ones among them.

        Raises ``PredicateUnfit`` and what storage raises.
        """
        schema = table.schema()
        bound = self._bind_predicate(table, schema)
        may_match = _InclusiveMetricsEvaluator(schema, self.predicate).eval
        positions = {}
        for file in files:
            path = file.file_path
            if path not in self._known:
                self._known[path] = (
                    _matching_positions(table, file, bound) if may_match(file) else BitMap64()
                )
            if self._known[path]:
                positions[path] = self._known[path]
        return positions

    def _bind_predicate(self, table: Table, schema: Schema) -> BooleanExpression:
        try:
            return bind(schema, self.predicate, case_sensitive=True)
        except (ValueError, TypeError) as error:
            raise PredicateUnfit(
                f"the predicate does not fit {'.'.join(table.name())}: {error}",
                f"its columns are {', '.join(schema.column_names)}; --table leaves others out",
            ) from error


def source_coordinates_at_positions(
    table: Table, file: DataFile, positions: BitMap64, columns: tuple[str, str, str]
) -> Iterator[tuple[str, int, list[int]]]:
    """Yield topic, partition and offsets of these rows; a row of others may have none.

    Raises ``ValueError`` for a column that the file's rows lack.
    """
    begin = 0
    for batch in live_batches_of_file(
        table, FileScanTask(file), columns, with_whole_reads(table.io)
    ):
        end = begin + batch.num_rows
        places = [place - begin for place in positions & BitMap64(range(begin, end))]
        rows = batch.take(pa.array(places, pa.int64()))
        begin = end
        named = pa.table(
            [column_or_field(rows, name) for name in columns], ["topic", "partition", "offset"]
        )
        groups = named.drop_null().group_by(["topic", "partition"], use_threads=False)
        for group in groups.aggregate([("offset", "list")]).to_pylist():
            yield group["topic"], group["partition"], group["offset_list"]


def column_or_field(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return the column of this name or, with a dot, the field of a struct.

    Raises ``ValueError``.
    """
    if name in rows.schema.names:
        return rows.column(name)
    outer, dot, inner = name.rpartition(".")
    if not dot:
        raise ValueError(f"a file has no column {name}")
    return pc.struct_field(column_or_field(rows, outer), inner)


def _with_sql_null_semantics(predicate: BooleanExpression) -> BooleanExpression:
    """Make nulls match as in SQL; ``Not`` was already removed."""
    parts: Callable[[BooleanExpression], BooleanExpression] = _with_sql_null_semantics
    match predicate:
        case And():
            return And(parts(predicate.left), parts(predicate.right))
        case Or():
            return Or(parts(predicate.left), parts(predicate.right))
        case NotIn():
            return And(predicate, NotNull(term=predicate.term))
    return predicate


def _matching_positions(table: Table, file: DataFile, bound: BooleanExpression) -> BitMap64:
    schema = table.schema()
    names = [str(schema.find_column_name(of)) for of in sorted(extract_field_ids(bound))]
    predicate = expression_to_pyarrow(bound, schema)
    positions, begin = [np.empty(0, np.int64)], 0
    if not names:
        names = schema.column_names[:1]
    for batch in live_batches_of_file(table, FileScanTask(file), names, with_whole_reads(table.io)):
        places = pa.array(np.arange(begin, begin + batch.num_rows, dtype=np.int64))
        rows = pa.Table.from_batches([batch]).append_column(_POSITION, places)
        positions.append(rows.filter(predicate).column(_POSITION).to_numpy())
        begin += batch.num_rows
    if begin != file.record_count:
        raise ValueError(f"{file.file_path} holds {begin} rows, not {file.record_count}")
    return bitmap_of(np.concatenate(positions))


DELETION = "deletion"
_MODE, _REWRITE = "write.delete.mode", "copy-on-write"


def is_delete_mode_copy_on_write(properties: Mapping[str, str]) -> bool:
    """Return whether a table asks that deletes rewrite files: its readers may know no others."""
    return properties.get(_MODE) == _REWRITE


@dataclass(frozen=True, slots=True)
class RowsToDelete:
    """Live rows that match, on one head: their positions by data file, and all dead positions.

    Rows that others' equality deletes hide count as live: only reading the rows would tell.
    """

    head: Head
    alive: dict[str, BitMap64] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    dead: dict[str, BitMap64] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self.alive.values()))

    @property
    def matching_count(self) -> MatchingCount:
        return MatchingCount(self.count, len(self.alive))


class Deletion(MaintenanceCommit[RowsToDelete]):
    """Deletes the matching rows of one table. ``asked_by`` is written into the history.

    ``columns``: those that say of which record a row is, if there are any.
    """

    def __init__(
        self,
        catalog: Catalog,
        identifier: str,
        of: tuple[SinkName, str],
        predicate: BooleanExpression,
        *,
        asked_by: str,
        columns: tuple[str, str, str] | None = None,
        calling: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__(catalog, identifier, of, calling)
        self._matching_rows = MatchingRows(predicate)
        self._dead_rows = DeadRows()
        self._asked_by = asked_by
        self._columns = columns
        self._listed: DeletedRecords | None = None
        self._done: RowsToDelete | None = None

    @property
    def deleted_count(self) -> MatchingCount:
        return self._done.matching_count if self._done else MatchingCount(0, 0)

    def require_deletable(self) -> None:
        """Raise ``DeletionRefused`` for a table whose rows must not be deleted this way."""
        with self._translating_errors():
            self._require_deletable_head(self._catalog.load_table(self._identifier))

    def count_matching(self) -> MatchingCount:
        """Return what it would delete now. Raises ``DeletionRefused``, ``PredicateUnfit``, and what
        loading a table and storage raise."""
        with self._translating_errors():
            table = self._catalog.load_table(self._identifier)
            return self._find_rows(table, self._require_deletable_head(table)).matching_count

    def delete_and_return_doubt(self, wait_for_quiet: Callable[[], None]) -> str:
        """Delete what matches; return why that is not certain. Raises as ``count_matching``."""
        with self._translating_errors():
            outcome = retry_until_settled(self.try_commit, wait_for_quiet, threading.Event())
            if outcome is Settled.UNKNOWN:
                self._done = self._find_landed_earlier(
                    self._catalog.load_table(self._identifier).metadata
                )
        if outcome is Settled.LANDED or self._done is not None:
            return ""
        return f"the last call was {self.describe_outcome(outcome)}"

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Name the table in errors of catalogs and storage."""
        try:
            yield
        except HeadgateError:
            raise
        except Exception as error:
            rows = f"rows of {self._identifier}"
            what = f"{rows} are not deleted"
            if self._doubtful:
                what = f"whether {rows} are deleted is not known"
            raise translate_catalog_error(error, what) from error

    def try_commit(self) -> Settled:
        """Try once, on the current head. Raises as ``count_matching``."""
        table = self._catalog.load_table(self._identifier)
        metadata = table.metadata
        if (landed := self._find_landed_earlier(metadata)) is not None:
            self._done = landed
            return Settled.LANDED
        parent = self._require_deletable_head(table)
        to_delete = self._find_rows(table, parent)
        if not to_delete.count:
            return Settled.LANDED
        self._listed = self._deleted_records_with(table, to_delete)
        head = to_delete.head
        dead = [(head.data[path], bits) for path, bits in to_delete.dead.items()]
        deletions = self._build_deletions(
            table, head, "deleted", dead=dead, retiring=to_delete.dead
        )
        summary = self._summary(metadata, parent, deletions, to_delete.count)
        snapshot, manifests = self._write_snapshot(table, parent, summary, deletions=deletions)
        outcome = self._commit_snapshot(table, snapshot, manifests, to_delete)
        if outcome is Settled.LANDED:
            self._done = to_delete
        return outcome

    def _require_deletable_head(self, table: Table) -> Snapshot:
        snapshot = self._head_if_tag_exists(table.metadata)
        if snapshot is None:
            raise DeletionRefused(
                f"sink {self._sink} has not written to {self._identifier}: its tag is not there",
                "a tag that was lost is named by headgate status; a table of others is theirs to "
                "delete from",
            )
        if is_delete_mode_copy_on_write(table.properties):
            raise DeletionRefused(
                f"{self._identifier} asks for {_MODE} = {_REWRITE}, so that its readers may know "
                "no delete files",
                f"use an engine that rewrites files, which may run beside the sink; or set {_MODE} "
                "to merge-on-read",
            )
        return snapshot

    def _find_rows(self, table: Table, parent: Snapshot) -> RowsToDelete:
        data, head = read_data_files_and_deletes(table, parent)
        io, to_delete = with_whole_reads(table.io), RowsToDelete(head)
        files = {entry.data_file.file_path: entry.data_file for entry in data}
        matching = self._matching_rows.matching_positions_by_path(table, files.values())
        for path, positions in sorted(matching.items()):
            before = self._dead_rows.dead_positions_of(io, head, path)
            if alive := positions - before:
                to_delete.alive[path], to_delete.files[path] = alive, files[path]
                to_delete.dead[path] = before | alive
        return to_delete

    def _summary(
        self, metadata: TableMetadata, parent: Snapshot, deletions: Deletions, rows: int
    ) -> Summary:
        retired = [entry.data_file for entry in deletions.retired]
        counts = summary_counts_of_files(metadata, deletions.added, retired)
        marked = {
            maintenance_property(self._sink): DELETION,
            deleted_rows_property(self._sink): str(rows),
            f"{deleted_rows_property(self._sink)}-by": self._asked_by,
        }
        summary = Summary(Operation.DELETE, **counts, **marked)
        return with_totals_after(parent, summary)

    def _deleted_records_with(self, table: Table, to_delete: RowsToDelete) -> DeletedRecords:
        """Return the table's list of deleted records with these."""
        properties, sink = table.metadata.properties, self._sink
        before = deleted_records_of(sink, properties)
        tagged = table.metadata.snapshot_by_id(table.metadata.refs[self._tag].snapshot_id)
        record = decode_record(sink, summary_properties_of(tagged)) if tagged else None
        offsets = self._find_deleted_offsets(table, to_delete) if record else None
        return before.with_more_deleted(
            to_delete.count, offsets, record.topic_ids if record else {}
        )

    def _find_deleted_offsets(
        self, table: Table, to_delete: RowsToDelete
    ) -> RangesByPartition | None:
        """Return the offsets of the rows' records; ``None`` if the rows do not tell."""
        if self._columns is None:
            return None
        offsets: defaultdict[TopicPartition, BitMap64] = defaultdict(BitMap64)
        try:
            for path, positions in to_delete.alive.items():
                file = to_delete.files[path]
                of_file = source_coordinates_at_positions(table, file, positions, self._columns)
                for topic, partition, some in of_file:
                    offsets[TopicPartition(topic, partition)].update(some)
        except ValueError:  # a column is gone
            return None
        return {at: ranges_of_offsets(bits) for at, bits in offsets.items()}

    def _updates(self, metadata: TableMetadata, snapshot: Snapshot) -> tuple[TableUpdate, ...]:
        """Add up the deleted rows in properties of the table, which outlive expired snapshots."""
        assert self._listed is not None, "listed before it is sent"
        listed = deleted_list_properties(self._sink, self._listed, metadata.properties)
        total = {deleted_rows_property(self._sink): str(self._listed.rows)}
        summed = SetPropertiesUpdate(updates={**total, **listed})
        return (*super()._updates(metadata, snapshot), summed)
