"""Writes the rows of a query's batch in Spark's tasks, with the writers of any other sink.

What a task finds wrong with its rows is a value: Spark would repeat a task that raises.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    RowsUnfit,
    StopSink,
)
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.spark_batch_decision import QUERY_TOPIC
from headgate.data_plane.batch.failure_classification import translate_write_error
from headgate.data_plane.batch.routed_table import table_of_start
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.spark.tasks import drop_zip_importers_and_freeze_gc
from headgate.data_plane.transform.result_rows import cast_spark_rows
from headgate.data_plane.transform.spark_types import (
    describe_lossy_conversions,
    with_large_arrow_types,
)
from headgate.data_plane.write.table_outlets import FileOutlets
from headgate.tables.iceberg.upsert.key_files import OFFSET, PARTITION, TOPIC

OUTCOME = "outcome"
OUTCOMES = pa.schema([(OUTCOME, pa.binary())])
DELETED = "_deleted"
"""The column that says of a row of a keyed table whether it deletes the row of its key."""


@dataclass(frozen=True, slots=True)
class RowsWritten:
    """Holds what a task wrote, or all of them: files, and how many rows and deleting rows of a
    keyed table are in them."""

    files: tuple[WrittenFile, ...] = ()
    rows: int = 0
    deletes: int = 0

    @classmethod
    def merge(cls, parts: Sequence[RowsWritten]) -> RowsWritten:
        """Return what all tasks wrote."""
        files = tuple(file for part in parts for file in part.files)
        return cls(files, sum(part.rows for part in parts), sum(part.deletes for part in parts))


@dataclass(frozen=True, slots=True)
class RowsWriter:
    """Writes a task's rows into files of the table; picklable.

    ``trim``: rows below these offsets are left out (QUERY-6), by the columns of ``places``, which
    are by part of a record. In a keyed table rows are of records in ``ranges`` (QUERY-21), or
    ``number`` orders them (QUERY-23).
    """

    plan: WriterPlan
    batch: Batch
    trim: Offsets = field(default_factory=Offsets)
    places: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    number: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn rows into one row of ``OUTCOMES``."""
        return write_and_yield_outcome(self.write, batches)

    def write(self, batches: Iterable[pa.RecordBatch]) -> RowsWritten:
        """Write the rows. Raises ``RowsUnfit``, ``WriteFailed``; then no file is left."""
        files, rows, deletes = FileOutlets(self.batch), 0, 0
        table = files.get_or_open_outlet(table_of_start(self.plan, self.batch), self.plan)
        try:
            for batch in batches:
                kept, gone = self._split_kept_and_deleted(
                    self._rows_not_yet_stored(self._fill_or_check_record_columns(batch))
                )
                fit = cast_to_table_rows(kept, self.plan.shape.arrow_schema())
                table.rows.add_rows(fit)
                if table.keys and gone.num_rows:
                    table.keys.add_keys_with_places(self._deleted_keys(gone))
                rows, deletes = rows + fit.num_rows, deletes + gone.num_rows
            finished = files.finish()
        except BaseException as error:
            files.discard()
            if isinstance(error, HeadgateError) or not isinstance(error, Exception):
                raise
            raise translate_write_error(error, self.batch) from error
        return RowsWritten(tuple(f for each in finished.values() for f in each), rows, deletes)

    @property
    def _is_keyed(self) -> bool:
        return self.plan.source.changes is not None

    def _fill_or_check_record_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a keyed table with the places that order them. Raises ``RowsUnfit``."""
        if self._is_keyed and self.number is not None:
            count = batch.num_rows
            values = {
                "topic": pa.repeat(pa.scalar(QUERY_TOPIC), count),
                "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
                "offset": pa.repeat(pa.scalar(self.number, pa.int64()), count),
            }
            for part, column in self.places.items():
                batch = batch.append_column(column, values[part])
        elif self._is_keyed:
            outside = pc.invert(self._flag_records_within_ranges(batch, self.ranges))
            if found := pc.sum(outside).as_py():
                first = batch.filter(outside).slice(0, 1)
                named = ", ".join(
                    f"{column} {first.column(column)[0].as_py()}" for column in self.places.values()
                )
                raise RowsUnfit(
                    f"{found} rows say that they are of records which this batch does not have, "
                    f"as {named}: a keyed table's rows are ordered by their records",
                    "select the Kafka source's partition and offset unchanged; a query whose rows "
                    "are of several records is stateful",
                )
        return batch

    def _rows_not_yet_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.trim:
            return batch
        if any(batch.column(column).null_count for column in self.places.values()):
            raise RowsUnfit(
                "some rows do not say of which record they are, and the batch begins below the "
                "table's offsets",
                "fill the columns of table.record_columns in the query",
            )
        below = {at: OffsetRange(0, begin) for at, begin in self.trim.items()}
        return batch.filter(pc.invert(self._flag_records_within_ranges(batch, below)))

    def _flag_records_within_ranges(
        self, batch: pa.RecordBatch, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> pa.Array:
        """Return which rows are of records of these ranges; those that do not say it are of
        none."""
        partitions, offsets = (batch.column(self.places[part]) for part in ("partition", "offset"))
        found = pa.array(np.zeros(batch.num_rows, np.bool_))
        for at, span in ranges.items():
            here = pc.and_(
                pc.equal(partitions, at.partition),
                pc.and_(pc.greater_equal(offsets, span.begin), pc.less(offsets, span.end)),
            )
            if "topic" in self.places:
                here = pc.and_(here, pc.equal(batch.column(self.places["topic"]), at.topic))
            found = pc.or_(found, pc.fill_null(here, fill_value=False))
        return found

    def _split_kept_and_deleted(
        self, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows that stay, and those that delete the row of their key."""
        if not self._is_keyed or DELETED not in batch.schema.names:
            return batch, batch.slice(0, 0)
        deleted = batch.column(DELETED)
        if not pa.types.is_boolean(deleted.type) or deleted.null_count:
            raise RowsUnfit(
                f"{DELETED} is {deleted.type}, with {deleted.null_count} nulls, and says of each "
                "row whether it deletes",
                f"select a boolean without nulls as {DELETED}, as by coalesce(..., false)",
            )
        return batch.filter(pc.invert(deleted)), batch.filter(deleted)

    def _deleted_keys(self, deleted_rows: pa.RecordBatch) -> Mapping[str, pa.Array]:
        changes, schema = self.plan.source.changes, self.plan.shape.arrow_schema()
        assert changes is not None, "only then are there keys"
        names = (*changes.key, *self.places.values())
        keys = cast_to_table_rows(
            deleted_rows, pa.schema([schema.field(name) for name in dict.fromkeys(names)])
        )
        ours = {"topic": TOPIC, "partition": PARTITION, "offset": OFFSET}
        return {
            **{name: keys.column(name) for name in changes.key},
            **{ours[part]: keys.column(column) for part, column in self.places.items()},
        }


def write_and_yield_outcome(
    write: Callable[[Iterator[pa.RecordBatch]], RowsWritten], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield one row of ``OUTCOMES``: what was written, or why it never can be."""
    try:
        outcome: RowsWritten | HeadgateError = write(batches)
    except (StopSink, ConfigurationError) as error:
        outcome = error
    result = pa.array([pickle.dumps(outcome)], pa.binary())
    yield pa.RecordBatch.from_arrays([result], schema=OUTCOMES)
    drop_zip_importers_and_freeze_gc()


def cast_to_table_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """QUERY-17: return the rows with the table's columns and types. Raises ``RowsUnfit``."""
    for column in batch.schema:
        if column.name in schema.names:
            kind = with_large_arrow_types(column.type)
            for misfit in describe_lossy_conversions(kind, schema.field(column.name), column.name):
                raise RowsUnfit(
                    f"column {misfit}",
                    "select the fields of the table in the query, and CAST them to its types",
                )
    faults = Faults()
    rows = cast_spark_rows(batch, schema, faults)
    if faults.reasons:
        (_, reason), count = min(faults.reasons.items()), len(faults.reasons)
        raise RowsUnfit(
            f"column {reason}" + (f" ({count} rows do not fit)" if count > 1 else ""),
            "cast or fill it in the query, so that it also says what happens to misfits",
        )
    return rows
