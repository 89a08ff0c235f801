"""Translates Arrow types to Spark's and back, and tells which fit a column unchanged."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds

_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def to_spark(schema: pa.Schema) -> tuple[pa.Schema, list[str]]:
    """Return the schema in types that Spark knows, and the columns without such a type."""
    unsupported: list[str] = []
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, _spark_type(field.type)))
        except TypeError:
            unsupported.append(field.name)
    return pa.schema(fields), unsupported


def _spark_type(kind: pa.DataType) -> pa.DataType:
    """Raises ``TypeError`` for UUIDs, times, nanoseconds and binaries of fixed length."""
    if kinds.is_large_string(kind):
        return pa.string()
    if kinds.is_large_binary(kind):
        return pa.binary()
    if kinds.is_large_list(kind) or kinds.is_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    if kinds.is_map(kind):
        return pa.map_(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if kinds.is_struct(kind):
        return pa.struct([pa.field(child.name, _spark_type(child.type)) for child in kind])
    nanoseconds = kinds.is_timestamp(kind) and kind.unit != "us"
    if (
        nanoseconds
        or kinds.is_time(kind)
        or kinds.is_fixed_size_binary(kind)
        or isinstance(kind, pa.BaseExtensionType)
    ):
        raise TypeError(kind)
    return kind


def from_spark(kind: pa.DataType) -> pa.DataType:
    """Return the type as this package uses it: text, bytes and lists with long offsets."""
    if kinds.is_string(kind):
        return pa.large_string()
    if kinds.is_binary(kind):
        return pa.large_binary()
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return pa.large_list(from_spark(kind.value_type))
    if kinds.is_map(kind):
        return pa.map_(from_spark(kind.key_type), from_spark(kind.item_type))
    if kinds.is_struct(kind):
        return pa.struct([pa.field(child.name, from_spark(child.type)) for child in kind])
    return kind


def fits_unchanged(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a column of ``source`` (of ``from_spark``) fits one of ``target`` unchanged.

    That includes wider numbers, text if Spark has no type for the column (UUID, time, nanoseconds),
    and bytes of some length. What fits only sometimes (a long into an int, text into a number) must
    be cast by the transform, so that it also says what happens to misfits.
    """
    if kinds.is_null(source):
        return True
    if kinds.is_struct(source) and kinds.is_struct(target):
        return _fits_struct(source, target)
    if _is_list(source) and _is_list(target):
        return fits_unchanged(source.value_type, target.value_type)
    if kinds.is_map(source) and kinds.is_map(target):
        return fits_unchanged(source.key_type, target.key_type) and fits_unchanged(
            source.item_type, target.item_type
        )
    if kinds.is_large_string(source):
        nanoseconds = kinds.is_timestamp(target) and target.unit == "ns"
        return _is_text(target) or target == pa.uuid() or kinds.is_time(target) or nanoseconds
    if kinds.is_large_binary(source):
        return _is_bytes(target) or kinds.is_fixed_size_binary(target) or target == pa.uuid()
    if kinds.is_timestamp(source) and kinds.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    return bool(source == target or _is_wider(source, target))


def _fits_struct(source: pa.StructType, target: pa.StructType) -> bool:
    there = {child.name: child.type for child in source}
    wanted = {child.name: child for child in target}
    missing = [name for name, child in wanted.items() if name not in there and not child.nullable]
    return (
        not missing
        and there.keys() <= wanted.keys()
        and all(fits_unchanged(kind, wanted[name].type) for name, kind in there.items())
    )


def _is_wider(source: pa.DataType, target: pa.DataType) -> bool:
    if kinds.is_integer(source) and kinds.is_integer(target):
        return bool(source.bit_width <= target.bit_width)
    if kinds.is_integer(source) and kinds.is_floating(target):
        return bool(source.bit_width <= target.bit_width // 2)
    if kinds.is_floating(source) and kinds.is_floating(target):
        return bool(source.bit_width <= target.bit_width)
    if not kinds.is_decimal(target):
        return False
    whole = target.precision - target.scale
    if kinds.is_integer(source):
        return bool(whole >= _INTEGER_DIGITS[source.bit_width])
    return bool(
        kinds.is_decimal(source)
        and source.scale <= target.scale
        and source.precision - source.scale <= whole
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))
