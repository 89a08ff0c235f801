"""Turns a record's coordinates, key and headers into columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.data_plane.batch.writer_task_plan import RECORD_PARTS, STRUCT, SourcePlan
from headgate.data_plane.formats.casting.cast_to_table import cast_column
from headgate.data_plane.formats.casting.relabel import relabel_with_type
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.record_format import Faults, UndecodableRecords
from headgate.kafka.record_fetch import Chunk

MILLISECONDS_MAX = (2**63 - 1) // 1000
"""The latest time that a column of microseconds holds."""


class RecordColumns:
    """Makes the columns that do not come from values.

    - key: as the key's format reads it; a struct column takes the fields of a key that has some,
      any other column takes the key itself. A record without a key has null there.
    - timestamp: a record is bad whose time the column cannot hold.
    - headers: into a map from string, where a key may stand once, or a list of structs of ``key``
      and ``value``, in their order; names, and values of string, are UTF-8. A record without
      headers has none, not null.
    - struct: a column whose fields are parts by these names.
    """

    def __init__(
        self, source: SourcePlan, schema: pa.Schema, partitions: Sequence[TopicPartition]
    ) -> None:
        self._partitions = partitions
        self._fields = {
            what: schema.field(column) for what, column in source.record_columns.items()
        }
        if STRUCT in self._fields:
            self._inside = _columns_of_struct(source, self._fields[STRUCT], partitions)
        if "key" in self._fields:
            target = self._fields["key"].type
            name = source.key_format_name or ("string" if _is_text(target) else "bytes")
            self._key_format = create_record_format(name, source.key_format_options)
        if "headers" in self._fields:
            self._header_text = _has_text_header_values(self._fields["headers"])

    def build_columns_and_bad_rows(
        self, chunk: Chunk
    ) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """Return columns by name, and which records are bad."""
        faults = Faults()
        parts: dict[str, Callable[[Chunk, pa.Field, Faults], pa.Array]] = {
            "key": self._key_column,
            "headers": self._header_column,
            STRUCT: self._struct_column,
        }
        result = {}
        for what, field in self._fields.items():
            if what in parts:
                result[field.name] = parts[what](chunk, field, faults)
            elif (
                what == "timestamp"
                and pa_types.is_timestamp(field.type)
                and field.type.unit == "ns"
            ):
                result[field.name] = cast_column(
                    self._position_or_time_column(what, chunk), field, faults
                )
            elif what == "timestamp":
                result[field.name] = self._timestamp_column(chunk, field, faults)
            else:
                result[field.name] = self._position_or_time_column(what, chunk).cast(field.type)
        return result, faults.reasons

    def _position_or_time_column(self, name: str, chunk: Chunk) -> pa.Array:
        if name == "offset":
            return pa.array(chunk.offsets)
        if name == "timestamp":
            timestamps = pa.array(chunk.timestamps, mask=chunk.timestamps < 0)
            return timestamps.cast(pa.timestamp("ms", tz="UTC"))
        indices = pa.array(chunk.places)
        if name == "partition":
            return pa.array([at.partition for at in self._partitions], pa.int32()).take(indices)
        return pa.array([at.topic for at in self._partitions]).take(indices)

    def _timestamp_column(self, chunk: Chunk, field: pa.Field, faults: Faults) -> pa.Array:
        try:
            return self._position_or_time_column("timestamp", chunk).cast(field.type)
        except pa.ArrowInvalid:
            far = chunk.timestamps > MILLISECONDS_MAX
            faults.note(np.flatnonzero(far), f"{field.name}: the record's time is out of range")
            near = replace(chunk, timestamps=np.where(far, -1, chunk.timestamps))
            return self._position_or_time_column("timestamp", near).cast(field.type)

    def _struct_column(self, chunk: Chunk, field: pa.Field, faults: Faults) -> pa.Array:
        result, reasons = self._inside.build_columns_and_bad_rows(chunk)
        for row, reason in reasons.items():
            faults.note([row], f"{field.name}.{reason}")
        children = [result[child.name] for child in field.type]
        return pa.StructArray.from_arrays(children, fields=list(field.type))

    def _key_column(self, chunk: Chunk, field: pa.Field, faults: Faults) -> pa.Array:
        keys: Sequence[bytes | None] = chunk.keys or []
        there = np.array([key is not None for key in keys], np.bool_)
        if not field.nullable:
            faults.note(np.flatnonzero(~there), f"{field.name}: the record has no key")
        struct = pa_types.is_struct(field.type)
        schema = pa.schema(list(field.type) if struct else [field])
        rows = np.flatnonzero(there)
        good = np.ones(len(rows), np.bool_)
        try:
            read = self._key_format.decode([key for key in keys if key is not None], schema)
        except UndecodableRecords as error:
            read = error.rest
            for place, reason in error.bad.items():
                good[place] = False
                faults.note([rows[place]], f"key: {reason}")
        values = relabel_with_type(read.to_struct_array(), field.type) if struct else read.column(0)
        places = np.zeros(len(keys), np.int64)
        places[rows[good]] = np.arange(len(values))
        absent = np.ones(len(keys), np.bool_)
        absent[rows[good]] = False
        return values.take(pa.array(places, mask=absent))

    def _header_column(self, chunk: Chunk, field: pa.Field, faults: Faults) -> pa.Array:
        records = [headers or () for headers in chunk.headers or []]
        counts = [len(headers) for headers in records]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        keys = _flat_header_names(records, faults)
        values = self._flat_header_values(records, faults)
        if pa_types.is_map(field.type):
            result = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, values)
        else:
            pairs = pa.StructArray.from_arrays([keys, values], ["key", "value"])
            result = pa.LargeListArray.from_arrays(pa.array(offsets), pairs)
        return cast_column(result, field, faults)

    def _flat_header_values(
        self, records: Sequence[Sequence[tuple[str, bytes | None]]], faults: Faults
    ) -> pa.Array:
        if not self._header_text:
            data = [value for headers in records for _, value in headers]
            return pa.array(data, pa.large_binary())
        texts: list[str | None] = []
        for row, headers in enumerate(records):
            for key, value in headers:
                try:
                    texts.append(None if value is None else value.decode())
                except UnicodeDecodeError:
                    texts.append(None)
                    faults.note([row], f"the header {key!r} is not UTF-8 text")
        return pa.array(texts, pa.large_string())


def _columns_of_struct(
    source: SourcePlan, column: pa.Field, partitions: Sequence[TopicPartition]
) -> RecordColumns:
    """Build the columns for a struct's fields. Raises ``ConfigurationError`` for unknown parts."""
    names = [child.name for child in column.type] if pa_types.is_struct(column.type) else []
    if not names or not set(names) <= set(RECORD_PARTS):
        raise ConfigurationError(
            f"the column {column.name} cannot hold parts of records: it is {column.type}",
            f"use a struct with fields out of {', '.join(RECORD_PARTS)}",
        )
    parts = replace(source, record_columns={name: name for name in names})
    return RecordColumns(parts, pa.schema(list(column.type)), partitions)


def _flat_header_names(
    records: Sequence[Sequence[tuple[str, bytes | None]]], faults: Faults
) -> pa.Array:
    result = [name for headers in records for name, _ in headers]
    try:
        return pa.array(result, pa.large_string())
    except UnicodeEncodeError:
        for row, headers in enumerate(records):
            for name in {name for name, _ in headers if not _is_utf8(name)}:
                faults.note([row], f"the header name {printable_name(name)!r} is not UTF-8 text")
        return pa.array(map(printable_name, result), pa.large_string())


def printable_name(name: str) -> str:
    """Return a header's name, with ``\\xff`` and the like for its bytes that are not UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _is_utf8(name: str) -> bool:
    return not any("\udc80" <= character <= "\udcff" for character in name)


def _has_text_header_values(field: pa.Field) -> bool:
    """Return whether the column's header values are text, not bytes.

    Raises ``ConfigurationError`` for a type that cannot hold headers.
    """
    kind = field.type
    if pa_types.is_map(kind) and _is_text(kind.key_type):
        kind = kind.item_type
    elif (pa_types.is_list(kind) or pa_types.is_large_list(kind)) and pa_types.is_struct(
        kind.value_type
    ):
        inside = {child.name: child.type for child in kind.value_type}
        kind = inside["value"] if set(inside) == {"key", "value"} else None
    else:
        kind = None
    if kind is None or not (
        _is_text(kind) or pa_types.is_binary(kind) or pa_types.is_large_binary(kind)
    ):
        raise ConfigurationError(
            f"the column {field.name} cannot hold headers: it is {field.type}",
            "use map<string, binary>, map<string, string> or list<struct<key: string, "
            "value: binary>>",
        )
    return _is_text(kind)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_string(data_type) or pa_types.is_large_string(data_type))
