"""Converts a transform's result to rows of the table: checks the columns first, then each value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import (
    ConfigurationError,
    PoisonRecord,
    StopBefore,
    TransformFailed,
)
from headgate.data_plane.batch.record_numbers import Integers, RecordNumbers, first_offsets_of
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.formats.casting.cast_to_table import cast_rows
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.transform.spark_types import is_assignable_type, with_large_arrow_types

RECORD = "_headgate_record"
"""The column that a transform must carry: the record's number in its batch (``RecordNumbers``)."""

_OURS = ("topic", "partition", "offset")
"""Parts of the record that are written from its number, whatever a transform says about them."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """Holds rows of the table's schema, and the record's number of each."""

    rows: pa.RecordBatch
    numbers: Integers


def coordinates_by_column(plan: WriterPlan) -> dict[str, str]:
    """Map the table's columns for topic, partition and offset to what they hold."""
    named = plan.source.record_columns
    return {named[what]: what for what in _OURS if what in named}


def require_valid_result(result: pa.Schema, plan: WriterPlan, name: str) -> None:
    """Check that every row of such a result is a row of the table.

    Raises ``ConfigurationError`` for a column that the table does not have, a missing required
    column, and one whose type does not fit the table's without conversion.
    """
    twice = sorted(column for column, count in Counter(result.names).items() if count > 1)
    if twice:
        raise ConfigurationError(f"{name} gives the column {twice[0]!r} twice", "name it once")
    require_record_column(result, name)
    ours = coordinates_by_column(plan)
    wanted = {field.name: field for field in plan.shape.arrow_schema() if field.name not in ours}
    for field in result:
        if field.name == RECORD or field.name in ours:
            continue
        if field.name not in wanted:
            raise ConfigurationError(
                f"{name} gives a column {field.name!r}, which the table has not",
                f"the table's are {', '.join(wanted)}",
            )
        target = wanted[field.name]
        if not is_assignable_type(with_large_arrow_types(field.type), target.type):
            raise ConfigurationError(
                f"{name} gives {field.name!r} as {field.type}, the table has {target.type}",
                "CAST it to the table's type, which also says what happens to misfits",
            )
    carried = set(plan.source.record_columns.values())
    for column, target in wanted.items():
        if column not in result.names and (not target.nullable or column in carried):
            raise ConfigurationError(f"{name} gives no column {column!r}", "the table requires it")


def require_record_column(result: pa.Schema, name: str) -> None:
    """Raises ``ConfigurationError`` for rows that do not say which record they came from."""
    if RECORD not in result.names:
        raise ConfigurationError(
            f"{name} loses the column {RECORD}, which says what record a row came from",
            f"keep it: select({RECORD!r}, ...)",
        )
    kind = result.field(RECORD).type
    if kind != pa.int64():
        raise ConfigurationError(f"{name} gives {RECORD} as {kind}", "carry the column unchanged")


def repeated_rows_error(name: str, more: int, example: str) -> TransformFailed:
    """Build the error for records that became two rows or more."""
    return TransformFailed(
        f"{name} gives {count_of(more, 'row')} more than it got records{example}",
        "a record may become one row or none: an explode or a join with several matches makes more",
    )


def unknown_rows_error(name: str, count: int, example: str) -> TransformFailed:
    """Build the error for rows whose records the transform did not get."""
    return TransformFailed(
        f"{name} gives {count_of(count, 'row')} of records that were not read, as {example}",
        "carry the record's number unchanged",
    )


class RecordPlaces(NamedTuple):
    """Of each row: the record's number, its partition's index, and its offset."""

    numbers: Integers
    places: Integers
    offsets: Integers


def require_record_places(
    batch: pa.RecordBatch, numbering: RecordNumbers, name: str
) -> RecordPlaces:
    """Return which records the rows are of.

    Raises ``TransformFailed`` for a row that belongs to no record.
    """
    numbers = batch.column(RECORD)
    if numbers.null_count:
        raise TransformFailed(f"{name} gives rows without {RECORD}", "carry the column unchanged")
    result = np.asarray(numbers)
    try:
        return RecordPlaces(result, *numbering.locate_records(result))
    except ValueError as error:
        raise TransformFailed(
            f"{name} gives rows of records that were not read: {error}", f"carry {RECORD} unchanged"
        ) from error


_Rows = TypeVar("_Rows")


def rows_until_stop_then_raise(
    batches: Iterable[pa.RecordBatch], rows_of_batch: Callable[[pa.RecordBatch], Iterable[_Rows]]
) -> Iterator[_Rows]:
    """Yield the rows of each batch; once a record stops the sink, only look for others like it.

    Raises ``StopBefore`` at the end, with the first of them in each partition.
    """
    stops: list[StopBefore] = []
    for batch in batches:
        try:
            for rows in rows_of_batch(batch):
                if not stops:
                    yield rows
        except StopBefore as error:
            stops.append(error)
    if stops:
        raise stops[0].merge_first_offsets_in_place(stops[1:])


def cast_spark_rows(batch: pa.RecordBatch, schema: pa.Schema, faults: Faults) -> pa.RecordBatch:
    """Return rows that Spark made as rows of the schema; optional columns that it lacks are null.

    A value that the schema's type does not hold exactly is noted, as is a required one that is
    missing. Other columns of the batch are left out.
    """
    given = [name for name in batch.schema.names if name in schema.names]
    values = [
        batch.column(name).cast(with_large_arrow_types(batch.column(name).type)) for name in given
    ]
    records = pa.RecordBatch.from_arrays(values, names=given).to_struct_array()
    return cast_rows(records, schema, faults)


class ResultRows:
    """Turns a transform's batches into rows of the table."""

    def __init__(self, plan: WriterPlan, numbering: RecordNumbers, name: str) -> None:
        self._name = name
        self._numbering = numbering
        self._schema = plan.shape.arrow_schema()
        self._ours = coordinates_by_column(plan)
        self._cast = pa.schema([field for field in self._schema if field.name not in self._ours])
        self._values = plan.values

    def convert_batch(self, batch: pa.RecordBatch) -> Numbered:
        """Convert a batch.

        Raises ``PoisonRecord`` for a value that does not fit, ``TransformFailed`` for a row that
        belongs to no record.
        """
        result, places, offsets = require_record_places(batch, self._numbering, self._name)
        faults = Faults()
        fitted = cast_spark_rows(batch, self._cast, faults)
        reasons: Mapping[int, str] = faults.reasons
        if not reasons:
            rest = iter(fitted.columns)
            filled = [
                self._coordinate_column(field, places, offsets)
                if field.name in self._ours
                else next(rest)
                for field in self._schema
            ]
            rows = pa.RecordBatch.from_arrays(filled, schema=self._schema)
            reasons = self._values.find_unsupported_rows(rows) if self._values else {}
        if reasons:
            bad = list(reasons)
            row, reason = min(reasons.items())
            where = self._numbering.describe_record(int(result[row]))
            raise PoisonRecord(
                f"{where}: {self._name} gives a value that is none of the table's: {reason}",
                "mend the transform; the sink stops before this record",
                first_offsets_of(self._numbering.partitions, places[bad], offsets[bad]),
            )
        return Numbered(rows, result)

    def _coordinate_column(self, field: pa.Field, places: Integers, offsets: Integers) -> pa.Array:
        what = self._ours[field.name]
        if what == "offset":
            return pa.array(offsets).cast(field.type)
        partitions = self._numbering.partitions
        if what == "partition":
            values = pa.array([at.partition for at in partitions], pa.int32())
        else:
            values = pa.array([at.topic for at in partitions], pa.large_string())
        return values.take(pa.array(places)).cast(field.type)
