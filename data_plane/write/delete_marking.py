"""Makes marked rows of records that delete, in tables that keep what was deleted (KEY-13, KEY-14).

The row before the change is only ever taken from the record itself: the table's own row is not
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headgate.control_protocol.errors import KeyUnfit
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.metadata_columns import RecordColumns
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.cdc.envelope_reader import Columns
from headgate.data_plane.cdc.policy import Changes, Envelope
from headgate.data_plane.cdc.unavailable_values import placeholder_of
from headgate.data_plane.cdc.unwrap import BeforeImages
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import Flags

_NO_TIME = "the record has no time"


class MarkedDeletes:
    """Makes the marked rows of one table. Serves one thread.

    Raises ``KeyUnfit`` for a table that cannot keep them. ``columns``: how values are read.
    """

    def __init__(
        self, source: SourcePlan, schema: pa.Schema, columns: Columns, batch: Batch
    ) -> None:
        changes = source.changes
        assert changes is not None, "chosen for it"
        require_markable(batch.table.table, schema, changes, source.record_columns)
        self.column = changes.deleted_at
        self._changes = changes
        self._images = BeforeImages(changes.envelope, columns)
        of_time = replace(source, record_columns={"timestamp": self.column})
        self._times = RecordColumns(of_time, schema, list(batch.ranges))

    def with_values_of_deleted_rows(
        self, rows: pa.RecordBatch, rows_in_place: pa.RecordBatch, records: Chunk, deletes: Flags
    ) -> pa.RecordBatch:
        """Return the rows with those that the ``deletes`` among the records had, as far as these
        say. ``rows_in_place``: the rows that stand in the records' own place.

        What cannot be read there is null: a delete goes by its key.
        """
        beside = rows_in_place.filter(pa.array(deletes))
        image = self._images.read_before_images(records.filter(deletes).values)
        if image is None:
            image = beside
        if self._changes.envelope in (Envelope.DEBEZIUM, Envelope.FLATTENED):
            placeholder = placeholder_of(self._changes.unavailable_placeholder)
            image = placeholder.replace_with_nulls(image).rows
            beside = placeholder.replace_with_nulls(beside).rows
        at, count = np.flatnonzero(deletes), rows.num_rows
        places, numbers = np.arange(count), np.arange(len(at))
        columns = []
        for name in rows.schema.names:
            parts = [rows.column(name), image.column(name), beside.column(name)]
            unknown = np.asarray(parts[1].is_null())
            places[at] = count + numbers + np.where(unknown, len(at), 0)
            columns.append(pa.concat_arrays(parts).take(pa.array(places)))
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def deletion_times_and_bad_rows(
        self, records: Chunk, deletes: Flags
    ) -> tuple[pa.Array, Mapping[int, str]]:
        """Return the marks, null where nothing is deleted, and which deletes have no time for one.

        A delete without a mark would be a row that lives: its record is bad.
        """
        built, reasons = self._times.build_columns_and_bad_rows(records)
        reasons = dict(reasons)
        for row in np.flatnonzero(records.timestamps < 0).tolist():
            reasons[row] = f"{self.column}: {_NO_TIME}, and deletes a row"
        places = pa.array(np.arange(len(deletes)), mask=~deletes)
        return built[self.column].take(places), {
            row: reason for row, reason in reasons.items() if deletes[row]
        }


def array_where(condition: Flags, if_true: pa.Array, if_false: pa.Array) -> pa.Array:
    """Return the values of ``if_true`` where the condition holds, as NumPy's ``where``.

    Arrow's own ``if_else`` does not take every type that a key may have.
    """
    places = np.arange(len(condition)) + np.where(condition, 0, len(condition))
    return pa.concat_arrays([if_true, if_false]).take(pa.array(places))


def find_records_without_timestamp(records: Chunk, column: str) -> dict[int, str]:
    """Return which records cannot be versions: nothing tells from when these are valid (KEY-15)."""
    why = f"{column}: {_NO_TIME}, and a version is valid from one"
    return dict.fromkeys(np.flatnonzero(records.timestamps < 0).tolist(), why)


def require_markable(
    table: str, schema: pa.Schema, changes: Changes, record_columns: Mapping[str, str]
) -> None:
    """Raise ``KeyUnfit`` for a table that cannot keep what was deleted, marked (KEY-13).

    ``record_columns``: by part of the record.
    """
    name = changes.deleted_at
    if name not in schema.names:
        raise KeyUnfit(
            f"{table} has no column {name!r}, in which deletes would mark rows",
            "add it as timestamptz or timestamp, or name another one in changes.deleted_at",
        )
    column = schema.field(name)
    if not pa.types.is_timestamp(column.type) or not column.nullable:
        is_required = "" if column.nullable else "required, "
        raise KeyUnfit(
            f"{table}: the column {name!r} is {is_required}{column.type}, and deletes cannot mark "
            "rows in it",
            "it must be an optional timestamptz or timestamp: rows that live have null there",
        )
    if name in (*changes.key, *record_columns.values()):
        raise KeyUnfit(
            f"{table}: the column {name!r} has another purpose: deletes cannot mark rows in it",
            "name a column of its own in changes.deleted_at",
        )
    if changes.history:
        _require_version_times(table, schema, record_columns)
    known = {*changes.key, *record_columns.values()}
    required = [each.name for each in schema if not each.nullable and each.name not in known]
    if required:
        raise KeyUnfit(
            f"{table}: the column {required[0]!r} is required, and a record that deletes need not "
            f"have a value for it: {changes.delete_marking_setting} could not keep the row",
            f"make it optional, or leave {changes.delete_marking_setting.partition(' ')[0]} out",
        )


def _require_version_times(
    table: str, schema: pa.Schema, record_columns: Mapping[str, str]
) -> None:
    """Raise ``KeyUnfit`` for a table whose versions would have no time to be valid from
    (KEY-15)."""
    name = record_columns.get("timestamp", "")
    if not name:
        raise KeyUnfit(
            f"{table}: changes.history is set, and no column takes the records' time",
            'set record_columns.timestamp, as to "changed_at": a version is valid from then on',
        )
    if name in schema.names and not pa.types.is_timestamp(schema.field(name).type):
        raise KeyUnfit(
            f"{table}: the column {name!r} is {schema.field(name).type}, and says from when a "
            "version is valid",
            "it must be a timestamptz",
        )
