"""Implements the formats ``avro`` (one fixed writer schema) and ``avro-registry`` (an id each).

The writer's fields go into columns by their names (``field_names``) and by the rules of
``cast_to_table``. A column that the writer does not have is null, or the record is bad if the
column is required. The schema's defaults are never used, so that an explicit null stays one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.avro.columns import read_values
from headgate.data_plane.formats.avro.schema import (
    Avro,
    UnfitSchema,
    defaulted_fields,
    parse_schema,
)
from headgate.data_plane.formats.avro.schema_inference import columns_of
from headgate.data_plane.formats.casting.cast_to_table import cast_rows, drop_bad, missing
from headgate.data_plane.formats.casting.relabel import rows_from
from headgate.data_plane.formats.format_registry import take_options
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.formats.schema_registry import NoSuchSchema, SchemaRegistry
from headgate.data_plane.formats.unknown_fields import UnknownColumns, UnknownFieldFinder
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags, Integers

_PREFIX_BYTES = 5
_MAGIC = 0
_VALUE_BYTES_MAX = 2**31


def _rows(values: Sequence[bytes], kind: Avro, schema: pa.Schema, faults: Faults) -> pa.RecordBatch:
    return cast_rows(read_values(values, kind, list(schema), faults), schema, faults)


def _missing(values: Sequence[bytes], kind: Avro, path: Sequence[pa.Field]) -> Flags:
    wanted = path[-1]
    for field in reversed(path[:-1]):
        wanted = field.with_type(pa.struct([wanted]))
    return missing(read_values(values, kind, [wanted], Faults()), path)


class AvroRecords:
    """Reads bare Avro values, all written with the option ``schema``. A ``RecordFormat``."""

    rules = column_options.EVERY
    records_with_ignored_fields = 0

    def __init__(self, options: Mapping[str, str]) -> None:
        text = take_options(options, required=["schema"])["schema"]
        self._kind = parse_schema(text)

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        return drop_bad(_rows(values, self._kind, schema, faults), faults)

    def missing(self, values: Sequence[bytes], path: Sequence[pa.Field]) -> Flags:
        return _missing(values, self._kind, path)

    def watch(self, finder: UnknownFieldFinder) -> None:
        self._finder = finder

    def unknown_columns(
        self, values: Sequence[bytes], _bad: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Compare with the writer's schema; the values are not looked at."""
        wanted = self._finder.of_columns(columns_of(self._kind))
        if wanted.fields and len(values):
            yield np.arange(len(values), dtype=np.int64), wanted

    def record_names(self, values: Sequence[bytes]) -> tuple[Integers, Sequence[str]]:
        """Return, for each value, the index of its record's full name; -1 if it is not a record."""
        code = 0 if self._kind.called else -1
        return np.full(len(values), code, np.int64), (self._kind.called,)


class RegistryAvroRecords:
    """Reads a zero byte, the writer schema's id in four bytes, and the Avro value.

    Options ``registry.*`` are the client's own (``registry.url`` is required). An id that the
    registry does not know makes its records bad; a registry that does not answer fails the batch,
    which is retried.
    """

    rules = column_options.EVERY
    keeps_nulls = "value.converter.ignore.default.for.nullables=true"
    records_with_ignored_fields = 0

    def __init__(self, options: Mapping[str, str]) -> None:
        prefix = "registry."
        foreign = sorted(name for name in options if not name.startswith(prefix))
        take_options({name: options[name] for name in foreign})
        self._registry = SchemaRegistry(
            {name.removeprefix(prefix): value for name, value in options.items()}
        )

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        grouped = list(_by_prefix(values))
        groups = [rows for _, rows, _ in grouped]
        parts = [self._part(prefix, some, schema) for prefix, _, some in grouped]
        for rows, (_, result) in zip(groups, parts, strict=True):
            for row, reason in result.reasons.items():
                faults.note([rows[row]], reason)
        if len(parts) == 1:
            return drop_bad(parts[0][0], faults)
        empty = rows_from([], schema)
        together = pa.concat_batches([empty, *(rows for rows, _ in parts)])
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *groups]))
        return drop_bad(together.take(pa.array(order)), faults)

    def missing(self, values: Sequence[bytes], path: Sequence[pa.Field]) -> Flags:
        result = np.zeros(len(values), np.bool_)
        for prefix, rows, some in _by_prefix(values):
            result[rows] = _missing(some, self._writer(prefix), path)
        return result

    def watch(self, finder: UnknownFieldFinder) -> None:
        self._finder = finder

    def unknown_columns(
        self, values: Sequence[bytes], _bad: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Compare with the writers' schemas, each looked at once per chunk."""
        data = Packed.pack(values).array
        prefixes = pc.binary_slice(data, 0, _PREFIX_BYTES).dictionary_encode()
        codes = np.asarray(prefixes.indices)
        for code, prefix in enumerate(prefixes.dictionary.to_pylist()):
            try:
                written = columns_of(self._writer(prefix))
            except (NoSuchSchema, UnfitSchema):
                continue
            wanted = self._finder.of_columns(written)
            if wanted.fields:
                yield np.flatnonzero(codes == code), wanted

    def defaulted_fields(self, values: Sequence[bytes]) -> list[str]:
        """Return what the writers' schemas say (``avro_schema.defaulted_fields``)."""
        result: dict[str, None] = {}
        for prefix in dict.fromkeys(value[:_PREFIX_BYTES] for value in values):
            with suppress(NoSuchSchema, UnfitSchema):  # counted as unreadable
                result.update(dict.fromkeys(defaulted_fields(self._writer(prefix))))
        return [*result]

    def record_names(self, values: Sequence[bytes]) -> tuple[Integers, Sequence[str]]:
        """Do the same as ``AvroRecords``; without a schema in the registry there is no name."""
        codes, names = np.full(len(values), -1, np.int64), list[str]()
        for prefix, rows, _ in _by_prefix(values):
            try:
                called = self._writer(prefix).called
            except (NoSuchSchema, UnfitSchema):
                continue
            if called:
                codes[rows] = len(names)
                names.append(called)
        return codes, names

    def _part(
        self, prefix: bytes, values: Sequence[bytes], schema: pa.Schema
    ) -> tuple[pa.RecordBatch, Faults]:
        faults = Faults()
        try:
            return _rows(values, self._writer(prefix), schema, faults), faults
        except (NoSuchSchema, UnfitSchema) as error:
            faults.note(range(len(values)), str(error))
        columns = [pa.nulls(len(values), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema), faults

    def _writer(self, prefix: bytes) -> Avro:
        if len(prefix) < _PREFIX_BYTES or prefix[0] != _MAGIC:
            raise NoSuchSchema("does not begin with a zero byte and a schema id of four bytes")
        return self._registry.schema(int.from_bytes(prefix[1:], "big"))


def _by_prefix(
    values: Sequence[bytes],
) -> Iterator[tuple[bytes, np.ndarray[tuple[int], np.dtype[np.int64]], Packed]]:
    """Group values with the same prefix: yield it, their indexes, and what follows it."""
    data = Packed.pack(values).array
    prefixes = pc.binary_slice(data, 0, _PREFIX_BYTES).dictionary_encode()
    # With an end: without one, Arrow's calculation of the result's size overflows.
    behind = pc.binary_slice(data, _PREFIX_BYTES, _VALUE_BYTES_MAX)
    codes = np.asarray(prefixes.indices)
    for code, prefix in enumerate(prefixes.dictionary):
        rows = np.flatnonzero(codes == code)
        yield prefix.as_py(), rows, Packed(behind.take(pa.array(rows)))
