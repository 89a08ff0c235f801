"""Reads JSON as Kafka Connect writes it with schemas: ``{"schema": ..., "payload": ...}``.

The payload is read as its schema says, then converted to the columns by the rules of
``cast_to_table``. With a null schema, the payload follows the rules of plain JSON. The schema's
defaults are never used, so that an explicit null stays one.

Most records of a topic begin with the same bytes, their schema. It is parsed once. If a record
begins like that, the rest except for the last brace is the payload, provided that it is a single
JSON value. All other records are parsed whole.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.control_protocol.columns import Struct
from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.casting.cast_to_table import cast_rows
from headgate.data_plane.formats.casting.relabel import relabel_with_type, rows_from_python
from headgate.data_plane.formats.connect import schema_inference
from headgate.data_plane.formats.connect.arrow_schema import (
    arrow_type_of_schema,
    json_storage_type,
    nullable_fields_with_default,
    pruned_type,
)
from headgate.data_plane.formats.format_registry import require_known_options
from headgate.data_plane.formats.json import paths
from headgate.data_plane.formats.json import values as json_values
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import Faults, UndecodableRecords
from headgate.data_plane.formats.unknown_fields import UnknownColumns, UnknownFieldFinder
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags

_SCHEMA_KEY, _PAYLOAD_KEY = '{"schema":', ',"payload":'
_PREFIXES_MAX = 64
_WHOLE = "payload"
_NO_SCHEMA = "null"
_DECODER = json.JSONDecoder(object_pairs_hook=json_values.require_unique_keys)


class ConnectJsonRecords:
    """Reads values with a Connect schema each, and remembers the schemas. A ``RecordFormat``."""

    rules = column_options.EVERY
    keeps_nulls = "value.converter.replace.null.with.default=false"
    record_count_with_ignored_fields = 0

    def __init__(self, options: Mapping[str, str]) -> None:
        require_known_options(options)
        self._plain = JsonRecords()
        self._types: dict[str, pa.DataType | None] = {}
        self._columns: dict[str, Struct] = {}
        self._prefixes: dict[bytes, str] = {}
        self._last: dict[str, list[int]] = {}

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        groups: dict[str, tuple[list[int], list[bytes]]] = {}
        alone: list[int] = []
        values = list(values)
        for row, value in enumerate(values):
            prefix = self._find_or_learn_schema_prefix(value)
            if prefix is None:
                alone.append(row)
                continue
            rows, payloads = groups.setdefault(self._prefixes[prefix], ([], []))
            rows.append(row)
            payloads.append(value[len(prefix) : -1])
        collector = _RowCollector(schema)
        self._last = {text: list(rows) for text, (rows, _) in groups.items()}
        for text, (rows, payloads) in groups.items():
            bad = self._decode_into_collector(text, payloads, rows, collector)
            # Perhaps a record with more than the two fields in its envelope: the other way decides.
            alone.extend(bad)
        for text, (rows, payloads) in self._parse_payloads_by_schema(alone, values, faults).items():
            self._last[text] = sorted({*self._last.get(text, ()), *rows})
            for row, reason in self._decode_into_collector(text, payloads, rows, collector).items():
                faults.note([row], reason)
        return collector.rows_in_order_or_raise(faults)

    def decode_payloads(
        self, schema_text: str, payloads: Sequence[bytes], schema: pa.Schema
    ) -> pa.RecordBatch:
        """Return the rows of payloads that all have this schema. Raises as ``decode``."""
        collector, faults = _RowCollector(schema), Faults()
        rows = list(range(len(payloads)))
        for row, reason in self._decode_into_collector(
            schema_text, list(payloads), rows, collector
        ).items():
            faults.note([row], reason)
        return collector.rows_in_order_or_raise(faults)

    def flag_absent_field(self, values: Sequence[bytes], path: Sequence[pa.Field]) -> Flags:
        return paths.flag_absent_field(Packed.pack(values), path, outer_keys=(_WHOLE,))

    def watch_unknown_fields(self, finder: UnknownFieldFinder) -> None:
        self._finder = finder

    def unknown_columns_of_last_decode(
        self, values: Sequence[bytes], _bad_rows: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Compare with the schemas of what was decoded last, or with the payload's values."""
        for text, rows in self._last.items():
            if text == _NO_SCHEMA:
                yield from self._infer_unknown_columns(values, rows)
                continue
            wanted = self._finder.columns_needed_by_writer(self._columns_of_schema(text))
            if wanted.fields:
                yield np.array(rows, np.int64), schema_inference.with_default_precision(wanted)

    def nullable_fields_with_default(self, values: Sequence[bytes]) -> list[str]:
        """Return what ``nullable_fields_with_default`` says of the records' schemas."""
        return [
            *{
                name: None
                for value in values
                for name in nullable_fields_with_default(_schema_of(value))
            }
        ]

    def _columns_of_schema(self, schema_text: str) -> Struct:
        if schema_text not in self._columns:
            try:
                known = self.type_unless_null_schema(schema_text) is not None
            except ValueError:
                known = False  # its records are bad
            result = schema_inference.columns_of(json.loads(schema_text)) if known else Struct()
            self._columns[schema_text] = result
        return self._columns[schema_text]

    def _infer_unknown_columns(
        self, values: Sequence[bytes], rows: Iterable[int]
    ) -> Iterable[UnknownColumns]:
        result: dict[Struct, list[int]] = {}
        for row in rows:
            payload = json_values.parse_record(values[row])["payload"]
            if isinstance(payload, dict):
                result.setdefault(self._finder.columns_needed_by_record(payload), []).append(row)
        for wanted, some in result.items():
            if wanted.fields:
                yield np.array(some, np.int64), wanted

    def _find_or_learn_schema_prefix(self, value: bytes) -> bytes | None:
        if not value.endswith(b"}"):
            return None
        for prefix in self._prefixes:
            if value.startswith(prefix):
                return prefix
        learned = self._learn_schema_prefix(value)
        return learned if learned in self._prefixes else None

    def _learn_schema_prefix(self, value: bytes) -> bytes | None:
        """Return what precedes the payload, and remember it while there is room.

        Returns ``None`` if the value is written otherwise.
        """
        try:
            text = value.decode()
            if not text.startswith(_SCHEMA_KEY):
                return None
            schema, end = _DECODER.raw_decode(text, len(_SCHEMA_KEY))
        except (ValueError, RecursionError):
            return None
        end += len(_PAYLOAD_KEY)
        if not text[:end].endswith(_PAYLOAD_KEY) or not _is_struct(schema):
            return None
        prefix = text[:end].encode()
        if len(self._prefixes) < _PREFIXES_MAX:
            self._prefixes[prefix] = _schema_text_of(schema)
        return prefix

    def _parse_payloads_by_schema(
        self, rows: Sequence[int], values: Sequence[bytes], faults: Faults
    ) -> dict[str, tuple[list[int], list[bytes]]]:
        """Return the payloads of records that were parsed whole, by their schemas."""
        groups: dict[str, tuple[list[int], list[bytes]]] = {}
        for row in rows:
            try:
                record = json_values.parse_record(values[row])
                if "schema" not in record or "payload" not in record:
                    raise json_values.BadValue('is not {"schema": ..., "payload": ...}')
                payload = json_values.json_text(record["payload"]).encode("utf-8", "surrogatepass")
                some, payloads = groups.setdefault(_schema_text_of(record["schema"]), ([], []))
            except ValueError as error:
                faults.note([row], str(error))
                continue
            some.append(row)
            payloads.append(payload)
        return groups

    def _decode_into_collector(
        self, schema_text: str, payloads: list[bytes], rows: list[int], collector: _RowCollector
    ) -> dict[int, str]:
        """Take the payloads of one schema; return which rows are bad, and why."""
        try:
            kind = self.type_unless_null_schema(schema_text)
        except ValueError as error:
            return dict.fromkeys(rows, str(error))
        schema = collector.schema
        if kind is None:
            result, bad = _decode_json(self._plain, payloads, schema)
            return collector.add_part_and_map_bad_to_rows(result, rows, bad)
        kind = pruned_type(kind, schema)
        single = not pa_types.is_struct(kind)
        if single:
            kind = pa.struct([(_WHOLE, kind)])
            payloads = [b'{"%s":%s}' % (_WHOLE.encode(), payload) for payload in payloads]
        stored = pa.schema(list(json_storage_type(kind)))
        read, bad = _decode_json(self._plain, payloads, stored)
        records = relabel_with_type(read.to_struct_array(), kind)
        if single:
            records = records.field(0)
        faults = Faults()
        fit = cast_rows(records, schema, faults)
        left = [place for place in range(len(rows)) if place not in bad]
        if faults.reasons:
            good = np.ones(len(left), np.bool_)
            good[list(faults.reasons)] = False
            fit = fit.filter(pa.array(good))
            bad |= {left[place]: reason for place, reason in faults.reasons.items()}
        return collector.add_part_and_map_bad_to_rows(fit, rows, bad)

    def type_unless_null_schema(self, schema_text: str) -> pa.DataType | None:
        if schema_text not in self._types:
            try:
                result = json.loads(schema_text)
                json_values.require_shallow(schema_text, result)
                self._types[schema_text] = None if result is None else arrow_type_of_schema(result)
            except RecursionError as error:
                raise ValueError("a schema is nested too deeply") from error
        return self._types[schema_text]


def _schema_of(value: bytes) -> object:
    try:
        record = json.loads(value)
    except (ValueError, RecursionError):  # counted as unreadable
        return None
    return record.get("schema") if isinstance(record, dict) else None


class _RowCollector:
    """Gathers decoded parts of a batch, and their rows."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._parts = [rows_from_python([], schema)]
        self._rows: list[int] = []

    def add_part_and_map_bad_to_rows(
        self, part: pa.RecordBatch, rows: list[int], bad_places: Mapping[int, str]
    ) -> dict[int, str]:
        """Add ``part``, which lacks the bad rows; return why these are bad, by row."""
        self._parts.append(part)
        self._rows.extend(row for place, row in enumerate(rows) if place not in bad_places)
        return {rows[place]: reason for place, reason in bad_places.items()}

    def rows_in_order_or_raise(self, faults: Faults) -> pa.RecordBatch:
        """Return the rows in the records' order.

        Raises ``UndecodableRecords``, with these rows, if there are faults.
        """
        order = pa.array(np.argsort(np.array(self._rows, np.int64)))
        together = pa.concat_batches(self._parts).take(order)
        if faults.reasons:
            raise UndecodableRecords(faults.reasons, together)
        return together


def _decode_json(
    records: JsonRecords, payloads: list[bytes], schema: pa.Schema
) -> tuple[pa.RecordBatch, dict[int, str]]:
    try:
        return records.decode(payloads, schema), {}
    except UndecodableRecords as error:
        return error.rest, error.bad


def _is_struct(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "struct"


def _schema_text_of(schema: Any) -> str:
    return json_values.json_text(schema)
