"""Reads rows' keys from message keys, for records that contain them nowhere else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.cdc.policy import Changes
from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.formats.format_registry import ValueOptions, create_record_format
from headgate.data_plane.formats.format_with_column_options import RuledColumns
from headgate.data_plane.formats.record_format import RecordFormat, UndecodableRecords
from headgate.native.byte_arrays import Packed

NO_KEY = "the record has no key, and does not say otherwise which row it deletes"

_OTHERWISE = " (keys of another format than the values need format.key_type)"


def message_key_format(
    source: SourcePlan, changes: Changes, keys: list[pa.Field]
) -> RecordFormat | None:
    """Return how keys of messages are read; ``None`` where nothing says it.

    As ``record_columns`` reads them where the key's column takes the message's key; as values are,
    where a connector writes both; else the message's key is the value of the only column.
    """
    if source.key_format_name:
        return create_record_format(source.key_format_name, source.key_format_options)
    if changes.reads_keys_like_values(source.format_name, source.record_columns.get("key", "")):
        options = ValueOptions.from_options(source.format_options)
        return create_record_format(source.format_name, options.of_format)
    if len(keys) > 1:
        return None
    data = pa.types.is_binary(keys[0].type) or pa.types.is_large_binary(keys[0].type)
    return create_record_format("bytes" if data else "string", {})


class MessageKeys:
    """Reads a key's columns with a format. Serves one thread.

    ``rules``: of the columns, which apply to the message's key as well as to the row.
    """

    def __init__(
        self,
        made: RecordFormat,
        schema: pa.Schema,
        rules: Mapping[str, ColumnRule],
        *,
        caseless: bool,
    ) -> None:
        self._schema = pa.schema([column.with_nullable(nullable=True) for column in schema])
        own = {name: rule for name, rule in rules.items() if name in schema.names}
        known: frozenset[str] = getattr(made, "rules", frozenset())
        readable = all(rule.options_needing_format() <= known for rule in own.values())
        ruled = bool(own) and readable
        self._format = RuledColumns(made, own, self._schema, caseless=caseless) if ruled else made

    def read_keys_and_faults(self, keys: Packed) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        """Return a row per message, and why some of them are not a key; those rows are null."""
        there = np.asarray(keys.array.is_valid())
        bad = dict.fromkeys(np.flatnonzero(~there).tolist(), NO_KEY)
        at = np.flatnonzero(there)
        try:
            read = self._format.decode(keys.filter(there), self._schema)
        except UndecodableRecords as error:
            read = error.rest
            bad |= {int(at[row]): f"key: {reason}{_OTHERWISE}" for row, reason in error.bad.items()}
        places = np.zeros(len(keys), np.int64)
        known = np.ones(len(keys), np.bool_)
        known[list(bad)] = False
        places[known] = np.arange(read.num_rows)
        aligned = read.take(pa.array(places, mask=~known))
        return aligned, bad | _find_keys_with_null_columns(aligned, known)


def _find_keys_with_null_columns(
    keys: pa.RecordBatch, known: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> dict[int, str]:
    """Return keys in which a column has no value."""
    result: dict[int, str] = {}
    for column in keys.schema:
        null = known & np.asarray(keys.column(column.name).is_null())
        for row in np.flatnonzero(null).tolist():
            result.setdefault(row, f"key: {column.name} has no value")
    return result
