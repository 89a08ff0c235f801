"""Implements the formats ``protobuf`` (one message type) and ``protobuf-registry``.

Fields go into columns by their names (``field_names``) and by the rules of ``cast_to_table``. A
missing field with presence is null. Any other missing field has the value that the writer means by
leaving it out: zero, no text, no items.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.errors import DescriptorUnfit
from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.casting.cast_to_table import cast_rows, drop_bad
from headgate.data_plane.formats.casting.relabel import rows_from
from headgate.data_plane.formats.format_registry import suggestion, take_options
from headgate.data_plane.formats.protobuf.columns import Reader
from headgate.data_plane.formats.protobuf.decoder import Broken, varint
from headgate.data_plane.formats.protobuf.descriptors import (
    Message,
    Types,
    UnfitTypes,
    files_of,
    types_of,
)
from headgate.data_plane.formats.protobuf.schema_inference import columns_of
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.formats.schema_registry import NoSuchSchema, SchemaRegistry
from headgate.data_plane.formats.unknown_fields import UnknownColumns, UnknownFieldFinder
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags, Integers

_MAGIC = 0
_ID_BYTES = 5
_INDEXES_MAX = 32
_VALUE_BYTES_MAX = 2**31


class ProtobufRecords:
    """Reads bare messages of one type. A ``RecordFormat``.

    Options: ``descriptor``, a descriptor set in base64 with all its imports; ``message``, the full
    name of the type.
    """

    rules = column_options.EVERY
    records_with_ignored_fields = 0

    def __init__(self, options: Mapping[str, str]) -> None:
        taken = take_options(options, required=["descriptor", "message"])
        try:
            raw = base64.b64decode(taken["descriptor"], validate=True)
        except binascii.Error as error:
            raise DescriptorUnfit(
                "format.options descriptor is not base64",
                "write ${base64:PATH} with what protoc --include_imports --descriptor_set_out made",
            ) from error
        try:
            types = types_of(files_of(raw))
        except UnfitTypes as error:
            raise DescriptorUnfit(f"format.options descriptor: {error}") from error
        wanted = taken["message"]
        if wanted not in types.messages:
            raise DescriptorUnfit(
                f"format.options descriptor has no message {wanted!r}",
                suggestion(wanted, set(types.messages)).lstrip("; ") or "use its full name",
            )
        self._kind = types.message(wanted)
        self._columns = columns_of(types, self._kind)
        self._reader = Reader(types)

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        try:
            read = self._reader.records(values, self._kind, list(schema), faults)
        except UnfitTypes as error:
            raise DescriptorUnfit(
                f"{self._kind.name}: {error}", "take the column out, or declare it as a struct"
            ) from error
        return drop_bad(cast_rows(read, schema, faults), faults)

    def missing(self, values: Sequence[bytes], _: Sequence[pa.Field]) -> Flags:
        """Return missing fields; the wire has no nulls, so a null is missing."""
        return np.ones(len(values), np.bool_)

    def watch(self, finder: UnknownFieldFinder) -> None:
        self._finder = finder

    def unknown_columns(
        self, values: Sequence[bytes], _bad: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Compare with the descriptor; the messages are not looked at."""
        wanted = self._finder.of_columns(self._columns)
        if wanted.fields and len(values):
            yield np.arange(len(values), dtype=np.int64), wanted


class RegistryProtobufRecords:
    """Reads a zero byte, a schema id in four bytes, message indexes, and the message.

    The indexes locate the message type in its file. Options ``registry.*`` as with
    ``avro-registry``.
    """

    rules = column_options.EVERY
    records_with_ignored_fields = 0

    def __init__(self, options: Mapping[str, str]) -> None:
        prefix = "registry."
        take_options({name: options[name] for name in options if not name.startswith(prefix)})
        self._registry = SchemaRegistry(
            {name.removeprefix(prefix): value for name, value in options.items()}
        )
        self._fronts: list[tuple[bytes, Integers]] = []

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        parts: list[pa.RecordBatch] = [rows_from([], schema)]
        order: list[Integers] = [np.zeros(0, np.int64)]
        self._fronts = []
        for front, rows, some in _by_front(Packed.pack(values)):
            self._fronts.append((front, rows))
            own = Faults()
            parts.append(self._part(front, some, schema, own))
            order.append(rows)
            for row, reason in own.reasons.items():
                faults.note([rows[row]], reason)
        together = pa.concat_batches(parts)
        places = np.concatenate(order)
        if len(parts) > 2:
            together = together.take(pa.array(np.argsort(places)))
        return drop_bad(together, faults)

    missing = ProtobufRecords.missing

    def watch(self, finder: UnknownFieldFinder) -> None:
        self._finder = finder

    def unknown_columns(
        self, _values: Sequence[bytes], _bad: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Compare with the writers' schemas of what was decoded last, each once per chunk."""
        for front, rows in self._fronts:
            try:
                types, kind = self._writer(front)
            except (NoSuchSchema, UnfitTypes):
                continue
            wanted = self._finder.of_columns(columns_of(types, kind))
            if wanted.fields:
                yield rows, wanted

    def _part(
        self, front: bytes, values: Packed, schema: pa.Schema, faults: Faults
    ) -> pa.RecordBatch:
        try:
            types, kind = self._writer(front)
            return cast_rows(
                Reader(types).records(values, kind, list(schema), faults), schema, faults
            )
        except (NoSuchSchema, UnfitTypes) as error:
            faults.note(range(len(values)), str(error))
        columns = [pa.nulls(len(values), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _writer(self, front: bytes) -> tuple[Types, Message]:
        if len(front) <= _ID_BYTES or front[0] != _MAGIC:
            raise NoSuchSchema(
                "does not begin with a zero byte, a schema id of four bytes and message indexes"
            )
        types, file = self._registry.types(int.from_bytes(front[1:_ID_BYTES], "big"))
        return types, types.at(file, _indexes(front)[0])


def _indexes(value: bytes) -> tuple[list[int], int]:
    """Return the message indexes that follow the id, and where they end. Raises ``Broken``."""
    count, at = _zigzag(value, _ID_BYTES)
    if not count:
        return [0], at
    if not 0 < count <= _INDEXES_MAX:
        raise Broken
    result = []
    for _ in range(count):
        place, at = _zigzag(value, at)
        result.append(place)
    return result, at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number, behind = varint(value, at, len(value))
    return number >> 1 ^ -(number & 1), behind


def _by_front(values: Packed) -> Iterator[tuple[bytes, Integers, Packed]]:
    """Group values with the same prefix: yield it, their indexes, and what follows it."""
    data = values.array
    if not len(values):
        return
    sizes = _front_sizes(values)
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        some = data.take(pa.array(rows)) if len(rows) < len(values) else data
        fronts = pc.binary_slice(some, 0, size or _ID_BYTES).dictionary_encode()
        # With an end: without one, Arrow's calculation of the result's size overflows.
        behind = pc.binary_slice(some, size, _VALUE_BYTES_MAX)
        codes = np.asarray(fronts.indices)
        if not size:  # no prefix at all
            yield b"", rows, Packed(behind)
            continue
        for code, front in enumerate(fronts.dictionary):
            chosen = np.flatnonzero(codes == code)
            yield front.as_py(), rows[chosen], Packed(behind.take(pa.array(chosen)))


def _front_sizes(values: Packed) -> Integers:
    """Return how many bytes precede each message; 0 if unknown."""
    raw, ends = values.join_with(b"\0" * (_ID_BYTES + 2))
    begins = np.roll(ends, 1)
    begins[:1] = 0
    data = np.frombuffer(raw, np.uint8)
    lengths = ends - begins
    counts = data[begins + _ID_BYTES]
    sizes = np.where((counts == 0) & (lengths > _ID_BYTES), _ID_BYTES + 1, 0).astype(np.int64)
    # One index of one byte: a message at the top of its file that is not the first.
    single = (counts == 2) & (lengths > _ID_BYTES + 1) & (data[begins + _ID_BYTES + 1] < 0x80)
    sizes[single] = _ID_BYTES + 2
    for row in np.flatnonzero(sizes == 0).tolist():
        try:
            sizes[row] = _indexes(values[row])[1]
        except Broken:
            sizes[row] = 0
    return sizes
