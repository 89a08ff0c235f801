"""Converts many JSON objects at once into columns: the fast path, all or nothing.

arrow-rs (through arro3) parses the text. It is fast but lax: it truncates fractions of integers and
digits of decimals, and takes ``1e400`` for infinity. So numbers are first read as doubles, which
loses nothing unnoticed: a double that is whole, finite and below 2**53 is the integer that was
written. For what doubles cannot hold (larger integers, decimals), a second parse reads the columns
concerned as wide decimals, and both readings must agree.

Anything unusual raises ``Unfit`` for the whole block; ``values`` then explains which record.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types
from arro3.io import read_json

from headgate.data_plane.formats.casting import times
from headgate.data_plane.formats.casting.decimals import cast_to_decimals
from headgate.native.byte_arrays import Packed

_EXACT_DOUBLE_MAX = 2**53
_TEXT, _DOUBLE = pa.large_string(), pa.float64()
_WIDE_INTEGER, _WIDE_DECIMAL = pa.decimal128(38, 18), pa.decimal256(76, 38)
# Doubles and decimals are also read from text like "20260801", which for a date would be wrong; the
# parser's timestamps are read from plain numbers, but not from text that holds only digits.
_WIDE_EPOCH = pa.timestamp("s")

# What the wide decimals would cut off unnoticed: digits after their last place, directly or through
# a negative exponent (in a number so long that comparing it with its double would not show it).
_TOO_FINE = r"\.[0-9]{19}|[0-9][0-9.]{10}[eE]-[0-9]"
_TOO_FINE_DECIMAL = r"\.[0-9]{39}|[0-9][0-9.]{10}[eE]-[0-9]|[eE]-0*[0-9]{3}"
_PLAIN_DECIMAL = r"^[+-]?[0-9]{1,38}(\.[0-9]{1,38})?$"
_DECIMAL_AGREEMENT = 1e-12

_HIGH_PLANES = re.compile(rb"\\u[dD](8[4-9a-fA-F]|[9abAB])")

# Every value is put into an object of its own. A value that is not exactly one complete object
# breaks the syntax, or the list's length: it can never swallow, split or shift its neighbours.
_FRONT, _BACK = b'{"r":[', b"]}\n"

# Rows parsed at a time: few enough that the buffers stay in the cache.
_PARSED = 8192

Spelling = dict[str, bool]
"""By path, whether a date, time, timestamp or decimal is written as a number (else as text)."""


class Unfit(ValueError):
    """Says that the block holds something that the fast path does not take."""


class _NeedsWide(Exception):
    """Says that a column holds numbers that doubles cannot carry exactly."""


def learn_number_or_text(spelling: Spelling, field: pa.Field, value: Any, path: str = "") -> None:
    """Note how this parsed value spells what can be spelled in two ways."""
    path, target = f"{path}.{field.name}", field.type
    if pa_types.is_struct(target) and isinstance(value, dict):
        for child in target:
            learn_number_or_text(spelling, child, value.get(child.name), path)
    elif pa_types.is_map(target) and isinstance(value, dict):
        for item in value.values():
            learn_number_or_text(spelling, target.item_field, item, path)
    elif _is_list(target) and isinstance(value, list):
        for item in value:
            learn_number_or_text(spelling, target.value_field, item, path)
    elif value is not None and (pa_types.is_temporal(target) or pa_types.is_decimal(target)):
        spelling[path] = not isinstance(value, str)


def decode_block_or_raise(values: Packed, schema: pa.Schema, spelling: Spelling) -> pa.RecordBatch:
    """Return all values, or raise ``Unfit``."""
    try:
        parsed = parse_objects(values, list(schema), spelling)
        columns = [
            convert_column(
                field,
                parsed.field(place),
                partial(parse_with_wide_numbers, values, field, spelling),
            )
            for place, field in enumerate(schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except (pa.ArrowException, ValueError) as error:
        raise Unfit(str(error)) from error


def parse_objects(
    values: Packed, fields: list[pa.Field], spelling: Spelling, *, wide: bool = False
) -> pa.StructArray:
    """Return what the parser reads of the objects: doubles for numbers, else text.

    ``wide``: numbers are read exactly. Raises ``Unfit``.
    """
    asked = _Reader(spelling, wide=wide)
    row = pa.struct([pa.field(field.name, asked.parser_type_of(field, "")) for field in fields])
    text = wrap_each_and_join(values)
    if is_unsafe_for_parser(text):
        raise Unfit("text that the parser gets wrong")
    schema = pa.schema([pa.field("r", pa.list_(row))])
    try:
        batches = [
            pa.record_batch(part)
            for part in read_json(io.BytesIO(text), schema, batch_size=_PARSED)
        ]
    except Exception as error:
        raise Unfit(str(error)) from error
    lists = [batch.column(0) for batch in batches]
    one_each = all(
        np.array_equal(np.asarray(part.offsets), np.arange(len(part) + 1)) for part in lists
    )
    parts = [part.values for part in lists]
    # Copied even if it is one part: a column of the parser's keeps all others alive, and their
    # spare.
    rows = pa.concat_arrays([*parts, *(part[:0] for part in parts[:1])])
    if not one_each or len(rows) != len(values) or rows.null_count:
        raise Unfit("a value holds more or less than one object")
    return rows


def wrap_each_and_join(values: Packed) -> bytes:
    """Wrap each value in an object of its own, and concatenate them."""
    return values.concat_each_wrapped(_FRONT, _BACK)


def is_unsafe_for_parser(text: bytes) -> bool:
    """Return whether the parser would change the text or abort the process.

    It computes characters from U+20000 on wrongly from a pair of escapes, and aborts if an error
    message quotes a zero character.
    """
    if b"\x00" in text:
        return True
    # Finding one byte runs at the speed of memory, finding two or more does not: a tenth of the
    # path.
    if b"\\" not in text or b"\\u" not in text:
        return False
    return b"\\u0000" in text or _HIGH_PLANES.search(text) is not None


def parse_with_wide_numbers(values: Packed, field: pa.Field, spelling: Spelling) -> pa.Array:
    pattern = _TOO_FINE if _contains_integer_type(field.type) else _TOO_FINE_DECIMAL
    if pc.any(pc.match_substring_regex(values.array, pattern)).as_py():
        raise Unfit("a number has more digits than the wide reading keeps")
    return parse_objects(values, [field], spelling, wide=True).field(0)


def _contains_integer_type(target: pa.DataType) -> bool:
    inside = [target.field(place).type for place in range(target.num_fields)]
    return pa_types.is_integer(target) or any(map(_contains_integer_type, inside))


class _Reader:
    """Chooses the types that the parser is asked for."""

    def __init__(self, spelling: Spelling, *, wide: bool) -> None:
        self._spelling = spelling
        self._wide = wide

    def parser_type_of(self, field: pa.Field, path: str) -> pa.DataType:
        path, target = f"{path}.{field.name}", field.type
        if pa_types.is_struct(target):
            return pa.struct([self._parser_field_of(child, path) for child in target])
        if _is_list(target):
            return pa.large_list(self._parser_field_of(target.value_field, path))
        if pa_types.is_map(target):
            if not _is_text(target.key_type):
                raise Unfit("only text can be a map's key on the fast path")
            return pa.map_(_TEXT, self._parser_field_of(target.item_field, path))
        return self._parser_type_of_primitive(target, path)

    def _parser_field_of(self, field: pa.Field, path: str) -> pa.Field:
        return pa.field(field.name, self.parser_type_of(field, path))

    def _parser_type_of_primitive(self, target: pa.DataType, path: str) -> pa.DataType:
        if pa_types.is_boolean(target):
            return target
        if pa_types.is_integer(target):
            return _WIDE_INTEGER if self._wide else _DOUBLE
        if pa_types.is_decimal(target) and self._spelling.get(path, True):
            return _WIDE_DECIMAL if self._wide else _DOUBLE
        if pa_types.is_floating(target):
            return _DOUBLE
        if self._spelling.get(path, False):
            return _WIDE_EPOCH if self._wide else _DOUBLE
        return _TEXT


def convert_column(
    field: pa.Field, parsed: pa.Array, parse_wide: Callable[[], pa.Array]
) -> pa.Array:
    try:
        return _convert_array(field, parsed, None, 0)
    except _NeedsWide:
        return _convert_array(field, parsed, parse_wide(), 0)


def _convert_array(
    field: pa.Field, parsed: pa.Array, wide: pa.Array | None, nulls_of_parent: int
) -> pa.Array:
    """Convert ``parsed`` to the field's type.

    ``nulls_of_parent``: how many nulls stem from a null parent. Raises ``Unfit``, and
    ``_NeedsWide`` if doubles are not exact enough and ``wide`` is absent.
    """
    if not field.nullable and parsed.null_count > nulls_of_parent:
        raise Unfit(f"{field.name}: a required value is missing")
    target = field.type
    if pa_types.is_struct(target):
        return _convert_struct(target, parsed, wide)
    if _is_list(target):
        return _convert_list(target, parsed, wide)
    if pa_types.is_map(target):
        return _convert_map(target, parsed, wide)
    if pa_types.is_integer(target):
        return _convert_integers(target, parsed, wide)
    column = (
        _convert_numbers(target, parsed, wide)
        if parsed.type == _DOUBLE
        else convert_texts(target, parsed)
    )
    if (pa_types.is_date(target) or pa_types.is_timestamp(target)) and not (
        times.has_only_years_1_to_9999(column)
    ):
        raise Unfit(f"{field.name}: out of range")
    return column


def _convert_struct(target: pa.StructType, parsed: pa.Array, wide: pa.Array | None) -> pa.Array:
    children = [
        _convert_array(
            child, parsed.field(at), wide.field(at) if wide is not None else None, parsed.null_count
        )
        for at, child in enumerate(target)
    ]
    mask = parsed.is_null() if parsed.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _convert_list(target: pa.DataType, parsed: pa.Array, wide: pa.Array | None) -> pa.Array:
    values = _convert_array(
        target.value_field, parsed.values, wide.values if wide is not None else None, 0
    )
    mask = parsed.is_null() if parsed.null_count else None
    kind = pa.LargeListArray if pa_types.is_large_list(target) else pa.ListArray
    offsets = parsed.offsets if pa_types.is_large_list(target) else parsed.offsets.cast(pa.int32())
    return kind.from_arrays(offsets, values, type=target, mask=mask)


def _convert_map(target: pa.MapType, parsed: pa.Array, wide: pa.Array | None) -> pa.Array:
    offsets = np.asarray(parsed.offsets)
    codes = np.asarray(parsed.keys.dictionary_encode().indices)
    rows = np.repeat(np.arange(len(parsed)), np.diff(offsets))
    if len(np.unique(np.stack([rows, codes]), axis=1)[0]) < len(codes):
        raise Unfit("a map has a key twice")
    items = _convert_array(
        target.item_field, parsed.items, wide.items if wide is not None else None, 0
    )
    keys = parsed.keys.cast(target.key_type)
    mask = parsed.is_null() if parsed.null_count else None
    return pa.MapArray.from_arrays(parsed.offsets, keys, items, type=target, mask=mask)


def _convert_integers(target: pa.DataType, parsed: pa.Array, wide: pa.Array | None) -> pa.Array:
    _require_finite(parsed)
    bounds = pc.min_max(parsed).as_py()
    if max(abs(bounds["min"] or 0), abs(bounds["max"] or 0)) < _EXACT_DOUBLE_MAX:
        return parsed.cast(target)  # refuses fractions and what the type cannot hold
    if wide is None:
        raise _NeedsWide
    exact = wide.cast(target)
    _require_all_true(pc.equal(pc.floor(parsed), parsed), "a number is not whole")
    _require_all_true(pc.equal(exact.cast(_DOUBLE, safe=False), parsed), "two readings disagree")
    return exact


def _convert_numbers(target: pa.DataType, parsed: pa.Array, wide: pa.Array | None) -> pa.Array:
    if pa_types.is_floating(target):
        nearest = parsed.cast(target)
        _require_finite(nearest)
        return nearest
    if pa_types.is_decimal(target):
        return _convert_decimals(target, parsed, wide)
    return _convert_epoch_times(target, parsed, wide)


def _convert_decimals(target: pa.DataType, parsed: pa.Array, wide: pa.Array | None) -> pa.Array:
    _require_finite(parsed)
    if wide is None:
        raise _NeedsWide
    difference = pc.abs(pc.subtract(wide.cast(_DOUBLE), parsed))
    bound = pc.multiply(pc.abs(parsed), _DECIMAL_AGREEMENT)
    _require_all_true(pc.less_equal(difference, bound), "two readings disagree")
    return wide.cast(target)


def _convert_epoch_times(target: pa.DataType, parsed: pa.Array, wide: pa.Array | None) -> pa.Array:
    """Return days, milliseconds of the day, or milliseconds since 1970."""
    counts = parsed.cast(pa.int64())  # refuses fractions and, from 2**53 on, everything
    if wide is None:
        raise _NeedsWide
    _require_all_true(pc.equal(wide.cast(pa.int64()), counts), "text among numbers")
    if pa_types.is_date(target):
        return counts.cast(pa.int32()).cast(target)
    if pa_types.is_time(target):
        inside = pc.and_(pc.greater_equal(counts, 0), pc.less(counts, times.DAY_MS))
        _require_all_true(inside, "a number is not a millisecond of the day")
    factor = {"us": 1_000, "ns": 1_000_000}[target.unit]
    return pc.multiply_checked(counts, pa.scalar(factor, pa.int64())).cast(target)


def convert_texts(target: pa.DataType, texts: pa.Array) -> pa.Array:
    """Convert a column of text to a type that JSON must spell as text. Raises ``ValueError``."""
    if pa_types.is_timestamp(target):
        return times.parse_uniform_timestamps(texts, target)
    if pa_types.is_time(target):
        return times.parse_uniform_times(texts, target)
    if pa_types.is_date(target):
        texts = times.without_trailing_z(texts)
    if target == pa.uuid():
        return pa.ExtensionArray.from_storage(target, _bytes_from_uuid_texts(texts))
    if _is_binary(target):
        return _bytes_from_base64(target, texts)
    if pa_types.is_decimal(target):
        # Arrow's cast silently fails for some exponents ("7e28", "1e-311").
        _require_all_true(
            pc.match_substring_regex(texts, _PLAIN_DECIMAL), "a decimal has an exponent"
        )
        return cast_to_decimals(texts, target)
    return texts.cast(target)


def _bytes_from_uuid_texts(texts: pa.Array) -> pa.Array:
    """Convert canonical UUID text (36 characters) to 16 bytes each."""
    _require_all_true(pc.equal(pc.binary_length(texts), 36), "a UUID has not 36 characters")
    filled = texts.fill_null("0" * 8 + "-0000-0000-0000-" + "0" * 12)
    buffer = filled.buffers()[2]
    if buffer is None:
        return pa.nulls(0, pa.binary(16))
    characters = np.frombuffer(buffer, np.uint8)[: 36 * len(texts)].reshape(-1, 36)
    digits = _HEX_DIGITS[characters[:, _UUID_DIGITS]]
    if not (characters[:, _UUID_HYPHENS] == ord("-")).all() or (digits > 15).any():
        raise Unfit("a UUID has an unknown form")
    data = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2])
    validity = texts.is_valid().buffers()[1] if texts.null_count else None
    buffers = [validity, pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.binary(16), len(texts), buffers)


_UUID_HYPHENS = [8, 13, 18, 23]
_UUID_DIGITS = [at for at in range(36) if at not in _UUID_HYPHENS]
_HEX_DIGITS = np.full(256, 16, np.uint8)
for _digit in "0123456789abcdefABCDEF":
    _HEX_DIGITS[ord(_digit)] = int(_digit, 16)


def _bytes_from_base64(target: pa.DataType, texts: pa.Array) -> pa.Array:
    data = [
        None if text is None else base64.b64decode(text, validate=True)
        for text in texts.to_pylist()
    ]
    return pa.array(data, target)


def _require_all_true(flags: pa.Array, otherwise: str) -> None:
    """Require all to be true; nulls do not count."""
    if pc.all(flags, min_count=0).as_py() is False:
        raise Unfit(otherwise)


def _require_finite(numbers: pa.Array) -> None:
    _require_all_true(pc.is_finite(numbers), "a number is out of range")


def _is_list(target: pa.DataType) -> bool:
    return bool(pa_types.is_list(target) or pa_types.is_large_list(target))


def _is_text(target: pa.DataType) -> bool:
    return bool(pa_types.is_string(target) or pa_types.is_large_string(target))


def _is_binary(target: pa.DataType) -> bool:
    tests = (pa_types.is_fixed_size_binary, pa_types.is_binary, pa_types.is_large_binary)
    return any(test(target) for test in tests)
