"""Rewrites the live rows of data files into new files, in bounded memory (COMPACTION-1, KEY-11).

Columns are found by their field ids and with pyarrow alone, because pyiceberg 0.12 reads a null
list of structs as an empty one. A file whose columns cannot be matched without doubt stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pa_types
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.types import PrimitiveType
from pyroaring import BitMap64

from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.data_plane.batch.writer_task_plan import SourcePlan, plan_of_table
from headgate.data_plane.files.data_files import DataFiles, FileShape
from headgate.data_plane.files.format_choice import FORMAT
from headgate.data_plane.files.metrics import leaves_of, metrics_modes
from headgate.data_plane.files.parquet import ParquetEncoding
from headgate.data_plane.files.partitioning import PartitionKey, partition_folder
from headgate.data_plane.write.table_outlets import BUFFER_BYTES
from headgate.tables.iceberg.maintenance.compaction_commit import (
    MovedRows,
    Written,
    locate_moved_rows,
)
from headgate.tables.iceberg.maintenance.compaction_plan import (
    CandidateFile,
    Choice,
    sink_data_folder,
)
from headgate.tables.iceberg.maintenance.files_to_delete import boottime_s
from headgate.tables.iceberg.pending_manifests import require_rewritable_files_by_partition
from headgate.tables.iceberg.upsert.position_deletes import Positions, sorted_positions_of

ROWS_AT_ONCE = 65_536
SORTED_BYTES = BUFFER_BYTES // 4
"""Size on disk of a sorted portion: its rows are in memory while they are sorted."""

_ID = b"PARQUET:field_id"
_ROW_ID, _UPDATED = 2_147_483_540, 2_147_483_539
"""Field ids of the row lineage columns, by Iceberg's specification."""

LINEAGE = pa.schema(
    [
        pa.field("_row_id", pa.int64(), metadata={_ID: str(_ROW_ID)}),
        pa.field("_last_updated_sequence_number", pa.int64(), metadata={_ID: str(_UPDATED)}),
    ]
)


class Unfit(Exception):
    """A file's columns cannot be matched to the table's without doubt."""

    path = ""


class Stopped(Exception):
    """The caller asked to stop."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """``written`` is what was chosen and done.

    ``unfit`` lists, with reasons, the files that kept their portions from it.
    """

    written: Written | None
    unfit: Mapping[str, str]


def target_file_bytes(table: Table, configured: int, default: int) -> int:
    """Return the size for compacted files: as configured, else the table's, else the sink's."""
    wanted = configured or int(table.properties.get("write.target-file-size-bytes", default))
    return min(wanted, SORTED_BYTES) if table.sort_order().fields else wanted


def rewrite_pending_files(
    table: Table,
    sink: SinkName,
    manifests: Sequence[str],
    deleted_positions: Mapping[str, BitMap64],
    *,
    default_file_bytes: int,
) -> Rewritten:
    """Write the rows of staged manifests into new files of the table (SUSPEND-6).

    ``deleted_positions``: by path, positions to leave out; ``default_file_bytes``: the size of a
    file, unless the table names another. Raises ``ValueError`` for a file that cannot be rewritten,
    and what storage raises.
    """
    choice = Choice(
        None,
        require_rewritable_files_by_partition(table, manifests, deleted_positions),
        frozenset(),
        (),
        0,
    )
    return Rewriting(
        table, sink, target_file_bytes(table, 0, default_file_bytes), born=False
    ).rewrite(choice)


class Rewriting:
    """Rewrites files of one loaded table. ``stopped`` is asked now and then.

    ``born``: whether the rows are the table's already, so that they keep their ids in version 3.
    """

    def __init__(
        self,
        table: Table,
        sink: SinkName,
        size_bytes: int,
        stopped: Callable[[], bool] = lambda: False,
        *,
        born: bool = True,
    ) -> None:
        self._table = table
        self._size_bytes = size_bytes
        self._stopped = stopped
        self._numbered = born and isinstance(table.metadata, TableMetadataV3)
        self._shape = _file_shape(table, with_row_lineage=self._numbered)
        self._columns = schema_to_pyarrow(table.schema())
        folder = "compacted" if born else "reread"
        self._prefix = f"{sink_data_folder(table, sink)}/{folder}/{uuid.uuid4()}"

    def rewrite(
        self, choice: Choice, on_portion: Callable[[int, int], None] = lambda *_: None
    ) -> Rewritten:
        """Write each portion.

        Raises ``Stopped`` and what storage raises; then no file is left behind.
        """
        since_s = boottime_s()
        done: list[tuple[CandidateFile, ...]] = []
        files: list[DataFiles] = []
        finished: list[WrittenFile] = []
        moved: list[MovedRows] = []
        unfit: dict[str, str] = {}
        try:
            for number, portion in enumerate(choice.portions):
                writing = DataFiles(self._shape, self._prefix, self._size_bytes)
                files.append(writing)
                try:
                    places = self._write_portion_and_locate_rows(portion, writing)
                    made = writing.finish()  # one portion's file is open at a time
                    finished += made
                    moved.append(locate_moved_rows(portion, made, places))
                    done.append(portion)
                except Unfit as error:
                    files.pop().discard()
                    unfit[error.path] = str(error)
                on_portion(number + 1, len(choice.portions))
        except BaseException:
            for writing in files:
                writing.discard()
            raise
        rewritten = Written(
            replace(choice, portions=tuple(done)), tuple(finished), since_s, tuple(moved)
        )
        return Rewritten(rewritten if done else None, unfit)

    def _write_portion_and_locate_rows(
        self, portion: Sequence[CandidateFile], writing: DataFiles
    ) -> Positions | None:
        """Write the rows of many files together, a row group or a sorted run at a time.

        Return where sorted rows went: for each row read, its number among those written.
        """
        key = self._partition_key(portion[0].partition)
        sorter = self._shape.sorter
        at_once = BUFFER_BYTES if sorter else self._shape.encoding.write_bytes_max
        runs: list[Positions] = []
        for rows in self._read_live_rows_in_chunks(portion, at_once):
            writing.write(key, rows)
            if sorter:
                runs.append(sorter.sorted_indices(rows).to_numpy().astype(np.int64))
        return _written_positions_of_read_rows(runs) if sorter else None

    def _read_live_rows_in_chunks(
        self, portion: Sequence[CandidateFile], chunk_bytes: int
    ) -> Iterator[pa.Table]:
        waiting: list[pa.Table] = []
        size_bytes = 0
        for file in portion:
            for some in self._read_checked_live_rows(file):
                waiting.append(some)
                size_bytes += some.nbytes
                if size_bytes >= chunk_bytes:
                    yield pa.concat_tables(waiting)
                    waiting, size_bytes = [], 0
                if self._stopped():
                    raise Stopped
        if any(some.num_rows for some in waiting):
            yield pa.concat_tables(waiting)

    def _read_checked_live_rows(self, file: CandidateFile) -> Iterator[pa.Table]:
        """Yield the file's live rows, as many as its manifest counts.

        Raises ``Unfit`` with its path.
        """
        rows, dead = 0, sorted_positions_of(file.dead)
        if len(dead) == file.records:
            return
        try:
            for some in self._read_all_rows_in_file_order(file):
                here = dead[(dead >= rows) & (dead < rows + some.num_rows)] - rows
                rows += some.num_rows
                yield _without_rows(some, here) if len(here) else some
        except Unfit as error:
            error.path = file.path
            raise
        if rows != file.records or (len(dead) and dead[-1] >= rows):
            unfit = Unfit(f"{rows} rows, but {file.records} in the manifest")
            unfit.path = file.path
            raise unfit

    def _read_all_rows_in_file_order(self, file: CandidateFile) -> Iterator[pa.Table]:
        with self._shape.io.new_input(file.path).open() as stream:
            parquet = pq.ParquetFile(stream)
            position = 0
            for batch in parquet.iter_batches(batch_size=ROWS_AT_ONCE):
                yield self._conform_rows(pa.Table.from_batches([batch]), file, position)
                position += batch.num_rows

    def _conform_rows(self, rows: pa.Table, file: CandidateFile, position: int) -> pa.Table:
        there = {_field_id(field): place for place, field in enumerate(rows.schema)}
        columns = [self._fit_column_or_nulls(rows, there, field) for field in self._columns]
        schema = self._columns
        if self._numbered:
            columns += _row_lineage_columns(rows, there, file, position)
            schema = self._shape.arrow_schema
        return pa.table(columns, schema=schema)

    def _fit_column_or_nulls(
        self, rows: pa.Table, there: dict[int, int], field: pa.Field
    ) -> pa.ChunkedArray:
        place = there.get(_field_id(field))
        if place is None:
            wanted = self._table.schema().find_field(_field_id(field))
            if not field.nullable or wanted.initial_default is not None:
                raise Unfit(f"older than column {field.name}")
            return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        found = rows.schema.field(place)
        column = rows.column(place)
        if found.type.equals(field.type) and _field_shape_of(found) == _field_shape_of(field):
            fitted = column
        elif _field_shape_of(found)[1:] == _field_shape_of(field)[1:]:
            try:
                fitted = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
                raise Unfit(f"column {field.name} was {found.type}: {error}") from error
        else:
            raise Unfit(f"column {field.name} had other fields")
        if not field.nullable and fitted.null_count:
            raise Unfit(f"column {field.name} has nulls, and is required")
        return fitted

    def _partition_key(self, partition: Any) -> PartitionKey:
        spec, schema = self._table.spec(), self._table.schema()
        fields = spec.partition_type(schema).fields
        types = [cast("PrimitiveType", field.field_type) for field in fields]
        values = [partition[place] for place in range(len(types))]
        binary = tuple(
            None if value is None else to_bytes(kind, value)
            for kind, value in zip(types, values, strict=True)
        )
        folder = partition_folder(spec, schema, values) if types else ""
        return PartitionKey(binary, folder)


def _written_positions_of_read_rows(runs: Sequence[Positions]) -> Positions:
    """Return, for each row read in sorted runs, its number among the rows written."""
    begins = np.cumsum([0, *(len(order) for order in runs)])
    read = [begin + order for begin, order in zip(begins, runs, strict=False)]
    return np.argsort(np.concatenate([np.empty(0, np.int64), *read]))


def _without_rows(rows: pa.Table, places: Positions) -> pa.Table:
    kept = np.ones(rows.num_rows, np.bool_)
    kept[places] = False
    return rows.filter(pa.array(kept))


def _file_shape(table: Table, *, with_row_lineage: bool) -> FileShape:
    """Return the Parquet shape that the table asks for, with the configured size."""
    start = TableStart(
        ".".join(table.name()),
        str(table.metadata.table_uuid),
        table.metadata.current_schema_id,
        table.metadata.default_spec_id,
        "",
    )
    plan = plan_of_table(table, start, SourcePlan(kafka={}))
    properties = {**plan.shape.table_properties, FORMAT: "parquet"}
    shape = FileShape(replace(plan.shape, table_properties=properties), plan.io_properties)
    shape.target_bytes = 0
    if with_row_lineage:
        schema = table.schema()
        leaves = leaves_of(schema, metrics_modes(schema, properties, table.sort_order()))
        shape.arrow_schema = pa.schema([*shape.arrow_schema, *LINEAGE])
        shape.encoding = ParquetEncoding(schema, properties, leaves, tuple(LINEAGE))
    return shape


def _row_lineage_columns(
    rows: pa.Table, there: dict[int, int], file: CandidateFile, position: int
) -> list[pa.ChunkedArray]:
    """Return each row's id and last change, stored in the file or derived from its position."""
    first = (file.first_row_id or 0) + position
    ids = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
    updated = pa.array(np.full(rows.num_rows, file.sequence_number, np.int64))
    columns = []
    for field_id, otherwise in ((_ROW_ID, ids), (_UPDATED, updated)):
        place = there.get(field_id)
        stored = None if place is None else rows.column(place).combine_chunks()
        column = otherwise if stored is None else stored.fill_null(otherwise)
        columns.append(pa.chunked_array([column]))
    return columns


def _field_id(field: pa.Field) -> int:
    return int((field.metadata or {}).get(_ID, -1))


def _field_shape_of(field: pa.Field) -> tuple[Any, ...]:
    """Return name, id and nested shape; a column may be renamed, nested fields may not.

    A plain type has no shape: the cast decides whether it fits.
    """
    return (field.name, _field_id(field), *_nested_type_shape_or_empty(field.type))


def _nested_type_shape_or_empty(data_type: pa.DataType) -> tuple[Any, ...]:
    if pa_types.is_struct(data_type):
        return (
            "struct",
            *(_field_shape_of(data_type.field(at)) for at in range(data_type.num_fields)),
        )
    if pa_types.is_map(data_type):
        return (
            "map",
            _field_shape_of(data_type.key_field)[1:],
            _field_shape_of(data_type.item_field)[1:],
        )
    if pa_types.is_list(data_type) or pa_types.is_large_list(data_type):
        return ("list", _field_shape_of(data_type.value_field)[1:])
    return ()
