"""Translates Arrow types to Spark's and back, and tells which fit a column unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pa_types

from headgate.data_plane.formats import column_options, field_names

_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def to_spark_types_and_unsupported(schema: pa.Schema) -> tuple[pa.Schema, list[str]]:
    """Return the schema in types that Spark knows, and the columns without such a type."""
    unsupported: list[str] = []
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, _spark_compatible_type(field.type)))
        except TypeError:
            unsupported.append(field.name)
    return pa.schema(fields), unsupported


def _spark_compatible_type(data_type: pa.DataType) -> pa.DataType:
    """Raises ``TypeError`` for UUIDs, times, nanoseconds and binaries of fixed length."""
    if pa_types.is_large_string(data_type):
        return pa.string()
    if pa_types.is_large_binary(data_type):
        return pa.binary()
    if pa_types.is_large_list(data_type) or pa_types.is_list(data_type):
        return pa.list_(_spark_compatible_type(data_type.value_type))
    if pa_types.is_map(data_type):
        return pa.map_(
            _spark_compatible_type(data_type.key_type), _spark_compatible_type(data_type.item_type)
        )
    if pa_types.is_struct(data_type):
        return pa.struct(
            [pa.field(child.name, _spark_compatible_type(child.type)) for child in data_type]
        )
    nanoseconds = pa_types.is_timestamp(data_type) and data_type.unit != "us"
    if (
        nanoseconds
        or pa_types.is_time(data_type)
        or pa_types.is_fixed_size_binary(data_type)
        or isinstance(data_type, pa.BaseExtensionType)
    ):
        raise TypeError(data_type)
    return data_type


def with_large_arrow_types(data_type: pa.DataType) -> pa.DataType:
    """Return the type as this package uses it: text, bytes and lists with long offsets."""
    if pa_types.is_string(data_type):
        return pa.large_string()
    if pa_types.is_binary(data_type):
        return pa.large_binary()
    if pa_types.is_list(data_type) or pa_types.is_large_list(data_type):
        return pa.large_list(with_large_arrow_types(data_type.value_type))
    if pa_types.is_map(data_type):
        return pa.map_(
            with_large_arrow_types(data_type.key_type), with_large_arrow_types(data_type.item_type)
        )
    if pa_types.is_struct(data_type):
        return pa.struct(
            [pa.field(child.name, with_large_arrow_types(child.type)) for child in data_type]
        )
    return data_type


def is_assignable_type(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether ``source`` (``with_large_arrow_types``) fits one of ``target`` unchanged.

    That includes wider numbers, text if Spark has no type for the column (UUID, time, nanoseconds),
    and bytes of some length. What fits only sometimes (a long into an int, text into a number) must
    be cast by the transform, so that it also says what happens to misfits.
    """
    if pa_types.is_null(source):
        return True
    if pa_types.is_struct(source) and pa_types.is_struct(target):
        return _fits_struct(source, target)
    if _is_list(source) and _is_list(target):
        return is_assignable_type(source.value_type, target.value_type)
    if pa_types.is_map(source) and pa_types.is_map(target):
        return is_assignable_type(source.key_type, target.key_type) and is_assignable_type(
            source.item_type, target.item_type
        )
    if pa_types.is_large_string(source):
        nanoseconds = pa_types.is_timestamp(target) and target.unit == "ns"
        return _is_text(target) or target == pa.uuid() or pa_types.is_time(target) or nanoseconds
    if pa_types.is_large_binary(source):
        return _is_bytes(target) or pa_types.is_fixed_size_binary(target) or target == pa.uuid()
    if pa_types.is_timestamp(source) and pa_types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    return bool(source == target or _fits_wider_number(source, target))


def _fits_struct(source: pa.StructType, target: pa.StructType) -> bool:
    there = {child.name: child.type for child in source}
    wanted = {child.name: child for child in target}
    missing = [name for name, child in wanted.items() if name not in there and not child.nullable]
    return (
        not missing
        and there.keys() <= wanted.keys()
        and all(is_assignable_type(kind, wanted[name].type) for name, kind in there.items())
    )


def describe_lossy_conversions(source: pa.DataType, target: pa.Field, path: str) -> Iterator[str]:
    """Yield what a cast of any value of ``source`` (``with_large_arrow_types``) would leave out
    or guess.

    Whether a value fits shows when it is cast.
    """
    kind = target.type
    if pa_types.is_struct(source) and pa_types.is_struct(kind):
        names = [child.name for child in source]
        try:
            taken = field_names.match_fields(kind, names)
        except field_names.TwoFields:
            return  # which the cast says
        for unknown in sorted(set(range(len(names))) - set(taken)):
            yield f"{path}.{names[unknown]}: the table has no such field"
        for child, place in zip(kind, taken, strict=True):
            if place is not None:
                yield from describe_lossy_conversions(
                    source.field(place).type, child, f"{path}.{child.name}"
                )
    elif _is_list(source) and _is_list(kind):
        yield from describe_lossy_conversions(source.value_type, kind.value_field, f"{path}[]")
    elif pa_types.is_map(source) and pa_types.is_map(kind):
        yield from describe_lossy_conversions(source.key_type, kind.key_field, f"{path} key")
        yield from describe_lossy_conversions(source.item_type, kind.item_field, f"{path}[]")
    elif pa_types.is_map(source) and pa_types.is_struct(kind):
        yield f"{path}: a map may have keys that are no fields of {kind}"
    elif _is_ambiguous_conversion(source, target):
        yield f"{path}: {source} may mean several values of {kind}"


def _is_ambiguous_conversion(source: pa.DataType, target: pa.Field) -> bool:
    """Return whether records' formats read such values by a convention, which is not Spark's."""
    kind = target.type
    if pa_types.is_large_string(source):  # they say base64
        return bool(_is_bytes(kind) or pa_types.is_fixed_size_binary(kind))
    if not pa_types.is_temporal(kind):
        return False
    if pa_types.is_timestamp(source):  # they say UTC, Spark the session's zone
        has_zone = pa_types.is_timestamp(kind) and kind.tz is not None
        return bool((source.tz is not None) != has_zone)
    if column_options.unit_of(target):
        return False
    # they say milliseconds, Spark seconds
    return bool(
        pa_types.is_integer(source) or pa_types.is_floating(source) or pa_types.is_decimal(source)
    )


def _fits_wider_number(source: pa.DataType, target: pa.DataType) -> bool:
    if pa_types.is_integer(source) and pa_types.is_integer(target):
        return bool(source.bit_width <= target.bit_width)
    if pa_types.is_integer(source) and pa_types.is_floating(target):
        return bool(source.bit_width <= target.bit_width // 2)
    if pa_types.is_floating(source) and pa_types.is_floating(target):
        return bool(source.bit_width <= target.bit_width)
    if not pa_types.is_decimal(target):
        return False
    whole = target.precision - target.scale
    if pa_types.is_integer(source):
        return bool(whole >= _INTEGER_DIGITS[source.bit_width])
    return bool(
        pa_types.is_decimal(source)
        and source.scale <= target.scale
        and source.precision - source.scale <= whole
    )


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_list(data_type) or pa_types.is_large_list(data_type))


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_string(data_type) or pa_types.is_large_string(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_binary(data_type) or pa_types.is_large_binary(data_type))
