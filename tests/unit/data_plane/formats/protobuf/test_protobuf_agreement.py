"""Whatever Google's library writes is read as it reads it; what is broken is found, alone."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from unit.data_plane.formats.protobuf_worlds import SCALARS, World

pytestmark = pytest.mark.usefixtures("either_loops")

slow = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
WORLDS = {syntax: World(syntax) for syntax in ("proto2", "proto3")}

_32 = st.integers(-(2**31), 2**31 - 1)
_64 = st.integers(-(2**63), 2**63 - 1)
_U32, _U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(),
    "float": st.floats(width=32),
    "int64": _64,
    "uint64": _U64,
    "int32": _32,
    "fixed64": _U64,
    "fixed32": _U32,
    "bool": st.booleans(),
    "string": st.text(max_size=9),
    "bytes": st.binary(max_size=9),
    "uint32": _U32,
    "sfixed32": _32,
    "sfixed64": _64,
    "sint32": _32,
    "sint64": _64,
}
INNER = st.fixed_dictionaries({}, optional={"x": _64, "y": st.text(max_size=5)})
COLORS = st.sampled_from([0, 7, 14])


@st.composite
def rows(draw: st.DrawFn, syntax: str) -> bytes:
    row = WORLDS[syntax].row()
    for kind in draw(st.sets(st.sampled_from([*SCALARS]), max_size=5)):
        setattr(row, f"f_{kind}", draw(VALUES[kind]))
        getattr(row, f"r_{kind}").extend(draw(st.lists(VALUES[kind], max_size=3)))
        if syntax == "proto3":
            setattr(row, f"o_{kind}", draw(VALUES[kind]))
    row.colors.extend(draw(st.lists(COLORS, max_size=3)))
    if draw(st.booleans()):
        row.color, row.far = draw(COLORS), draw(_32)
    if draw(st.booleans()):
        _fill(row.inner, draw(INNER))
        row.at.seconds = draw(st.integers(-62_135_596_800, 253_402_300_799))
        row.at.nanos = draw(st.integers(0, 999_999)) * 1_000
        row.wrapped.value = draw(_64)
    for inner in draw(st.lists(INNER, max_size=3)):
        _fill(row.inners.add(), inner)
    for key, value in draw(st.dictionaries(st.text(max_size=3), _64, max_size=3)).items():
        row.counts[key] = value
    for number, inner in draw(st.dictionaries(_32, INNER, max_size=2)).items():
        row.byid[number].SetInParent()
        _fill(row.byid[number], inner)
    choice = draw(st.sampled_from(["none", "either", "other", "third"]))
    if choice == "other":
        row.other.SetInParent()
        _fill(row.other, draw(INNER))
    elif choice != "none":
        setattr(row, choice, draw(VALUES["string" if choice == "either" else "int32"]))
    if draw(st.booleans()):
        row.next.f_int32 = draw(_32)
        _fill(row.next.next.inner, draw(INNER))
    found: bytes = row.SerializeToString()
    return found


def _fill(message: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(message, name, value)


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if value is not ...:
            assert repr(from_values(found[name])) == repr(value), name


def from_values(value: Any) -> Any:
    if isinstance(value, list):
        return [from_values(item) for item in value]
    return int(value) if isinstance(value, Decimal) else value


@slow
@given(data=st.data(), syntax=st.sampled_from([*WORLDS]))
def test_what_google_s_library_wrote_is_read_as_it_reads_it(
    data: st.DataObject, syntax: str
) -> None:
    values = data.draw(st.lists(rows(syntax), min_size=1, max_size=5))
    world = WORLDS[syntax]
    found, bad = world.read(values)
    assert bad == {}
    for row, value in zip(found, values, strict=True):
        wanted = world.parsed(value)
        assert wanted is not None
        same(row, wanted)


@slow
@given(data=st.data(), syntax=st.sampled_from([*WORLDS]))
def test_a_message_in_parts_is_put_together(data: st.DataObject, syntax: str) -> None:
    """Behind each other, messages merge: the last number, all items, parts of parts."""
    some = data.draw(st.lists(st.lists(rows(syntax), max_size=3).map(b"".join), max_size=4))
    world = WORLDS[syntax]
    found, bad = world.read(some)
    assert bad == {}
    for row, value in zip(found, some, strict=True):
        same(row, world.parsed(value) or {})


# What is exact here, and cut off or passed over there.
_STRICTER = re.compile(
    "more than 32 bits|neither 0 nor 1|not UTF-8|out of range|finer|no name for|no message"
)

# A number of more than 64 bits, by its tenth byte: no message here, cut to 64 bits there.
_TOO_LONG = re.compile(rb"[\x80-\xff]{9}[\x02-\x7f]")


@settings(slow, max_examples=examples(500))
@given(data=st.data(), syntax=st.sampled_from([*WORLDS]))
def test_what_was_made_worse_is_what_google_s_library_says_or_bad(
    data: st.DataObject, syntax: str
) -> None:
    world = WORLDS[syntax]
    sound = data.draw(rows(syntax))
    broken = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(broken)))
        piece = data.draw(st.binary(max_size=3) | st.sampled_from([b"\x80" * 11, b"\x0b\x0c"]))
        broken[at : at + data.draw(st.integers(0, 3))] = piece
    found, bad = world.read([sound, bytes(broken), sound])
    assert set(bad) <= {1}
    wanted = world.parsed(bytes(broken))
    if bad:
        stricter = _STRICTER.search(bad[1]) or _TOO_LONG.search(broken)
        assert wanted is None or stricter, bad
    elif b"\x8a\x05" not in broken:  # of which a part is never read
        assert wanted is not None
        if syntax == "proto2":
            wanted.pop("colors")  # unknown numbers are left out there, and kept here
        same(found[1], wanted)


@slow
@given(st.lists(st.binary(max_size=40), max_size=8))
def test_whether_a_message_is_bad_depends_on_it_alone(values: list[bytes]) -> None:
    world = WORLDS["proto3"]
    together = set(world.read(values)[1])
    assert together == {at for at, value in enumerate(values) if world.read([value])[1]}
