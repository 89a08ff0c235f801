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
import pyarrow.types as kinds

from headgate.data_plane.formats import field_names
from headgate.data_plane.formats.avro.decoder import (
    UNSOUND,
    Buffer,
    Cursors,
    Flags,
    Positions,
    end_of,
)
from headgate.data_plane.formats.avro.schema import Avro
from headgate.data_plane.formats.casting.decimals import (
    VARIABLE_SCALE,
    VariableScale,
    decode_decimals,
)
from headgate.data_plane.formats.casting.time_units import counted_type
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.formats.utf8 import text_of

_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
# Items of no bytes (nulls, empty records) cost the writer nothing: without a limit, a few records
# of a few bytes could ask for all memory.
_EMPTY_ITEMS_MAX = 256
_FEW = 128
"""Up to this many values are skipped faster one by one than together."""

_MILLIS = 1000
_MILLIS_MAX = (2**63 - 1) // _MILLIS


def read_values(
    values: Sequence[bytes], kind: Avro, wanted: Sequence[pa.Field], faults: Faults
) -> pa.Array:
    """Return one Arrow value per record; a record's value must end where its bytes end.

    ``wanted``: the columns for a record's fields, or the only one for a value of another type.
    """
    buffer = Buffer(values, _fixed_bytes_max(kind))
    begins = np.roll(buffer.ends, 1)
    begins[:1] = 0
    rows = np.arange(len(values), dtype=np.int64)
    cursors = Cursors(buffer, faults, rows, begins)
    field = pa.field("", pa.struct(list(wanted))) if _is_record_type(kind) else wanted[0]
    result = _read(kind, field, cursors)
    cursors.fail(cursors.at < cursors.ends, "has extra bytes after its end")
    return result


def _is_record_type(kind: Avro) -> bool:
    return kind.kind == "record" or (
        kind.kind == "union" and any(map(_is_record_type, kind.children))
    )


def _fixed_bytes_max(kind: Avro) -> int:
    return max([kind.size, 16, *map(_fixed_bytes_max, kind.children)])


def _read(kind: Avro, field: pa.Field | None, cursors: Cursors) -> pa.Array:
    if kind.kind == "record":
        return _record(kind, field, cursors)
    if kind.kind == "union":
        return _union(kind, field, cursors)
    if kind.kind == "array":
        item = field.type.value_field if field is not None and _is_list(field.type) else None
        offsets, inside = _find_items(
            cursors, kind.children[0], lambda at: skip(kind.children[0], at)
        )
        values = _read(kind.children[0], item, inside)
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    if kind.kind == "map":
        return _map(kind, field, cursors)
    return _PRIMITIVES[kind.kind](kind, cursors)


def _record(kind: Avro, field: pa.Field | None, cursors: Cursors) -> pa.Array:
    wanted = set(range(len(kind.names)))
    fields: dict[int, pa.Field] = {}
    if field is not None and kinds.is_struct(field.type):
        try:
            result = field_names.match_fields(field.type, kind.names)
        except field_names.TwoFields as error:
            cursors.fail(np.ones(len(cursors), np.bool_), str(error))
            result = [None] * field.type.num_fields
        fields = {
            place: child
            for child, place in zip(field.type, result, strict=True)
            if place is not None
        }
        wanted = set(fields)
    columns = {}
    for place, (name, child) in enumerate(zip(kind.names, kind.children, strict=True)):
        with cursors.faults.inside(name):
            if place in wanted:
                columns[name] = _read(child, fields.get(place), cursors)
            else:
                skip(child, cursors)
    if not columns:  # Arrow needs a column to know the number of rows
        return pa.array([{}] * len(cursors), pa.struct([]))
    result = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    if kind.called != VARIABLE_SCALE or result.type != VariableScale.stored:
        return result
    return pa.ExtensionArray.from_storage(VariableScale(), result)


def _union(kind: Avro, field: pa.Field | None, cursors: Cursors) -> pa.Array:
    branches = _branches(kind, cursors)
    real = [branch for branch, child in enumerate(kind.children) if child.kind != "null"]
    if len(real) == 1:
        return _nullable(kind.children[real[0]], branches == real[0], field, cursors)
    parts: dict[int, pa.Array] = {}
    for branch, child in enumerate(kind.children):
        chosen = branches == branch
        inside = cursors.where(chosen)
        parts[branch] = _read(child, field, inside)
        cursors.advance_to(chosen, inside)
    offsets = np.zeros(len(cursors), np.int32)
    for branch in parts:
        chosen = branches == branch
        offsets[chosen] = np.arange(chosen.sum(), dtype=np.int32)
    labels = [str(branch) for branch in parts]
    return pa.UnionArray.from_dense(
        pa.array(branches, pa.int8()), pa.array(offsets), list(parts.values()), labels
    )


def _nullable(kind: Avro, chosen: Flags, field: pa.Field | None, cursors: Cursors) -> pa.Array:
    if chosen.all():
        return _read(kind, field, cursors)
    inside = cursors.where(chosen)
    values = _read(kind, field, inside)
    cursors.advance_to(chosen, inside)
    places = np.cumsum(chosen, dtype=np.int64) - 1
    return values.take(pa.array(places, mask=~chosen))


def _branches(kind: Avro, cursors: Cursors) -> Positions:
    branches = cursors.read_longs()
    wrong = (branches < 0) | (branches >= len(kind.children))
    cursors.fail(wrong, "holds a union's branch that the writer's schema does not have")
    branches[wrong] = 0
    return branches


def _map(kind: Avro, field: pa.Field | None, cursors: Cursors) -> pa.Array:
    item = field.type.item_field if field is not None and kinds.is_map(field.type) else None
    text, child = Avro("string"), kind.children[0]

    def entry(at: Cursors) -> None:
        skip(text, at)
        skip(child, at)

    offsets, inside = _find_items(cursors, Avro("record", children=(text, child)), entry)
    keys = _text(text, inside)
    items = _read(child, item, inside)
    # A bad record would have a null key here, which Arrow's maps refuse.
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys.fill_null(""), items)


def _find_items(
    cursors: Cursors, item: Avro, pass_over: Callable[[Cursors], None]
) -> tuple[Positions, Cursors]:
    """Return offsets of each value's items, and a cursor at every item, in order."""
    owners: list[Positions] = []
    begins: list[Positions] = []
    open_ = np.arange(len(cursors), dtype=np.int64)
    left = np.zeros(len(cursors), np.int64)
    taken = np.zeros(len(cursors), np.int64)
    while len(open_):
        fresh = open_[left[open_] == 0]
        left[fresh] = _read_block_sizes(cursors, fresh, item)
        taken[fresh] += left[fresh]
        open_ = open_[left[open_] > 0]
        if item.bytes_min == 0:
            wrong = np.zeros(len(cursors), np.bool_)
            wrong[open_] = taken[open_] > _EMPTY_ITEMS_MAX
            cursors.fail(wrong, f"holds more than {_EMPTY_ITEMS_MAX} items of no bytes")
            open_ = open_[~wrong[open_]]
        if len(open_) <= _FEW:
            for place in open_.tolist():
                result = _find_valid_items(cursors, place, item, left)
                owners.append(np.full(len(result), place, np.int64))
                begins.append(result)
        # Of few, only those have items left that stand before an invalid one.
        done = open_[left[open_] == 0]
        open_ = open_[left[open_] > 0]
        inside = cursors.where(open_)
        owners.append(open_)
        begins.append(inside.at.copy())
        pass_over(inside)
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


def _find_valid_items(cursors: Cursors, owner: int, item: Avro, left: Positions) -> Positions:
    """Return where the value's next valid items begin, and move the cursor after them."""
    at, end, raw = int(cursors.at[owner]), int(cursors.ends[owner]), cursors.buffer.raw
    begins: list[int] = []
    while len(begins) < left[owner]:
        behind = end_of(item, raw, at, end)
        if behind == UNSOUND:
            break
        begins.append(at)
        at = behind
    left[owner] -= len(begins)
    cursors.at[owner] = at
    return np.array(begins, np.int64)


def _read_block_sizes(cursors: Cursors, which: Positions, item: Avro) -> Positions:
    """Return the counts that begin the next blocks; zero ends the items."""
    inside = cursors.where(which)
    counts = inside.read_longs()
    sized = counts < 0
    if sized.any():
        inside.fail(counts == np.iinfo(np.int64).min, "holds a block of senseless size")
        counts = np.abs(counts)
        some = inside.where(sized)
        lengths = some.read_longs()
        some.fail(
            (lengths < 0) | (lengths > some.ends - some.at), "holds a block of senseless size"
        )
        inside.advance_to(sized, some)
    room = (inside.ends - inside.at) // max(1, item.bytes_min)
    inside.fail((counts > room) & (item.bytes_min > 0), "ends too early")
    cursors.advance_to(which, inside)
    return np.where(inside.at >= inside.buffer.rest, 0, counts)


def skip(kind: Avro, cursors: Cursors) -> None:
    """Skip a value that nobody needs."""
    if kind.kind == "record":
        for child in kind.children:
            skip(child, cursors)
    elif kind.kind == "union":
        branches = _branches(kind, cursors)
        for branch, child in enumerate(kind.children):
            chosen = branches == branch
            if child.kind != "null" and chosen.any():
                inside = cursors.where(chosen)
                skip(child, inside)
                cursors.advance_to(chosen, inside)
    elif kind.kind == "array":
        _find_items(cursors, kind.children[0], lambda at: skip(kind.children[0], at))
    elif kind.kind == "map":
        _skip_map(kind, cursors)
    elif kind.kind in ("string", "bytes"):
        cursors.skip(cursors.read_longs())
    elif kind.kind in ("boolean", "int", "enum"):
        _PRIMITIVES[kind.kind](kind, cursors)
    elif kind.kind == "long":
        cursors.read_longs()
    else:
        cursors.skip({"null": 0, "float": 4, "double": 8}.get(kind.kind, kind.size))


def _skip_map(kind: Avro, cursors: Cursors) -> None:
    entry = Avro("record", children=(Avro("string"), kind.children[0]))
    _find_items(cursors, entry, lambda at: skip(entry, at))


def _null(_: Avro, cursors: Cursors) -> pa.Array:
    return pa.nulls(len(cursors))


def _boolean(_: Avro, cursors: Cursors) -> pa.Array:
    result = cursors.take_bytes(1)[:, 0]
    cursors.fail(result > 1, "holds a boolean that is neither 0 nor 1")
    return pa.array(result == 1)


def _int(kind: Avro, cursors: Cursors) -> pa.Array:
    result = cursors.read_longs()
    wrong = (result < _INT_MIN) | (result > _INT_MAX)
    cursors.fail(wrong, "holds an int of more than 32 bits")
    if wrong.any():
        result[wrong] = 0
    if kind.logical == "date":
        return pa.array(result.astype(np.int32)).view(pa.date32())
    if kind.logical == "time-millis":
        return pa.array(result * _MILLIS).view(pa.time64("us"))
    return _mark_counted(kind, result) if kind.called else pa.array(result.astype(np.int32))


def _long(kind: Avro, cursors: Cursors) -> pa.Array:
    result = cursors.read_longs()
    if not kind.logical:
        return _mark_counted(kind, result)
    if kind.logical.endswith("-millis"):
        wrong = (result < -_MILLIS_MAX) | (result > _MILLIS_MAX)
        cursors.fail(wrong, "holds a time out of range")
        result = np.where(wrong, 0, result) * _MILLIS
    if kind.logical == "time-micros":
        return pa.array(result).view(pa.time64("us"))
    unit = "ns" if kind.logical.endswith("-nanos") else "us"
    zone = None if kind.logical.startswith("local-") else "UTC"
    return pa.array(result).view(pa.timestamp(unit, tz=zone))


def _mark_counted(kind: Avro, found: Positions) -> pa.Array:
    counted, numbers = counted_type(kind.called), pa.array(found)
    return numbers if counted is None else pa.ExtensionArray.from_storage(counted, numbers)


def _float(_: Avro, cursors: Cursors) -> pa.Array:
    return pa.array(cursors.take_bytes(4).view("<f4")[:, 0])


def _double(_: Avro, cursors: Cursors) -> pa.Array:
    return pa.array(cursors.take_bytes(8).view("<f8")[:, 0])


def _fixed(kind: Avro, cursors: Cursors) -> pa.Array:
    result = cursors.take_bytes(kind.size)
    if kind.logical == "decimal":
        begins = np.arange(len(cursors), dtype=np.int64) * kind.size
        lengths = np.full(len(cursors), kind.size, np.int64)
        return _note_wide_decimals(
            decode_decimals(result.reshape(-1), begins, lengths, kind.scale), cursors
        )
    target = pa.binary(kind.size)
    storage = pa.Array.from_buffers(target, len(cursors), [None, pa.py_buffer(result.tobytes())])
    return pa.ExtensionArray.from_storage(pa.uuid(), storage) if kind.logical else storage


def _bytes(kind: Avro, cursors: Cursors) -> pa.Array:
    lengths = cursors.read_longs()
    begins = cursors.at.copy()
    cursors.skip(lengths)
    resting = cursors.at >= cursors.buffer.rest
    lengths[resting], begins[resting] = 0, 0
    if kind.logical == "decimal":
        result = decode_decimals(cursors.buffer.data, begins, lengths, kind.scale)
        return _note_wide_decimals(result, cursors)
    return _slices(cursors.buffer, begins, lengths)


def _note_wide_decimals(found: tuple[pa.Array, Flags], cursors: Cursors) -> pa.Array:
    cursors.fail(found[1], "holds a decimal of more than 38 digits")
    return found[0]


def _slices(buffer: Buffer, begins: Positions, lengths: Positions) -> pa.Array:
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


def _text(kind: Avro, cursors: Cursors) -> pa.Array:
    return text_of(_bytes(kind, cursors), cursors.fail)


def _enum(kind: Avro, cursors: Cursors) -> pa.Array:
    places = cursors.read_longs()
    wrong = (places < 0) | (places >= len(kind.names))
    cursors.fail(wrong, "holds an enum's symbol that the writer's schema does not have")
    symbols = pa.array(kind.names, pa.large_string())
    return symbols.take(pa.array(places, mask=wrong))


_PRIMITIVES: dict[str, Callable[[Avro, Cursors], pa.Array]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _text,
    "fixed": _fixed,
    "enum": _enum,
}


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))
