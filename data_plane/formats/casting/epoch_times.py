"""Converts numbers that count seconds, or parts of them, to times, exactly or not at all."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from headgate.data_plane.formats.casting import times

DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""For each unit, the decimal places of a second."""

_PLAIN = r"^-?[0-9]{1,18}$"
_FRACTION = r"^-?[0-9]{1,20}\.[0-9]{1,18}$"
NUMBER_TEXT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_MAGNITUDE_MAX = 40
_DIGITS_MAX = 90
_WIDE_SCALE = 38
_FINER = "is finer than the column's unit"


def shortest_decimal(number: float) -> Decimal:
    """Return the decimal with the fewest digits that reads as this number.

    Raises ``ValueError``.
    """
    if not math.isfinite(number):
        raise ValueError("is not a number")
    return Decimal(str(number))


def count_in_target_unit(number: Decimal, unit: str, target: pa.DataType) -> int:
    """Convert a number of units to a count of the column's own. Raises ``ValueError``."""
    if not number:
        return 0
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "finite"
    if number.adjusted() > _MAGNITUDE_MAX:
        raise ValueError("is out of range")
    power = exponent + DIGITS[target.unit] - DIGITS[unit]
    if power < 0:
        kept, dropped = digits[:power], digits[power:]
        if any(dropped):
            raise ValueError(f"{_FINER} ({target.unit})")
        digits, power = kept, 0
    if len(digits) > _DIGITS_MAX:
        raise ValueError("is out of range")
    factor: int = 10**power
    count = int("".join(map(str, digits)) or "0") * factor * (-1 if sign else 1)
    if pa_types.is_timestamp(target):
        return times.require_years_1_to_9999(count, target.unit)
    if not 0 <= count < times.DAY_MS * 10 ** (DIGITS[target.unit] - DIGITS["ms"]):
        raise ValueError("is not a time of the day")
    return count


def count_of_number_text_in_target_unit(text: str, unit: str, target: pa.DataType) -> int:
    """Convert a number given as text, likewise. Raises ``ValueError``."""
    return count_in_target_unit(_parse_decimal(text), unit, target)


def _parse_decimal(text: str) -> Decimal:
    try:
        number = Decimal(text)  # this constructor never rounds
    except ArithmeticError as error:
        raise ValueError("is out of range") from error
    if not number.is_finite():
        raise ValueError("is out of range")
    return number


def convert_counts_to_times(values: pa.Array, unit: str, target: pa.DataType) -> pa.Array:
    """Convert a column of numbers to times, all or nothing; the caller checks the range.

    Raises ``ValueError`` or what Arrow raises.
    """
    if pa_types.is_integer(values.type):
        return _convert_integers(values.cast(pa.int64()), unit, target)
    if pa_types.is_decimal(values.type):
        return _convert_decimals(values.cast(pa.decimal256(76, _WIDE_SCALE)), unit, target)
    if pa_types.is_floating(values.type):
        there = values.is_valid().to_numpy(zero_copy_only=False)
        numbers = zip(values.to_numpy(zero_copy_only=False), there, strict=True)
        result = [
            count_in_target_unit(shortest_decimal(n), unit, target) if valid else None
            for n, valid in numbers
        ]
        return pa.array(result, pa.int64()).cast(target)
    return _convert_texts(values, unit, target)


def _convert_integers(values: pa.Array, unit: str, target: pa.DataType) -> pa.Array:
    power = DIGITS[target.unit] - DIGITS[unit]
    factor = pa.scalar(10 ** abs(power), pa.int64())
    if power >= 0:
        return pc.multiply_checked(values, factor).cast(target)
    result = pc.divide(values, factor)
    if pc.all(pc.equal(pc.multiply(result, factor), values), min_count=0).as_py() is False:
        raise ValueError(f"{_FINER} ({target.unit})")
    return result.cast(target)


def _convert_decimals(values: pa.Array, unit: str, target: pa.DataType) -> pa.Array:
    scale = _WIDE_SCALE - DIGITS[target.unit] + DIGITS[unit]
    kind = pa.decimal256(76, scale)  # the same digits, with the point elsewhere
    moved = pa.Array.from_buffers(kind, len(values), values.buffers(), offset=values.offset)
    try:
        whole = moved.cast(pa.decimal256(76, 0))
    except pa.ArrowInvalid as error:
        raise ValueError(f"{_FINER} ({target.unit})") from error
    return whole.cast(pa.int64()).cast(target)


def _convert_texts(texts: pa.Array, unit: str, target: pa.DataType) -> pa.Array:
    if _has_no_false(pc.match_substring_regex(texts, _PLAIN)):
        return _convert_integers(texts.cast(pa.int64()), unit, target)
    if _has_no_false(pc.match_substring_regex(texts, f"{_PLAIN}|{_FRACTION}")):
        return _convert_decimals(texts.cast(pa.decimal256(76, _WIDE_SCALE)), unit, target)
    result = [
        None if text is None else count_of_number_text_in_target_unit(text, unit, target)
        for text in texts.to_pylist()
    ]
    return pa.array(result, pa.int64()).cast(target)


def flag_number_or_null_texts(texts: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which texts spell a number; a null counts as one."""
    result = pc.match_substring_regex(texts, NUMBER_TEXT).fill_null(fill_value=True)
    return np.asarray(result)


def _has_no_false(flags: pa.Array) -> bool:
    return pc.all(flags, min_count=0).as_py() is not False
