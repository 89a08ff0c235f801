"""Reads Avro's bytes into Arrow columns of the writer's types, as far as a table needs them.

It is exact and complete: a value that does not follow the writer's schema is a fault of its record.
``cast_to_table`` then converts the columns to the table's types. A union of more than one type
besides null becomes an Arrow union. Fields that the table does not have are skipped, but must be
valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.data_plane.formats import field_names
from headgate.data_plane.formats.avro.decoder import (
    UNSOUND,
    Buffer,
    Cursors,
    Flags,
    Positions,
    end_of_value_or_unsound,
)
from headgate.data_plane.formats.avro.schema import Avro
from headgate.data_plane.formats.casting.counted_time_types import debezium_time_type
from headgate.data_plane.formats.casting.decimals import (
    VARIABLE_SCALE,
    DecodedDecimals,
    VariableScale,
    decode_decimals,
)
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.formats.utf8 import decode_text

_BRANCHES_MAX = 128
"""An Arrow union's codes are the positive ones of a byte."""

_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
# Items of no bytes (nulls, empty records) cost the writer nothing: without a limit, a few records
# of a few bytes could ask for all memory.
_EMPTY_ITEMS_MAX = 256
_FEW = 128
"""Up to this many values are skipped faster one by one than together."""

_MILLIS = 1000
_MILLIS_MAX = (2**63 - 1) // _MILLIS


def read_values(
    values: Sequence[bytes], avro_type: Avro, wanted: Sequence[pa.Field], faults: Faults
) -> pa.Array:
    """Return one Arrow value per record; a record's value must end where its bytes end.

    ``wanted``: the columns for a record's fields, or the only one for a value of another type.
    """
    buffer = Buffer(values, max(avro_type.fixed_max, 16))
    begins = np.roll(buffer.ends, 1)
    begins[:1] = 0
    rows = np.arange(len(values), dtype=np.int64)
    cursors = Cursors(buffer, faults, rows, begins)
    field = pa.field("", pa.struct(list(wanted))) if _may_be_record(avro_type) else wanted[0]
    result = _read_type(avro_type, field, cursors)
    cursors.note_fault_and_park(cursors.at < cursors.ends, "has extra bytes after its end")
    return result


def _may_be_record(avro_type: Avro) -> bool:
    return avro_type.type == "record" or (
        avro_type.type == "union" and any(map(_may_be_record, avro_type.children))
    )


def _read_type(avro_type: Avro, field: pa.Field | None, cursors: Cursors) -> pa.Array:
    """Read a value of each record; without a ``field``, all that it holds, as it is written."""
    if avro_type.type == "record":
        return _read_record(avro_type, field, cursors)
    if avro_type.type == "union":
        return _read_union(avro_type, field, cursors)
    if avro_type.type == "array":
        item = field.type.value_field if field is not None and _is_list(field.type) else None
        offsets, inside = _locate_and_skip_items(
            cursors, avro_type.children[0], lambda at: skip_value(avro_type.children[0], at)
        )
        values = _read_type(avro_type.children[0], item, inside)
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    if avro_type.type == "map":
        return _read_map(avro_type, field, cursors)
    return _PRIMITIVES[avro_type.type](avro_type, cursors)


def _read_record(avro_type: Avro, field: pa.Field | None, cursors: Cursors) -> pa.Array:
    wanted = set(range(len(avro_type.names)))
    fields: dict[int, pa.Field] = {}
    if field is not None and pa_types.is_struct(field.type):
        try:
            result = field_names.match_fields(field.type, avro_type.names)
        except field_names.TwoFields as error:
            cursors.note_fault_and_park(np.ones(len(cursors), np.bool_), str(error))
            result = [None] * field.type.num_fields
        fields = {
            place: child
            for child, place in zip(field.type, result, strict=True)
            if place is not None
        }
        wanted = set(fields)
    columns = {}
    for place, (name, child) in enumerate(zip(avro_type.names, avro_type.children, strict=True)):
        with cursors.faults.prefixing_reasons(name):
            if place in wanted:
                columns[name] = _read_type(child, fields.get(place), cursors)
            else:
                skip_value(child, cursors)
    if not columns:  # Arrow needs a column to know the number of rows
        return pa.array([{}] * len(cursors), pa.struct([]))
    result = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    if avro_type.called != VARIABLE_SCALE or result.type != VariableScale.stored:
        return result
    return pa.ExtensionArray.from_storage(VariableScale(), result)


def _read_union(avro_type: Avro, field: pa.Field | None, cursors: Cursors) -> pa.Array:
    branches = _read_branch_numbers(avro_type, cursors)
    real = [branch for branch, child in enumerate(avro_type.children) if child.type != "null"]
    if len(real) == 1:
        return _read_nullable(avro_type.children[real[0]], branches == real[0], field, cursors)
    parts: list[pa.Array] = []
    for branch, child in enumerate(avro_type.children):
        chosen = branches == branch
        inside = cursors.select(chosen)
        parts.append(_read_type(child, field, inside))
        cursors.advance_to(chosen, inside)
    return _union_of_branches(branches, parts)


def _union_of_branches(branches: Positions, parts: list[pa.Array]) -> pa.UnionArray:
    """Return the parts as one column; more than Arrow has codes for as a union of unions."""
    if len(parts) > _BRANCHES_MAX:
        size = -(-len(parts) // _BRANCHES_MAX)
        groups, inside = np.divmod(branches, size)
        parts = [
            _union_of_branches(inside[groups == group], parts[group * size : (group + 1) * size])
            for group in range(-(-len(parts) // size))
        ]
        branches = groups
    offsets = np.zeros(len(branches), np.int32)
    for branch in range(len(parts)):
        chosen = branches == branch
        offsets[chosen] = np.arange(chosen.sum(), dtype=np.int32)
    labels = [str(branch) for branch in range(len(parts))]
    return pa.UnionArray.from_dense(pa.array(branches, pa.int8()), pa.array(offsets), parts, labels)


def _read_nullable(
    avro_type: Avro, chosen: Flags, field: pa.Field | None, cursors: Cursors
) -> pa.Array:
    # Bad records' cursors read zeros wherever they are: for them nothing needs to be taken apart.
    if chosen.all() or (chosen | (cursors.at >= cursors.buffer.rest)).all():
        return _read_type(avro_type, field, cursors)
    inside = cursors.select(chosen)
    values = _read_type(avro_type, field, inside)
    cursors.advance_to(chosen, inside)
    places = np.cumsum(chosen, dtype=np.int64) - 1
    return values.take(pa.array(places, mask=~chosen))


def _read_branch_numbers(avro_type: Avro, cursors: Cursors) -> Positions:
    branches = cursors.read_longs()
    wrong = (branches < 0) | (branches >= len(avro_type.children))
    cursors.note_fault_and_park(
        wrong, "holds a union's branch that the writer's schema does not have"
    )
    branches[wrong] = 0
    return branches


def _read_map(avro_type: Avro, field: pa.Field | None, cursors: Cursors) -> pa.Array:
    item = field.type.item_field if field is not None and pa_types.is_map(field.type) else None
    text, child = Avro("string"), avro_type.children[0]

    def skip_entry(at: Cursors) -> None:
        skip_value(text, at)
        skip_value(child, at)

    offsets, inside = _locate_and_skip_items(
        cursors, Avro("record", children=(text, child)), skip_entry
    )
    keys = _read_text(text, inside)
    items = _read_type(child, item, inside)
    # A bad record would have a null key here, which Arrow's maps refuse.
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys.fill_null(""), items)


def _locate_and_skip_items(
    cursors: Cursors, item: Avro, skip_item: Callable[[Cursors], None]
) -> tuple[Positions, Cursors]:
    """Return offsets of each value's items, and a cursor at every item, in order."""
    owners: list[Positions] = []
    begins: list[Positions] = []
    open_ = np.arange(len(cursors), dtype=np.int64)
    left = np.zeros(len(cursors), np.int64)
    taken = np.zeros(len(cursors), np.int64)
    while len(open_):
        fresh = open_[left[open_] == 0]
        left[fresh] = _read_block_counts(cursors, fresh, item)
        taken[fresh] += left[fresh]
        open_ = open_[left[open_] > 0]
        if item.bytes_min == 0:
            wrong = np.zeros(len(cursors), np.bool_)
            wrong[open_] = taken[open_] > _EMPTY_ITEMS_MAX
            cursors.note_fault_and_park(
                wrong, f"holds more than {_EMPTY_ITEMS_MAX} items of no bytes"
            )
            open_ = open_[~wrong[open_]]
        if len(open_) <= _FEW:
            for place in open_.tolist():
                result = _locate_items_of_one_value(cursors, place, item, left)
                owners.append(np.full(len(result), place, np.int64))
                begins.append(result)
        # Of few, only those have items left that stand before an invalid one.
        done = open_[left[open_] == 0]
        open_ = open_[left[open_] > 0]
        inside = cursors.select(open_)
        owners.append(open_)
        begins.append(inside.at.copy())
        skip_item(inside)
        cursors.advance_to(open_, inside)
        left[open_] -= 1
        alive = cursors.at[open_] < cursors.buffer.rest
        open_ = np.sort(np.concatenate([open_[alive], done]))
    owner = np.concatenate(owners) if owners else np.zeros(0, np.int64)
    begin = np.concatenate(begins) if begins else np.zeros(0, np.int64)
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=len(cursors))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = cursors.rows[owner[order]]
    return offsets, Cursors(cursors.buffer, cursors.faults, rows, begin[order])


def _locate_items_of_one_value(
    cursors: Cursors, owner: int, item: Avro, items_left: Positions
) -> Positions:
    """Return where the value's next valid items begin, and move the cursor after them."""
    at, end, raw = int(cursors.at[owner]), int(cursors.ends[owner]), cursors.buffer.raw
    begins: list[int] = []
    while len(begins) < items_left[owner]:
        behind = end_of_value_or_unsound(item, raw, at, end)
        if behind == UNSOUND:
            break
        begins.append(at)
        at = behind
    items_left[owner] -= len(begins)
    cursors.at[owner] = at
    return np.array(begins, np.int64)


def _read_block_counts(cursors: Cursors, which: Positions, item: Avro) -> Positions:
    """Return the counts that begin the next blocks; zero ends the items."""
    inside = cursors.select(which)
    counts = inside.read_longs()
    sized = counts < 0
    if sized.any():
        inside.note_fault_and_park(
            counts == np.iinfo(np.int64).min, "holds a block of senseless size"
        )
        counts = np.abs(counts)
        some = inside.select(sized)
        lengths = some.read_longs()
        some.note_fault_and_park(
            (lengths < 0) | (lengths > some.ends - some.at), "holds a block of senseless size"
        )
        inside.advance_to(sized, some)
    room = (inside.ends - inside.at) // max(1, item.bytes_min)
    inside.note_fault_and_park((counts > room) & (item.bytes_min > 0), "ends too early")
    cursors.advance_to(which, inside)
    return np.where(inside.at >= inside.buffer.rest, 0, counts)


def skip_value(avro_type: Avro, cursors: Cursors) -> None:
    """Skip a value that nobody needs."""
    if avro_type.type == "record":
        for child in avro_type.children:
            skip_value(child, cursors)
    elif avro_type.type == "union":
        branches = _read_branch_numbers(avro_type, cursors)
        for branch, child in enumerate(avro_type.children):
            chosen = branches == branch
            if child.type != "null" and chosen.any():
                inside = cursors.select(chosen)
                skip_value(child, inside)
                cursors.advance_to(chosen, inside)
    elif avro_type.type == "array":
        _locate_and_skip_items(
            cursors, avro_type.children[0], lambda at: skip_value(avro_type.children[0], at)
        )
    elif avro_type.type == "map":
        _skip_map(avro_type, cursors)
    elif avro_type.type in ("string", "bytes"):
        cursors.skip_bytes(cursors.read_longs())
    elif avro_type.type in ("boolean", "int", "enum"):
        _PRIMITIVES[avro_type.type](avro_type, cursors)
    elif avro_type.type == "long":
        cursors.read_longs()
    else:
        cursors.skip_bytes({"null": 0, "float": 4, "double": 8}.get(avro_type.type, avro_type.size))


def _skip_map(avro_type: Avro, cursors: Cursors) -> None:
    entry = Avro("record", children=(Avro("string"), avro_type.children[0]))
    _locate_and_skip_items(cursors, entry, lambda at: skip_value(entry, at))


def _read_null(_: Avro, cursors: Cursors) -> pa.Array:
    return pa.nulls(len(cursors))


def _read_boolean(_: Avro, cursors: Cursors) -> pa.Array:
    result = cursors.take_bytes(1)[:, 0]
    cursors.note_fault_and_park(result > 1, "holds a boolean that is neither 0 nor 1")
    return pa.array(result == 1)


def _read_int(avro_type: Avro, cursors: Cursors) -> pa.Array:
    result = cursors.read_longs()
    wrong = (result < _INT_MIN) | (result > _INT_MAX)
    cursors.note_fault_and_park(wrong, "holds an int of more than 32 bits")
    if wrong.any():
        result[wrong] = 0
    if avro_type.logical == "date":
        return pa.array(result.astype(np.int32)).view(pa.date32())
    if avro_type.logical == "time-millis":
        return pa.array(result * _MILLIS).view(pa.time64("us"))
    return (
        _time_count_or_plain_array(avro_type, result)
        if avro_type.called
        else pa.array(result.astype(np.int32))
    )


def _read_long(avro_type: Avro, cursors: Cursors) -> pa.Array:
    result = cursors.read_longs()
    if not avro_type.logical:
        return _time_count_or_plain_array(avro_type, result)
    if avro_type.logical.endswith("-millis"):
        wrong = (result < -_MILLIS_MAX) | (result > _MILLIS_MAX)
        cursors.note_fault_and_park(wrong, "holds a time out of range")
        result = np.where(wrong, 0, result) * _MILLIS
    if avro_type.logical == "time-micros":
        return pa.array(result).view(pa.time64("us"))
    unit = "ns" if avro_type.logical.endswith("-nanos") else "us"
    zone = None if avro_type.logical.startswith("local-") else "UTC"
    return pa.array(result).view(pa.timestamp(unit, tz=zone))


def _time_count_or_plain_array(avro_type: Avro, found: Positions) -> pa.Array:
    counted, numbers = debezium_time_type(avro_type.called), pa.array(found)
    return numbers if counted is None else pa.ExtensionArray.from_storage(counted, numbers)


def _read_float(_: Avro, cursors: Cursors) -> pa.Array:
    return pa.array(cursors.take_bytes(4).view("<f4")[:, 0])


def _read_double(_: Avro, cursors: Cursors) -> pa.Array:
    return pa.array(cursors.take_bytes(8).view("<f8")[:, 0])


def _read_fixed(avro_type: Avro, cursors: Cursors) -> pa.Array:
    result = cursors.take_bytes(avro_type.size)
    if avro_type.logical == "decimal":
        begins = np.arange(len(cursors), dtype=np.int64) * avro_type.size
        lengths = np.full(len(cursors), avro_type.size, np.int64)
        return _decimals_noting_too_wide(
            decode_decimals(result.reshape(-1), begins, lengths, avro_type.scale), cursors
        )
    target = pa.binary(avro_type.size)
    storage = pa.Array.from_buffers(target, len(cursors), [None, pa.py_buffer(result.tobytes())])
    return pa.ExtensionArray.from_storage(pa.uuid(), storage) if avro_type.logical else storage


def _read_bytes(avro_type: Avro, cursors: Cursors) -> pa.Array:
    lengths = cursors.read_longs()
    begins = cursors.at.copy()
    cursors.skip_bytes(lengths)
    resting = cursors.at >= cursors.buffer.rest
    lengths[resting], begins[resting] = 0, 0
    if avro_type.logical == "decimal":
        result = decode_decimals(cursors.buffer.data, begins, lengths, avro_type.scale)
        return _decimals_noting_too_wide(result, cursors)
    return _cut_slices(cursors.buffer, begins, lengths)


def _decimals_noting_too_wide(decoded: DecodedDecimals, cursors: Cursors) -> pa.Array:
    cursors.note_fault_and_park(decoded.too_wide, "holds a decimal of more than 38 digits")
    return decoded.numbers


def _cut_slices(buffer: Buffer, begins: Positions, lengths: Positions) -> pa.Array:
    """Cut pieces, in rising order, as binary: every second element of a partition of the buffer."""
    ends = np.maximum.accumulate(begins + lengths)
    offsets = np.zeros(2 * len(begins) + 1, np.int64)
    offsets[1::2] = ends - lengths
    offsets[2::2] = ends
    pieces = pa.Array.from_buffers(
        pa.large_binary(),
        2 * len(begins),
        [None, pa.py_buffer(offsets), pa.py_buffer(buffer.raw)],
    )
    return pieces.take(pa.array(np.arange(1, 2 * len(begins), 2)))


def _read_text(avro_type: Avro, cursors: Cursors) -> pa.Array:
    return decode_text(_read_bytes(avro_type, cursors), cursors.note_fault_and_park)


def _read_enum(avro_type: Avro, cursors: Cursors) -> pa.Array:
    places = cursors.read_longs()
    wrong = (places < 0) | (places >= len(avro_type.names))
    cursors.note_fault_and_park(
        wrong, "holds an enum's symbol that the writer's schema does not have"
    )
    symbols = pa.array(avro_type.names, pa.large_string())
    return symbols.take(pa.array(places, mask=wrong))


_PRIMITIVES: dict[str, Callable[[Avro, Cursors], pa.Array]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_text,
    "fixed": _read_fixed,
    "enum": _read_enum,
}


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_list(data_type) or pa_types.is_large_list(data_type))
