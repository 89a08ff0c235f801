"""Refuses values that this table format cannot hold, and leaves out those that do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headgate.control_protocol.table_format import ValueCheck
from headgate.data_plane.formats.record_format import NOTHING, RecordFormat, UndecodableRecords
from headgate.data_plane.quarantine.poison_search import Read
from headgate.data_plane.quarantine.rejected_records import BAD_VALUE
from headgate.data_plane.quarantine.rowless_record_filter import flags_of_all_but
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import Flags


def reader_with_value_check(
    read: Callable[[Chunk], Read], values: ValueCheck | None
) -> Callable[[Chunk], Read]:
    """Return ``read`` as a reader to which records that the table cannot hold are bad."""
    if values is None:
        return read

    def read_checked(chunk: Chunk) -> Read:
        result = read(chunk)
        unfit = values.find_unsupported_rows(result.rows)
        if not unfit:
            return result
        bad = {row: why for reasons, _ in result.bad for row, why in reasons.items()}
        places = np.flatnonzero(flags_of_all_but(chunk, bad))
        reasons = {int(places[row]): why for row, why in unfit.items()}
        is_held = np.ones(result.rows.num_rows, np.bool_)
        is_held[list(unfit)] = False
        return Read(result.rows.filter(pa.array(is_held)), [*result.bad, (reasons, BAD_VALUE)])

    return read_checked


FormatOf = Callable[[pa.Schema], RecordFormat]
"""Makes a format that reads values into just these columns."""


class MisfitNulling:
    """Reads bad records column by column, with null for what does not fit an optional column.

    A record that cannot be read at all stays bad, and so does one without a required value.
    ``nulls`` counts by column the values that were left out.
    """

    def __init__(self, schema: pa.Schema, format_of: FormatOf) -> None:
        self._schema = schema
        self._formats = {
            field.name: (pa.schema([field]), format_of(pa.schema([field]))) for field in schema
        }
        self._readable = format_of(NOTHING)
        self.nulls: Counter[str] = Counter()

    def replace_misfits_with_nulls(
        self, values: Sequence[bytes], rows: pa.RecordBatch, bad: Mapping[int, str]
    ) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        """Return the rows of all values that have one now, in order, and those that stay bad."""
        if not bad or not len(self._schema):
            return rows, bad
        doubtful = sorted(bad)
        some = [values[row] for row in doubtful]
        columns, misfits = [], np.zeros((len(self._schema), len(some)), np.bool_)
        for place, field in enumerate(self._schema):
            column, misfits[place] = self._column_with_nulled_misfits(field, some)
            columns.append(column)
        required = np.array([not field.nullable for field in self._schema], np.bool_)
        lost = self._flag_unreadable(some) | misfits[required].any(axis=0)
        for field, misfit in zip(self._schema, misfits, strict=True):
            self.nulls[field.name] += int((misfit & ~lost).sum())
        kept = pa.array(np.flatnonzero(~lost))
        new = pa.RecordBatch.from_arrays(
            [column.take(kept) for column in columns], schema=self._schema
        )
        still = {row: bad[row] for row, gone in zip(doubtful, lost.tolist(), strict=True) if gone}
        good = np.delete(np.arange(len(values), dtype=np.int64), doubtful)
        order = np.argsort(np.concatenate([good, np.array(doubtful, np.int64)[~lost]]))
        together = pa.concat_batches([rows.cast(self._schema), new])
        return together.take(pa.array(order)), still

    def _flag_unreadable(self, some: list[bytes]) -> Flags:
        result = np.zeros(len(some), np.bool_)
        try:
            self._readable.decode(some, NOTHING)
        except UndecodableRecords as error:
            result[list(error.bad)] = True
        return result

    def _column_with_nulled_misfits(
        self, field: pa.Field, some: list[bytes]
    ) -> tuple[pa.Array, Flags]:
        """Replace values that do not fit by null; also return the flags of these rows."""
        schema, format_ = self._formats[field.name]
        misfit = np.zeros(len(some), np.bool_)
        try:
            return format_.decode(some, schema).column(0), misfit
        except UndecodableRecords as error:
            misfit[list(error.bad)] = True
            places = np.where(misfit, -1, np.cumsum(~misfit) - 1)
            chosen = pa.array(places, mask=misfit)
            return error.rest.column(0).take(chosen), misfit
