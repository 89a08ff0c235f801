"""Cuts the frame off values: what in front of them names their writer's schema.

Confluent's framing is a zero byte and an id of four bytes, or a one and a GUID of 16 bytes. Before
a Protobuf message come the indexes that locate its type. Serializers may put the same bytes into a
header instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.data_plane.formats.protobuf.decoder import Broken, varint
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Integers

ID, GUID = 0, 1
_ID_BYTES = {ID: 5, GUID: 17}
_INDEXES_MAX = 32
_VALUE_BYTES_MAX = 2**31

Part = tuple[bytes, Integers, Packed]
"""A frame, the indexes of the values that have it, and what follows it."""


# ------------------------------------------------------------------------------------------ headers

FRAMING = "framing"
CONFLUENT, CONFLUENT_HEADER, APICURIO_HEADER = "confluent", "confluent-header", "apicurio-header"
FRAMINGS = (CONFLUENT, CONFLUENT_HEADER, APICURIO_HEADER)


def header_of(options: Mapping[str, str], part: str) -> str:
    """Return the name of the header with the id of a record's ``part``: value, or key."""
    return {
        CONFLUENT_HEADER: f"__{part}_schema_id",
        APICURIO_HEADER: f"apicurio.{part}.contentId",
    }.get(options.get(FRAMING, CONFLUENT), "")


def with_frame(value: bytes | None, header: bytes | None) -> bytes | None:
    """Return the value behind the frame that its header holds; without a header as it is.

    Apicurio's header is a number of eight bytes. One that cannot be an id here frames nothing, and
    the record is bad.
    """
    if value is None or header is None:
        return value
    if len(header) == 8:
        return b"\x00" + header[4:] + value if header[:4] == bytes(4) else b""
    return header + value


def with_frames(
    values: Packed, headers: Sequence[Sequence[tuple[str, bytes | None]] | None] | None, name: str
) -> Packed:
    """Return the values, each behind the frame in its record's last header of this name."""
    if headers is None:
        return values
    found = (
        next((value for known, value in reversed(some or ()) if known == name), None)
        for some in headers
    )
    return Packed.of(with_frame(value, header) for value, header in zip(values, found, strict=True))


# ------------------------------------------------------------------------------------------- values


def by_frame(values: Sequence[bytes]) -> Iterator[Part]:
    """Group values with the same frame. One without any known frame has what is there instead."""
    data = Packed.pack(values).array
    yield from _split(data, np.arange(len(data), dtype=np.int64), _ID_BYTES[ID])


def _split(data: pa.Array, rows: Integers, size: int) -> Iterator[Part]:
    fronts = pc.binary_slice(data, 0, size).dictionary_encode()
    codes = np.asarray(fronts.indices)
    if len(fronts.dictionary) == 1 and _size_of(fronts.dictionary[0].as_py()) == size:
        yield fronts.dictionary[0].as_py(), rows, Packed(_behind(data, size))
        return
    longer: dict[int, list[Integers]] = {}
    for code, front in enumerate(fronts.dictionary.to_pylist()):
        chosen = np.flatnonzero(codes == code)
        needed = _size_of(front)
        if needed > size:
            longer.setdefault(needed, []).append(chosen)
            continue
        some = data.take(pa.array(chosen))
        yield front, rows[chosen], Packed(_behind(some, size))
    for needed, parts in longer.items():
        chosen = np.sort(np.concatenate(parts))
        yield from _split(data.take(pa.array(chosen)), rows[chosen], needed)


def _size_of(front: bytes) -> int:
    """Return how long a frame is that begins so."""
    return _ID_BYTES.get(front[0], _ID_BYTES[ID]) if front else _ID_BYTES[ID]


def _behind(data: pa.Array, size: int) -> pa.Array:
    # With an end: without one, Arrow's calculation of the result's size overflows.
    return pc.binary_slice(data, size, _VALUE_BYTES_MAX)


def id_of(front: bytes) -> bytes:
    """Return the part of a frame that names the schema; empty if it has none."""
    size = _ID_BYTES.get(front[0], 0) if front else 0
    return front[:size] if len(front) >= size else b""


# ----------------------------------------------------------------------------------------- messages


def by_message_frame(values: Sequence[bytes]) -> Iterator[Part]:
    """Group Protobuf messages with the same frame, which includes their indexes."""
    packed = Packed.pack(values)
    if not len(packed):
        return
    data, sizes = packed.array, _frame_sizes(packed)
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        some = data.take(pa.array(rows)) if len(rows) < len(packed) else data
        fronts = pc.binary_slice(some, 0, size or _ID_BYTES[ID]).dictionary_encode()
        behind = _behind(some, size)
        codes = np.asarray(fronts.indices)
        if not size:  # no prefix at all
            yield b"", rows, Packed(behind)
            continue
        for code, front in enumerate(fronts.dictionary.to_pylist()):
            chosen = np.flatnonzero(codes == code)
            yield front, rows[chosen], Packed(behind.take(pa.array(chosen)))


def indexes_of(front: bytes) -> list[int]:
    """Return the message indexes that follow the id. Raises ``Broken``."""
    return _indexes(front, _ID_BYTES[front[0]])[0]


def _frame_sizes(values: Packed) -> Integers:
    """Return how many bytes precede each message; 0 if unknown."""
    raw, ends = values.join_with(b"\0" * (_ID_BYTES[GUID] + 2))
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
            sizes[row] = _indexes(values[row], int(ids[row]))[1]
        except Broken:
            sizes[row] = 0
    return sizes


def _indexes(value: bytes, at: int) -> tuple[list[int], int]:
    """Return the message indexes that stand here, and where they end. Raises ``Broken``."""
    count, at = _zigzag(value, at)
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
