"""Converts one JSON value to one table value, exactly, or says why not: the slow path.

It decides together with ``columns``; both accept the same values with the same results.

- integers: JSON integers of any size that fits; a number with fraction or exponent is an IEEE
  double (RFC 8259, section 6) and must be whole; also text that spells such a number
- floats and doubles: nearest value; never infinite. Decimals: exact to the last digit
- booleans: ``true`` and ``false`` only
- strings: text; an object or array becomes its JSON text; numbers and booleans are refused
- dates: ISO text or days since 1970; times: ISO text or milliseconds of the day; timestamps: ISO
  text or milliseconds since 1970 (``times`` has the details)
- UUIDs: the canonical text with hyphens; fixed and binary: base64
- objects for structs and maps, arrays for lists; fields that the table does not have are ignored
- no object may name a key twice, wherever it is
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import (
    MAX_EMAX,
    MAX_PREC,
    MIN_EMIN,
    Context,
    Decimal,
    Inexact,
    InvalidOperation,
)
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as pa_types

from headgate.data_plane.formats.casting import times

DEPTH_MAX = 256
"""Maximum levels of nested objects and arrays; more make a bad record.

How many more the parser takes depends on its caller, but a bad record must depend on itself alone.
"""

_EXACT_DOUBLE_MAX = 2**53
_NUMBER_TEXT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
# Wide enough to hold any number as it is written, or to refuse it: it never rounds.
DECIMALS = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])
_SMALL = Context(prec=100)  # for numbers that were found to have fewer digits


class BadValue(ValueError):
    """Says that a value cannot be converted without loss, and why."""


def _refuse_nan_and_infinity(name: str) -> None:
    raise BadValue(f"{name} is not JSON")


class KeyTwice(BadValue):
    """Says that an object names a key twice: nobody knows which of its values is meant."""


def require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these keys and values. Raises ``KeyTwice``."""
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        again = next(key for key, count in counts.items() if count > 1)
        raise KeyTwice(f"an object names the key {_shorten_json(again)} twice")
    return result


class _MinusZero(int):
    """Marks a zero that is written ``-0``: as a float it is the negative one, as in columns."""

    __slots__ = ()

    def __float__(self) -> float:
        return -0.0

    def __str__(self) -> str:
        return "-0"


_MINUS_ZERO = _MinusZero()

_MINUS_ZERO_TEXT = re.compile(r"-0(?![0-9.eE])")


def _new_decoder(parse_int: Callable[[str], int]) -> json.JSONDecoder:
    return json.JSONDecoder(
        strict=False,
        parse_int=parse_int,
        parse_float=DECIMALS.create_decimal,
        parse_constant=_refuse_nan_and_infinity,
        object_pairs_hook=require_unique_keys,
    )


_DECODER = _new_decoder(int)
# Apart, since this one costs a call for each number.
_MINUS_ZERO_DECODER = _new_decoder(lambda text: _MINUS_ZERO if text == "-0" else int(text))


def parse_record(value: bytes) -> dict[str, Any]:
    """Return the record's JSON object; numbers with fraction or exponent as exact decimals.

    Raises ``BadValue``.
    """
    try:
        text = value.decode()
        rare = "-0" in text and _MINUS_ZERO_TEXT.search(text)
        parsed = (_MINUS_ZERO_DECODER if rare else _DECODER).decode(text)
    except RecursionError as error:
        raise BadValue(_TOO_DEEP) from error
    except KeyTwice:
        raise
    except (ValueError, ArithmeticError) as error:
        raise BadValue(f"not a JSON object: {error or type(error).__name__}") from error
    if not isinstance(parsed, dict):
        raise BadValue(f"not a JSON object but {_describe_json_type(parsed)}")
    require_shallow(text, parsed)
    return parsed


_TOO_DEEP = f"is nested more than {DEPTH_MAX} levels deep"


def require_shallow(text: str, parsed: Any) -> None:
    """Raise ``BadValue`` if ``parsed``, read from ``text``, has too many levels."""
    if text.count("{") + text.count("[") <= DEPTH_MAX:
        return
    level = [parsed]
    for _ in range(DEPTH_MAX):
        level = [item for value in level for item in _containers_directly_inside(value)]
        if not level:
            return
    raise BadValue(_TOO_DEEP)


def _containers_directly_inside(value: Any) -> Iterable[Any]:
    """Return the objects and arrays directly inside this value."""
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if isinstance(item, dict | list)]


def convert_field(field: pa.Field, container: dict[str, Any], path_prefix: str = "") -> Any:
    """Return the field's value from its object, as ``pa.array`` takes it. Raises ``BadValue``."""
    value = container.get(field.name)
    return convert_value(field, value, f"{path_prefix}{field.name}")


def convert_value(field: pa.Field, value: Any, path: str) -> Any:
    if value is None:
        if not field.nullable:
            raise _Nested(f"{path}: a required value is missing")
        return None
    try:
        return _converter_for(field.type)(value, field.type, path)
    except _Nested:
        raise
    except (ValueError, ArithmeticError) as error:
        raise _Nested(f"{path}: {_shorten_json(value)} {error}") from error


class _Nested(BadValue):
    """Gives a reason that already names the place: nothing is put in front of it."""


def _converter_for(target: pa.DataType) -> Callable[[Any, pa.DataType, str], Any]:
    for test, convert in _CONVERTERS:
        if test(target):
            return convert
    raise BadValue(f"cannot go into a column of type {target} from JSON")


def _parse_number(value: Any) -> int | Decimal:
    if isinstance(value, str) and _NUMBER_TEXT.fullmatch(value):
        return DECIMALS.create_decimal(value) if set(value) & set(".eE") else int(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise BadValue("is not a number")
    return value


def _parse_whole_number(value: Any) -> int:
    number = _parse_number(value)
    if isinstance(number, int):
        return number
    nearest = float(number)
    if abs(nearest) < _EXACT_DOUBLE_MAX:
        if not nearest.is_integer():
            raise BadValue("is not a whole number")
        return int(nearest)
    if number.adjusted() > 40 or len(number.as_tuple().digits) > 90:
        raise BadValue("is out of range")
    if _SMALL.remainder(number, Decimal(1)):
        raise BadValue("is not a whole number")
    return int(number)


def _convert_integer(value: Any, target: pa.DataType, _: str) -> int:
    whole = _parse_whole_number(value)
    if not -(2 ** (target.bit_width - 1)) <= whole < 2 ** (target.bit_width - 1):
        raise BadValue(f"is out of the range of {target}")
    return whole


def _convert_floating(value: Any, target: pa.DataType, _: str) -> float:
    try:
        nearest = float(_parse_number(value))
        if target.bit_width == 32:
            nearest = struct.unpack("<f", struct.pack("<f", nearest))[0]
    except OverflowError:
        nearest = math.inf
    if not math.isfinite(nearest):
        raise BadValue(f"is out of the range of {target}")
    return nearest


def _convert_decimal(value: Any, target: pa.DataType, _: str) -> Decimal:
    number = _parse_number(value)
    exact = Decimal(number)
    if exact and exact.adjusted() >= target.precision - target.scale:
        raise BadValue(f"is out of the range of {target}")
    digits = exact.as_tuple()
    surplus = -target.scale - int(digits.exponent)
    if surplus > 0 and any(digits.digits[-surplus:]):
        raise BadValue(f"has more digits than {target} keeps")
    return exact.quantize(Decimal(1).scaleb(-target.scale), context=_SMALL)


def _convert_boolean(value: Any, _target: pa.DataType, _: str) -> bool:
    if not isinstance(value, bool):
        raise BadValue("is not true or false")
    return value


def _convert_string(value: Any, _target: pa.DataType, _: str) -> str:
    if isinstance(value, dict | list):
        return json_text(value)
    text = _require_text(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadValue("holds half a surrogate pair") from error
    return text


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadValue("is not text")
    return value


def _convert_date(value: Any, _target: pa.DataType, _: str) -> int:
    days = times.parse_date(value) if isinstance(value, str) else _parse_whole_number(value)
    return times.require_years_1_to_9999(days, "d")


def _convert_time(value: Any, target: pa.DataType, _: str) -> int:
    if isinstance(value, str):
        return times.parse_time(value, target.unit)
    milliseconds = _parse_whole_number(value)
    if not 0 <= milliseconds < times.DAY_MS:
        raise BadValue("is not a millisecond of the day")
    return milliseconds * _PER_MILLISECOND[target.unit]


def _convert_timestamp(value: Any, target: pa.DataType, _: str) -> int:
    if isinstance(value, str):
        return times.parse_timestamp(value, target.unit, zoned=target.tz is not None)
    return times.require_years_1_to_9999(
        _parse_whole_number(value) * _PER_MILLISECOND[target.unit], target.unit
    )


_PER_MILLISECOND = {"us": 1_000, "ns": 1_000_000}


def _convert_uuid(value: Any, _target: pa.DataType, _: str) -> bytes:
    text = _require_text(value)
    if not _UUID_TEXT.fullmatch(text):
        raise BadValue("is not a UUID like 123e4567-e89b-12d3-a456-426614174000")
    return UUID(text).bytes


def _convert_binary(value: Any, target: pa.DataType, _: str) -> bytes:
    try:
        data = base64.b64decode(_require_text(value), validate=True)
    except binascii.Error as error:
        raise BadValue(f"is not base64 ({error})") from error
    if pa_types.is_fixed_size_binary(target) and len(data) != target.byte_width:
        raise BadValue(f"holds {len(data)} bytes, not {target.byte_width}")
    return data


def _convert_struct(value: Any, target: pa.DataType, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadValue("is not an object")
    return {field.name: convert_field(field, value, f"{path}.") for field in target}


def _convert_list(value: Any, target: pa.DataType, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadValue("is not an array")
    return [convert_value(target.value_field, item, f"{path}[]") for item in value]


def _convert_map(value: Any, target: pa.DataType, path: str) -> list[tuple[Any, Any]]:
    if not isinstance(value, dict):
        raise BadValue("is not an object")
    entries = [
        (
            convert_value(target.key_field, key, f"{path} key"),
            convert_value(target.item_field, item, f"{path}[{key!r}]"),
        )
        for key, item in value.items()
    ]
    if len({key for key, _ in entries}) < len(entries):
        raise BadValue("has two keys of the same value")
    return entries


def json_text(value: Any) -> str:
    """Return a parsed value as compact JSON again, numbers to the digit."""
    written: list[str] = []
    waiting = [value]  # the next one last; no recursion, since a value may be deep
    while waiting:
        item = waiting.pop()
        if isinstance(item, _Written | Decimal | _MinusZero):
            written.append(str(item))
        elif isinstance(item, dict):
            pairs = [[_Written(f"{json.dumps(key)}:"), inside] for key, inside in item.items()]
            waiting += reversed(_parts_in_brackets("{", pairs, "}"))
        elif isinstance(item, list):
            waiting += reversed(_parts_in_brackets("[", [[inside] for inside in item], "]"))
        else:
            written.append(json.dumps(item))
    return "".join(written)


class _Written(str):
    """Marks text that is JSON already."""

    __slots__ = ()


def _parts_in_brackets(front: str, parts: list[list[Any]], back: str) -> list[Any]:
    result: list[Any] = [_Written(front)]
    for place, part in enumerate(parts):
        result += [_Written(","), *part] if place else part
    return [*result, _Written(back)]


def _describe_json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def _shorten_json(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, str | int) else json_text(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[..., Any]], ...] = (
    (pa_types.is_signed_integer, _convert_integer),
    (pa_types.is_floating, _convert_floating),
    (pa_types.is_decimal, _convert_decimal),
    (pa_types.is_boolean, _convert_boolean),
    (
        lambda target: pa_types.is_string(target) or pa_types.is_large_string(target),
        _convert_string,
    ),
    (pa_types.is_date32, _convert_date),
    (pa_types.is_time64, _convert_time),
    (pa_types.is_timestamp, _convert_timestamp),
    (lambda target: target == pa.uuid(), _convert_uuid),
    (
        lambda target: (
            pa_types.is_fixed_size_binary(target)
            or pa_types.is_binary(target)
            or pa_types.is_large_binary(target)
        ),
        _convert_binary,
    ),
    (pa_types.is_struct, _convert_struct),
    (lambda target: pa_types.is_list(target) or pa_types.is_large_list(target), _convert_list),
    (pa_types.is_map, _convert_map),
)
