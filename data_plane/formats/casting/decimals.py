"""Casts decimals to columns, and reads them as Avro and Connect write them.

Those write big-endian two's complement, and a scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.native.kernels import Integers

_WIDTH = 16
_DIGITS_MAX = 38
_LIMIT = 10**_DIGITS_MAX
_HIGH_MAX = _LIMIT >> 64

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Positions = np.ndarray[Any, np.dtype[np.int64]]


def cast_to_decimals(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast decimals, or their texts without exponents, to a column's precision and scale.

    Raises what Arrow raises if one does not fit.
    """
    kind = values.type
    digits, scale = (kind.precision, kind.scale) if pa_types.is_decimal(kind) else (_DIGITS_MAX, 0)
    # To add decimal places, Arrow multiplies in 128 bits. A product that wraps around may look
    # like a number that fits, and it is another one. Twice the digits hold any product.
    if min(digits, target.precision) + target.scale - scale > _DIGITS_MAX:
        values = values.cast(pa.decimal256(2 * _DIGITS_MAX, target.scale))
    return values.cast(target)


class DecodedDecimals(NamedTuple):
    """Holds numbers, and flags of those that exceed 38 digits."""

    numbers: pa.Array
    too_wide: Flags


def decode_decimals(
    data: ByteArray, begins: Positions, lengths: Positions, scale: int
) -> DecodedDecimals:
    """Return the numbers at these places; no bytes are zero."""
    places = (begins + lengths - _WIDTH)[:, None] + np.arange(_WIDTH)
    inside = places >= begins[:, None]
    data = data if len(data) else np.zeros(1, np.uint8)
    digits = data[np.where(inside, places, 0)]
    leading = data[np.minimum(begins, len(data) - 1)]
    negative = (lengths > 0) & (leading >= 128)
    digits = np.where(inside, digits, np.where(negative, 255, 0)[:, None]).astype(np.uint8)
    numbers = np.ascontiguousarray(digits[:, ::-1])
    high = numbers.view("<i8")[:, 1]
    wide = (lengths > _WIDTH) | (high >= _HIGH_MAX) | (high < -_HIGH_MAX)
    for row in np.flatnonzero(wide).tolist():
        begin, length = int(begins[row]), int(lengths[row])
        number = int.from_bytes(data[begin : begin + length].tobytes(), "big", signed=True)
        wide[row] = abs(number) >= _LIMIT
        number = 0 if wide[row] else number
        numbers[row] = np.frombuffer(number.to_bytes(_WIDTH, "little", signed=True), np.uint8)
    target = pa.decimal128(_DIGITS_MAX, scale)
    result = pa.Array.from_buffers(target, len(begins), [None, pa.py_buffer(numbers.tobytes())])
    return DecodedDecimals(result, wide)


# Handles decimals of writers who give the scale next to the digits, in a schema or in each value.
#
# Debezium writes a ``VariableScaleDecimal`` if the database leaves the scale open: a ``NUMBER`` in
# Oracle, a ``numeric`` in PostgreSQL.


VARIABLE_SCALE = "io.debezium.data.VariableScaleDecimal"

_MOVES_MAX = 2 * _DIGITS_MAX
_EXACT = Context(prec=_MOVES_MAX)
_ANY = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_WIDE = f"holds a decimal of more than {_DIGITS_MAX} digits"


class Unscaled(pa.ExtensionType):  # type: ignore[misc] # pyarrow has no types
    """Holds a decimal's unscaled bytes, before it is known whether it fits 38 digits."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        super().__init__(pa.large_binary(), "headgate.unscaled")

    def __arrow_ext_serialize__(self) -> bytes:
        return str(self.scale).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, _: pa.DataType, serialized: bytes) -> Unscaled:
        return cls(int(serialized))


class VariableScale(pa.ExtensionType):  # type: ignore[misc] # pyarrow has no types
    """Holds a decimal's scale and its unscaled bytes."""

    stored = pa.struct([("scale", pa.int32()), ("value", pa.large_binary())])

    def __init__(self) -> None:
        super().__init__(self.stored, "headgate.variable_scale")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _: pa.DataType, _serialized: bytes) -> VariableScale:
        return cls()


def unscaled_to_decimals(values: pa.Array) -> pa.Array:
    """Return the numbers of ``Unscaled`` values.

    Raises ``ValueError`` if 38 digits cannot hold one.
    """
    scale = values.type.scale
    if not 0 <= scale <= _DIGITS_MAX:
        return _decode_at_nearest_arrow_scale(values.storage, scale)
    stored = values.storage.fill_null(b"")
    offsets = np.frombuffer(stored.buffers()[1], np.int64)[stored.offset :][: len(stored) + 1]
    data = np.frombuffer(stored.buffers()[2] or b"", np.uint8)
    decoded = decode_decimals(data, offsets[:-1], np.diff(offsets), scale)
    if decoded.too_wide.any():
        raise ValueError(_WIDE)
    at = np.arange(len(values), dtype=np.int64)
    return decoded.numbers.take(pa.array(at, mask=np.asarray(values.is_null())))


def unscaled_to_numbers_of_any_width(values: pa.Array) -> list[Decimal | None]:
    """Return the numbers of ``Unscaled`` values, to the digit."""
    return [
        None
        if each is None
        else Decimal(int.from_bytes(each, "big", signed=True)).scaleb(-values.type.scale, _ANY)
        for each in values.storage.to_pylist()
    ]


def split_into_unscaled_by_scale(values: pa.Array) -> Iterator[tuple[Integers, pa.Array]]:
    """Split ``VariableScale`` into ``Unscaled`` values: the places of each scale, and the values.

    Raises ``ValueError`` for an incomplete one.
    """
    there = np.asarray(values.is_valid())
    scales, data = (part.filter(pa.array(there)) for part in values.storage.flatten())
    if scales.null_count or data.null_count:
        raise ValueError("is a decimal without its scale or its digits")
    yield np.flatnonzero(~there), pa.nulls(int((~there).sum()), Unscaled(0))
    places = np.flatnonzero(there)
    result = np.asarray(scales)
    for scale in np.unique(result).tolist():
        alike = result == scale
        part = data.filter(pa.array(alike))
        yield places[alike], pa.ExtensionArray.from_storage(Unscaled(scale), part)


def _decode_at_nearest_arrow_scale(data: pa.Array, scale: int) -> pa.Array:
    """Return bytes as decimals of a scale that Arrow has, zeros appended or removed.

    Raises ``ValueError`` beyond 38 digits.
    """
    kept = min(max(scale, 0), _DIGITS_MAX)
    moves = abs(kept - scale)
    result = []
    for each in data.to_pylist():
        number = None if each is None else int.from_bytes(each, "big", signed=True)
        if number and moves > _MOVES_MAX:
            raise ValueError(_WIDE)
        if number and scale < kept:
            number *= 10**moves
        elif number:
            number, rest = divmod(number, 10**moves)
            if rest:
                raise ValueError(_WIDE)
        if number and abs(number) >= 10**_DIGITS_MAX:
            raise ValueError(_WIDE)
        result.append(None if number is None else Decimal(number).scaleb(-kept, _EXACT))
    return pa.array(result, pa.decimal128(_DIGITS_MAX, kept))
