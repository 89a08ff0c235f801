"""Casts columns of single values between Arrow types, all or nothing, and never inexactly.

``cast`` takes or refuses a whole column. ``cast_refused_value_alone`` takes or refuses one value,
by the same rules (``cast_to_table`` lists them), including those that Arrow's casts do not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from headgate.data_plane.formats.casting import epoch_times
from headgate.data_plane.formats.casting import times as temporal
from headgate.data_plane.formats.casting.counted_time_types import Counted
from headgate.data_plane.formats.casting.decimals import (
    Unscaled,
    VariableScale,
    cast_to_decimals,
    split_into_unscaled_by_scale,
    unscaled_to_decimals,
)
from headgate.data_plane.formats.connect.arrow_schema import Unread
from headgate.data_plane.formats.json import columns
from headgate.data_plane.formats.json import values as json_values

_PER_MILLISECOND = {"us": 1_000, "ns": 1_000_000}
Flags = np.ndarray[Any, np.dtype[np.bool_]]

_WHOLE = pa.decimal128(20, 0)  # holds every integer of 64 bits
# What Arrow's parser is trusted with: it takes hexadecimal and more, and refuses 1.0 for integers.
_PLAIN_INTEGER = r"^-?[0-9]{1,18}$"
_PLAIN_DOUBLE = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"


class Impossible(ValueError):
    """Says that no value of this type fits such a column."""


def cast(values: pa.Array, target: pa.DataType, unit: str = "") -> pa.Array:
    """Cast the column to ``target``. Raises ``Impossible``, or an error if some value is at fault.

    ``unit``: of numbers that become times, if not milliseconds.
    """
    for test, convert in _CASTS:
        if test(values.type):
            result = _cast_with_unit(values, target, unit) if unit else convert(values, target)
            break
    else:
        raise Impossible(f"{values.type} cannot go into a column of type {target}")
    if (pa_types.is_date(target) or pa_types.is_timestamp(target)) and not (
        temporal.has_only_years_1_to_9999(result)
    ):
        raise ValueError("is out of range")
    if pa_types.is_time(target) and not _is_within_day(result):
        raise ValueError("is not a time of the day")
    return result


def _cast_with_unit(values: pa.Array, target: pa.DataType, unit: str) -> pa.Array:
    """Convert numbers in their unit, also as text; other values as usual."""
    kind = values.type
    if pa_types.is_integer(kind) or pa_types.is_floating(kind) or pa_types.is_decimal(kind):
        return epoch_times.convert_counts_to_times(values, unit, target)
    if not pa_types.is_large_string(kind):
        return cast(values, target)
    numbers = epoch_times.flag_number_or_null_texts(values)
    if numbers.all():
        return epoch_times.convert_counts_to_times(values, unit, target)
    counted = epoch_times.convert_counts_to_times(values.filter(pa.array(numbers)), unit, target)
    others = _cast_texts(values.filter(pa.array(~numbers)), target)
    order = np.argsort(np.concatenate([np.flatnonzero(numbers), np.flatnonzero(~numbers)]))
    return pa.concat_arrays([counted, others]).take(pa.array(order))


def numbers_and_booleans_to_text(values: pa.Array) -> pa.Array:
    """Convert numbers and booleans to text with the fewest digits that read as them."""
    if isinstance(values.type, Unscaled):
        values = unscaled_to_decimals(values)
    if isinstance(values.type, VariableScale):
        return _map_by_scale(values, numbers_and_booleans_to_text)
    if isinstance(values.type, Counted):
        values = values.storage
    if pa_types.is_boolean(values.type) or pa_types.is_integer(values.type):
        return values.cast(pa.large_string())
    if pa_types.is_floating(values.type) or pa_types.is_decimal(values.type):
        there = values.is_valid().to_numpy(zero_copy_only=False)
        to_text = _shortest_decimal_text if pa_types.is_decimal(values.type) else str
        # Through numpy, where a float still prints as one, with fewer digits than a double.
        numbers = values.to_numpy(zero_copy_only=False)
        result = [to_text(n) if valid else None for n, valid in zip(numbers, there, strict=True)]
        return pa.array(result, pa.large_string())
    return values


def _shortest_decimal_text(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _raise_impossible(values: pa.Array, target: pa.DataType) -> pa.Array:
    source = {"large_string": "text", "large_binary": "bytes", "bool": "a boolean"}
    counted = "a number that counts time" if isinstance(values.type, Counted) else str(values.type)
    words = source.get(str(values.type), counted)
    raise Impossible(f"{words} cannot go into a column of type {target}")


def _cast_integers(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa_types.is_integer(target) or pa_types.is_floating(target):
        return values.cast(target)
    if pa_types.is_decimal(target):
        return cast_to_decimals(values.cast(_WHOLE), target)
    if pa_types.is_date(target):
        return values.cast(pa.int32()).cast(target)
    if pa_types.is_time(target) or pa_types.is_timestamp(target):
        factor = pa.scalar(_PER_MILLISECOND[target.unit], pa.int64())
        return pc.multiply_checked(values.cast(pa.int64()), factor).cast(target)
    return _raise_impossible(values, target)


def _cast_counted_times(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert numbers of a known unit: to the times that they count, or else as numbers."""
    source, numbers = values.type, values.storage
    if not pa_types.is_temporal(target) or (pa_types.is_date(target) and source.can_become(target)):
        return _cast_integers(numbers, target)
    return (
        epoch_times.convert_counts_to_times(numbers, source.unit, target)
        if source.can_become(target)
        else _raise_impossible(values, target)
    )


def _cast_floats(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa_types.is_floating(target):
        result = values.cast(target)
        same = pc.equal(result.cast(values.type), values)
        if pc.all(pc.or_(same, pc.is_nan(values)), min_count=0).as_py() is False:
            raise ValueError(f"is not exactly a {target}")
        return result
    if pa_types.is_integer(target):
        # ARM gives the largest integer for what is beyond it, which as a float is 2^63 or 2^31:
        # the cast finds them equal.
        if (values.to_numpy(zero_copy_only=False) >= 2.0 ** (target.bit_width - 1)).any():
            raise ValueError(f"is out of the range of {target}")
        return values.cast(target)
    if pa_types.is_decimal(target):
        there = values.is_valid().to_numpy(zero_copy_only=False)
        # Through numpy, where a float still prints as one, with fewer digits than a double.
        numbers = zip(values.to_numpy(zero_copy_only=False), there, strict=True)
        return pa.array(
            [_decimal_of_float(n, target) if valid else None for n, valid in numbers], target
        )
    return _raise_impossible(values, target)


def _decimal_of_float(number: float, target: pa.DataType) -> Decimal:
    result = epoch_times.shortest_decimal(number)
    # Arrow takes some numbers of too many decimal places for zero.
    if result and int(result.normalize().as_tuple().exponent) < -target.scale:
        raise ValueError(f"has more digits than {target} keeps")
    return result


def _cast_decimals(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa_types.is_decimal(target):
        return cast_to_decimals(values, target)
    if pa_types.is_integer(target):
        return values.cast(target)
    if pa_types.is_floating(target):
        return pa.array(
            [None if v is None else _exact_float(v, target) for v in values.to_pylist()], target
        )
    return _raise_impossible(values, target)


def _cast_unscaled(values: pa.Array, target: pa.DataType) -> pa.Array:
    return _cast_decimals(unscaled_to_decimals(values), target)


def _cast_variable_scale(values: pa.Array, target: pa.DataType) -> pa.Array:
    return _map_by_scale(values, lambda part: _cast_unscaled(part, target))


def _map_by_scale(values: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    parts = [(at, convert(part)) for at, part in split_into_unscaled_by_scale(values)]
    order = pa.array(np.argsort(np.concatenate([at for at, _ in parts])))
    return pa.concat_arrays([part for _, part in parts]).take(order)


def _raise_unreadable(values: pa.Array, target: pa.DataType) -> pa.Array:
    raise Impossible(f"{values.type.reason}, and cannot go into a column of type {target}")


def _exact_float(value: Decimal, target: pa.DataType) -> Any:
    result = np.float32(value) if target.bit_width == 32 else float(value)
    if not math.isfinite(result) or Decimal(str(result)) != value:
        raise ValueError(f"has more digits than a {target} keeps")
    return result


def _cast_texts(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa_types.is_large_string(target) or pa_types.is_string(target):
        return values.cast(target)
    if pa_types.is_integer(target) or pa_types.is_floating(target):
        plain = _PLAIN_INTEGER if pa_types.is_integer(target) else _PLAIN_DOUBLE
        if pc.all(pc.match_substring_regex(values, plain), min_count=0).as_py():
            return _cast_number_texts_to_nearest(values, target)
        read = json_values.convert_value
        field = pa.field("", target)
        return pa.array([read(field, text, "") for text in values.to_pylist()], target)
    if pa_types.is_boolean(target) or pa_types.is_nested(target):
        return _raise_impossible(values, target)
    return columns.convert_texts(target, values)


def _cast_number_texts_to_nearest(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa_types.is_integer(target):
        return values.cast(pa.int64()).cast(target)
    # Through the double, as the slow path does: the nearest float is not always its nearest.
    result = values.cast(pa.float64()).cast(target)
    if pc.all(pc.is_finite(result), min_count=0).as_py() is False:
        raise ValueError(f"is out of the range of {target}")
    return result


def _cast_bytes(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa_types.is_binary(target) or pa_types.is_large_binary(target):
        return values.cast(target)
    if not pa_types.is_fixed_size_binary(target) and target != pa.uuid():
        return _raise_impossible(values, target)
    width = 16 if target == pa.uuid() else target.byte_width
    lengths = pc.unique(pc.binary_length(values).drop_null()).to_pylist()
    if set(lengths) - {width}:
        raise ValueError(f"holds not {width} bytes")
    result = pa.array(values.to_pylist(), pa.binary(width))
    return pa.ExtensionArray.from_storage(target, result) if target == pa.uuid() else result


def _cast_uuids(values: pa.Array, target: pa.DataType) -> pa.Array:
    if target == values.type:
        return values
    if pa_types.is_large_string(target) or pa_types.is_string(target):
        return pa.array([None if v is None else str(v) for v in values.to_pylist()], target)
    return _cast_bytes(values.storage, target)


def _cast_booleans(values: pa.Array, target: pa.DataType) -> pa.Array:
    return values if pa_types.is_boolean(target) else _raise_impossible(values, target)


def _cast_dates(values: pa.Array, target: pa.DataType) -> pa.Array:
    return values if pa_types.is_date(target) else _raise_impossible(values, target)


def _cast_times(values: pa.Array, target: pa.DataType) -> pa.Array:
    return values.cast(target) if pa_types.is_time(target) else _raise_impossible(values, target)


def _cast_timestamps(values: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa_types.is_timestamp(target):
        return _raise_impossible(values, target)
    # With or without a zone, the count starts at the same midnight in UTC: only the unit can
    # differ.
    return _without_zone(values).cast(pa.timestamp(target.unit)).cast(pa.int64()).cast(target)


def _without_zone(values: pa.Array) -> pa.Array:
    return values.cast(pa.int64()).cast(pa.timestamp(values.type.unit))


def _is_within_day(times: pa.Array) -> bool:
    result = pc.min_max(times.cast(pa.int64())).as_py()
    most = temporal.DAY_MS * _PER_MILLISECOND[times.type.unit]
    return result["min"] is None or (result["min"] >= 0 and result["max"] < most)


_CASTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[..., pa.Array]], ...] = (
    (pa_types.is_integer, _cast_integers),
    (pa_types.is_floating, _cast_floats),
    (pa_types.is_decimal, _cast_decimals),
    (pa_types.is_large_string, _cast_texts),
    (pa_types.is_boolean, _cast_booleans),
    (pa_types.is_date, _cast_dates),
    (pa_types.is_time, _cast_times),
    (pa_types.is_timestamp, _cast_timestamps),
    (lambda source: source == pa.uuid(), _cast_uuids),
    (lambda source: isinstance(source, Unscaled), _cast_unscaled),
    (lambda source: isinstance(source, VariableScale), _cast_variable_scale),
    (lambda source: isinstance(source, Unread), _raise_unreadable),
    (lambda source: isinstance(source, Counted), _cast_counted_times),
    (
        lambda source: pa_types.is_large_binary(source) or pa_types.is_fixed_size_binary(source),
        _cast_bytes,
    ),
)


def guess_refused_values(values: pa.Array, target: pa.DataType) -> Flags | None:
    """Guess which values made ``cast`` refuse the column; ``None`` if that cannot be seen.

    This only saves time: ``cast_refused_value_alone`` decides about them, and ``cast`` about all
    others.
    """
    if isinstance(values.type, Counted):
        return None
    try:
        if pa_types.is_large_string(values.type):
            return np.array(
                [not _is_readable(text, target) for text in values.to_pylist()], np.bool_
            )
        source = values
        if pa_types.is_integer(source.type) and pa_types.is_decimal(target):
            source = source.cast(_WHOLE)
        if pa_types.is_timestamp(source.type):
            source, target = _without_zone(source), pa.timestamp(target.unit)
        there_and_back = source.cast(target, safe=False).cast(source.type, safe=False)
    except (pa.ArrowException, ValueError):
        return None
    same = pc.fill_null(pc.equal(there_and_back, source), fill_value=True)
    result: Flags = ~same.to_numpy(zero_copy_only=False)
    return result


def _is_readable(text: str | None, target: pa.DataType) -> bool:
    try:
        json_values.convert_value(pa.field("", target), text, "")
    except ValueError:
        return False
    return True


def cast_refused_value_alone(
    value: pa.Array, target: pa.DataType, refusal: Exception, unit: str = ""
) -> pa.Array:
    """Cast a column of one value that ``cast`` refused, if the rules accept it alone.

    Raises ``ValueError`` whose message begins with the value.
    """
    result = _describe_value(value)
    if (
        unit
        and pa_types.is_large_string(value.type)
        and epoch_times.flag_number_or_null_texts(value).all()
    ):
        pass  # it was tried alone already
    elif pa_types.is_large_string(value.type):
        try:
            converted = json_values.convert_value(pa.field("", target), value[0].as_py(), "")
        except ValueError as error:
            raise ValueError(str(error).removeprefix(": ")) from error
        return pa.array([converted], target)
    if pa_types.is_integer(value.type) and pa_types.is_floating(target):
        number = value[0].as_py()
        nearest = np.float32(number) if target.bit_width == 32 else float(number)
        if int(nearest) == number:
            return pa.array([nearest], target)
        raise ValueError(f"{result} is not exactly a {target}")
    reason = str(refusal)
    known = type(refusal) is ValueError
    raise ValueError(f"{result} {reason if known else f'does not fit into {target}'}")


def _describe_value(value: pa.Array) -> str:
    if pa_types.is_temporal(value.type):
        kind = pa.int32() if pa_types.is_date(value.type) else pa.int64()
        return f"{value.cast(kind)[0]} ({value.type})"
    text = str(value[0].as_py())
    return text if len(text) <= 60 else f"{text[:57]}..."
