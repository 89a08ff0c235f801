"""Cuts the frame off values: what in front of them names their writer's schema.

Confluent's framing is a zero byte and an id of four bytes, or a one and a GUID of 16 bytes. Before
a Protobuf message come the indexes that locate its type. Serializers may put the same bytes into a
header instead. AWS Glue's is a three, a byte for the compression, and the UUID of a schema version.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.data_plane.formats.protobuf.decoder import Broken, read_varint
from headgate.kafka.record_samples import HeadersByName, KeyAndValue, Reading
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Integers

ID, GUID = 0, 1
CONTENT_ID, GLOBAL_ID = IDS_OF_HEADERS = ord("c"), ord("g")
"""What goes before an id of Apicurio's in a header, which has two spaces of them."""
_APICURIO_ID_BYTES = 8
_ID_BYTES = {
    ID: 5,
    GUID: 17,
    CONTENT_ID: 1 + _APICURIO_ID_BYTES,
    GLOBAL_ID: 1 + _APICURIO_ID_BYTES,
}
_INDEXES_MAX = 32
_VALUE_BYTES_MAX = 2**31

Part = tuple[bytes, Integers, Packed]
"""A frame, the indexes of the values that have it, and what follows it."""


# ------------------------------------------------------------------------------------------ headers

FRAMING = "framing"
CONFLUENT, CONFLUENT_HEADER, APICURIO_HEADER = "confluent", "confluent-header", "apicurio-header"
FRAMINGS = (CONFLUENT, CONFLUENT_HEADER, APICURIO_HEADER)


def schema_id_headers_of(options: Mapping[str, str], key_or_value: str) -> IdHeaders:
    """Return the headers with the id of a record's ``"key"`` or ``"value"``."""
    return {
        CONFLUENT_HEADER: IdHeaders({f"__{key_or_value}_schema_id": b""}),
        APICURIO_HEADER: IdHeaders(
            {
                f"apicurio.{key_or_value}.contentId": bytes([CONTENT_ID]),
                f"apicurio.{key_or_value}.globalId": bytes([GLOBAL_ID]),
            }
        ),
    }.get(options.get(FRAMING, CONFLUENT), IdHeaders({}))


@dataclass(frozen=True, slots=True)
class IdHeaders:
    """Headers of which one holds an id, by name, and what goes before the id in a frame."""

    names: Mapping[str, bytes]

    def __bool__(self) -> bool:
        return bool(self.names)

    def framed_value(self, value: bytes | None, headers: HeadersByName) -> bytes | None:
        """Return the value behind the frame that its header holds; without a header as it is.

        Only headers say that an id is one of Apicurio's: no value may begin as if one had.
        """
        if value is None:
            return None
        for name, kind in self.names.items():
            header = headers.get(name)
            if header is not None:
                whole = not kind or len(header) == _APICURIO_ID_BYTES
                return kind + header + value if whole else b""
        return b"" if value[:1] in self.names.values() else value

    def framed_values(
        self, values: Packed, headers: Sequence[Sequence[tuple[str, bytes | None]] | None] | None
    ) -> Packed:
        """Return the values, each behind the frame in its record's last header of a name."""
        if headers is None or not self.names:
            return values
        known = (dict(some or ()) for some in headers)
        return Packed.from_values(map(self.framed_value, values, known))


def framer_of_keys_and_values(
    options: Mapping[str, str], key_options: Mapping[str, str]
) -> Reading:
    """Return what takes a record's key and value as formats with these options read them."""
    of_values, of_keys = (
        schema_id_headers_of(options, "value"),
        schema_id_headers_of(key_options, "key"),
    )

    def frame_key_and_value(record: KeyAndValue, headers: HeadersByName) -> KeyAndValue:
        key, value = record
        return of_keys.framed_value(key, headers), of_values.framed_value(value, headers)

    return frame_key_and_value


# ------------------------------------------------------------------------------------------- values


def split_by_frame(values: Sequence[bytes]) -> Iterator[Part]:
    """Group values with the same frame. One without any known frame has what is there instead."""
    data = Packed.pack(values).array
    yield from _split_by_frame_of_size(data, np.arange(len(data), dtype=np.int64), _ID_BYTES[ID])


def _split_by_frame_of_size(data: pa.Array, rows: Integers, size: int) -> Iterator[Part]:
    fronts = pc.binary_slice(data, 0, size).dictionary_encode()
    codes = np.asarray(fronts.indices)
    if len(fronts.dictionary) == 1 and _frame_size_of(fronts.dictionary[0].as_py()) == size:
        yield fronts.dictionary[0].as_py(), rows, Packed(_data_behind_frame(data, size))
        return
    longer: dict[int, list[Integers]] = {}
    for code, front in enumerate(fronts.dictionary.to_pylist()):
        chosen = np.flatnonzero(codes == code)
        needed = _frame_size_of(front)
        if needed > size:
            longer.setdefault(needed, []).append(chosen)
            continue
        some = data.take(pa.array(chosen))
        yield front, rows[chosen], Packed(_data_behind_frame(some, size))
    for needed, parts in longer.items():
        chosen = np.sort(np.concatenate(parts))
        yield from _split_by_frame_of_size(data.take(pa.array(chosen)), rows[chosen], needed)


def _frame_size_of(front: bytes) -> int:
    """Return how long a frame is that begins with these bytes."""
    return _ID_BYTES.get(front[0], _ID_BYTES[ID]) if front else _ID_BYTES[ID]


def _data_behind_frame(data: pa.Array, size: int) -> pa.Array:
    # With an end: without one, Arrow's calculation of the result's size overflows.
    return pc.binary_slice(data, size, _VALUE_BYTES_MAX)


def schema_id_of(frame: bytes) -> bytes:
    """Return the part of a frame that names the schema; empty if it has none."""
    size = _ID_BYTES.get(frame[0], 0) if frame else 0
    return frame[:size] if len(frame) >= size else b""


# ----------------------------------------------------------------------------------------- messages


def split_by_message_frame(values: Sequence[bytes]) -> Iterator[Part]:
    """Group Protobuf messages with the same frame, which includes their indexes."""
    packed = Packed.pack(values)
    yield from _split_by_sizes(packed, _message_frame_sizes(packed)) if len(packed) else ()


def _split_by_sizes(values: Packed, sizes: Integers) -> Iterator[Part]:
    """Group values with the same first bytes; ``sizes``: how many of each, 0 for no frame."""
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        some = values.array.take(pa.array(rows)) if len(rows) < len(values) else values.array
        if not size:
            yield b"", rows, Packed(some)
            continue
        fronts = pc.binary_slice(some, 0, size).dictionary_encode()
        behind = _data_behind_frame(some, size)
        codes = np.asarray(fronts.indices)
        for code, front in enumerate(fronts.dictionary.to_pylist()):
            chosen = np.flatnonzero(codes == code)
            yield front, rows[chosen], Packed(behind.take(pa.array(chosen)))


def message_indexes_of(frame: bytes) -> list[int]:
    """Return the message indexes that follow the id. Raises ``Broken``."""
    return _read_message_indexes(frame, _ID_BYTES[frame[0]])[0]


def _message_frame_sizes(values: Packed) -> Integers:
    """Return how many bytes precede each message; without indexes those of its id, or 0."""
    raw, ends = values.concat_with_tail(b"\0" * (_ID_BYTES[GUID] + 2))
    begins = np.roll(ends, 1)
    begins[:1] = 0
    data = np.frombuffer(raw, np.uint8)
    lengths = ends - begins
    ids = np.where(data[begins] == GUID, _ID_BYTES[GUID], _ID_BYTES[ID])
    counts = data[begins + ids]
    sizes = np.where((counts == 0) & (lengths > ids), ids + 1, 0).astype(np.int64)
    # One index of one byte: a message at the top of its file that is not the first.
    single = (counts == 2) & (lengths > ids + 1) & (data[begins + ids + 1] < 0x80)
    sizes[single] = ids[single] + 2
    for row in np.flatnonzero(sizes == 0).tolist():
        try:
            sizes[row] = _read_message_indexes(values[row], int(ids[row]))[1]
        except Broken:
            sizes[row] = len(schema_id_of(values[row][: ids[row]]))
    return sizes


def _read_message_indexes(value: bytes, at: int) -> tuple[list[int], int]:
    """Return the message indexes that stand here, and where they end. Raises ``Broken``."""
    count, at = _read_zigzag(value, at)
    if not count:
        return [0], at
    if not 0 < count <= _INDEXES_MAX:
        raise Broken
    result = []
    for _ in range(count):
        place, at = _read_zigzag(value, at)
        result.append(place)
    return result, at


def _read_zigzag(value: bytes, at: int) -> tuple[int, int]:
    number, behind = read_varint(value, at, len(value))
    return number >> 1 ^ -(number & 1), behind


# ------------------------------------------------------------------------------------------- Glue

GLUE = "glue"
_GLUE_PLAIN, _GLUE_DEFLATED = b"\x03\x00", b"\x03\x05"
_GLUE_BYTES = 18
NO_FRAME, BROKEN_DATA, TOO_LONG = b"", b"\x00", b"\x01"
"""Instead of a frame: what is wrong with these values."""

_INFLATED_BYTES_MAX = 20 * 1024 * 1024
_INFLATED_FACTOR_MAX = 200
_INFLATED_SMALL_BYTES = 64 * 1024
"""A value may have so many bytes in any case: a few kilobytes of zeros are no attack."""


def has_glue_frame(value: bytes) -> bool:
    """Return whether the value begins as those of AWS Glue's serializers."""
    return value[:2] in (_GLUE_PLAIN, _GLUE_DEFLATED) and len(value) >= _GLUE_BYTES


def inflate_and_split_by_version(values: Sequence[bytes]) -> Iterator[Part]:
    """Group values by a three and their schema version's UUID; what was compressed no more is."""
    data = Packed.pack(values).array
    heads = pc.binary_slice(data, 0, len(_GLUE_PLAIN))
    whole = pc.greater_equal(pc.binary_length(data), _GLUE_BYTES)
    plain = _rows_where_both(whole, pc.equal(heads, pa.scalar(_GLUE_PLAIN, pa.large_binary())))
    deflated = _rows_where_both(
        whole, pc.equal(heads, pa.scalar(_GLUE_DEFLATED, pa.large_binary()))
    )
    bodies = _data_behind_frame(data.take(pa.array(deflated)), _GLUE_BYTES).to_pylist()
    found = [_inflate_or_fault(body) for body in bodies]
    bad: dict[bytes, list[int]] = {}
    for row, (_, wrong) in zip(deflated.tolist(), found, strict=True):
        if wrong:
            bad.setdefault(wrong, []).append(row)
    unframed = np.ones(len(data), np.bool_)
    unframed[plain] = unframed[deflated] = False
    bad[NO_FRAME] = np.flatnonzero(unframed).tolist()
    for wrong, listed in bad.items():
        if listed:
            yield wrong, np.array(listed, np.int64), Packed(data.take(pa.array(listed)))
    good = np.array([not wrong for _, wrong in found], np.bool_)
    inflated = pa.array([body for body, wrong in found if not wrong], pa.large_binary())
    rows = np.append(plain, deflated[good])
    order = np.argsort(rows)
    rows = rows[order]
    behind = pa.concat_arrays(
        [_data_behind_frame(data.take(pa.array(plain)), _GLUE_BYTES), inflated]
    )
    behind = behind.take(pa.array(order))
    ids = pc.binary_slice(data.take(pa.array(rows)), len(_GLUE_PLAIN), _GLUE_BYTES)
    versions = ids.dictionary_encode()
    codes = np.asarray(versions.indices)
    for code, version in enumerate(versions.dictionary.to_pylist()):
        chosen = np.flatnonzero(codes == code)
        yield _GLUE_PLAIN[:1] + version, rows[chosen], Packed(behind.take(pa.array(chosen)))


def _rows_where_both(one: pa.Array, other: pa.Array) -> Integers:
    return np.flatnonzero(pc.and_(one, other).to_numpy(zero_copy_only=False))


def _inflate_or_fault(body: bytes) -> tuple[bytes, bytes]:
    """Return what was compressed, and what is wrong with it. Never reads more than it may."""
    most = min(_INFLATED_BYTES_MAX, max(_INFLATED_SMALL_BYTES, _INFLATED_FACTOR_MAX * len(body)))
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(body, most + 1)
    except zlib.error:
        return b"", BROKEN_DATA
    if len(found) > most:
        return b"", TOO_LONG
    return found, b"" if inflater.eof and not inflater.unused_data else BROKEN_DATA


def split_by_message_number(values: Sequence[bytes]) -> Iterator[Part]:
    """Group messages by the number of their type, which Glue's serializers put in front."""
    packed = Packed.pack(values)
    raw, ends = packed.concat_with_tail(b"\x80")
    begins = np.roll(ends, 1)
    begins[:1] = 0
    small = np.frombuffer(raw, np.uint8)[begins] < 0x80
    sizes = (small & (ends > begins)).astype(np.int64)
    for row in np.flatnonzero(sizes == 0).tolist():
        value = packed[row]
        try:
            sizes[row] = read_varint(value, 0, len(value))[1]
        except Broken:
            sizes[row] = 0
    yield from _split_by_sizes(packed, sizes) if len(packed) else ()


def message_number_of(frame: bytes) -> int:
    """Return the number in a frame of ``split_by_message_number``. Raises ``Broken``."""
    return read_varint(frame, 0, len(frame))[0]
