"""Hashes of keys: equal keys have equal ones, whatever they are stored as, and others do not."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.native.kernels import InC, InPython, Loops, loops
from headgate.tables.iceberg.upsert import key_index
from headgate.tables.iceberg.upsert.key_index import KeyHash

HASH = KeyHash((7, 11))
LONG = "x" * 300

pytestmark = pytest.mark.usefixtures("either_loops")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-(2**63), -1, 0, 1, 2**63 - 1], pa.int64()),
        pa.array([-1, 0, 1], pa.int32()),
        pa.array(["", "a", "ab", "a\0", "abcdefgh", "abcdefgh\0", "abcdefghi", LONG, LONG + "y"]),
        pa.array([b"", b"\0", b"\0\0", bytes(8), bytes(9)], pa.large_binary()),
        pa.array([bytes(size) for size in range(300)], pa.binary()),
        pa.array(["x" * 8 + "y" * size for size in range(1, 300)], pa.large_string()),
        pa.array(["same 16 bytes ..." + end for end in ("a", "b", "\0", "\0a", "a" * 239)]),
        pa.array(["x" * 256 + end for end in ("", "a", "b", "ab")]),
        pa.array([uuid.UUID(int=n).bytes for n in (0, 1, 2**127)], pa.binary(16)),
        pa.array([decimal.Decimal("1.50"), decimal.Decimal("-1.50")], pa.decimal128(9, 2)),
        pa.array([dt.date(1969, 12, 31), dt.date(1970, 1, 1)]),
        pa.array([0, 1], pa.timestamp("us", "UTC")),
        pa.array([0, 1], pa.time64("us")),
        pa.array([True, False]),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("beside", [False, True])
def test_different_keys_have_different_hashes(column: pa.Array, *, beside: bool) -> None:
    columns = [column, pa.array(["same"] * len(column))] if beside else [column]
    found = pairs(columns)
    assert len(set(found)) == len(column)
    assert pairs([each.slice(1) for each in columns]) == found[1:]


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1))
def test_keys_of_two_texts_are_equal_when_both_are(keys: list[tuple[str, str]]) -> None:
    found = pairs([pa.array([one for one, _ in keys]), pa.array([other for _, other in keys])])
    by_key = dict(zip(keys, found, strict=True))
    assert [by_key[key] for key in keys] == found
    assert len(set(found)) == len(by_key)


def test_a_promoted_decimal_hashes_as_before() -> None:
    value = [decimal.Decimal("12.34")]
    narrow, wide = (pa.array(value, pa.decimal128(digits, 2)) for digits in (9, 20))
    assert pairs([narrow]) == pairs([wide])


def test_no_keys_have_no_hashes() -> None:
    assert pairs([pa.array([], pa.string())]) == []
    assert pairs([pa.array(["a"]).slice(1), pa.array([1]).slice(1)]) == []
    assert pairs([pa.array(["", ""])]) == pairs([pa.array([b"a", b"", b""]).slice(1)])


def test_lengths_tell_columns_apart() -> None:
    keys = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    assert len(set(pairs([pa.array(column) for column in zip(*keys, strict=True)]))) == len(keys)


VALUES = st.one_of(
    st.binary(max_size=20),
    st.integers(240, 280).flatmap(lambda n: st.binary(min_size=n, max_size=n)),
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(VALUES, st.integers(-(2**63), 2**63 - 1), VALUES), min_size=1, max_size=40),
    st.tuples(*[st.integers(0, 2**64 - 1)] * 2),
    st.integers(0, 40),
)
def test_the_c_hashes_as_numpy_does(
    keys: list[tuple[bytes, int, bytes]], seeds: tuple[int, int], begin: int
) -> None:
    kinds = (pa.binary(), pa.int64(), pa.large_binary())
    columns = [pa.array(c, kind) for c, kind in zip(zip(*keys, strict=True), kinds, strict=True)]
    found = [hashed_by(way, columns, seeds) for way in ways()]
    assert all(each == found[0] for each in found)
    sliced = [column.slice(begin) for column in columns]
    assert [hashed_by(way, sliced, seeds) for way in ways()] == [found[0][begin:]] * len(found)
    for column in columns:
        assert len({str(hashed_by(way, [column], seeds)) for way in ways()}) == 1


def ways() -> list[Loops]:
    here = loops.__wrapped__()
    return [here, InPython()] if isinstance(here, InC) else [here]


def hashed_by(way: Loops, columns: list[pa.Array], seeds: tuple[int, int]) -> list[tuple[int, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "loops", lambda: way)
        return pairs(columns, KeyHash(seeds))


def test_coordinators_hash_by_seeds_of_their_own() -> None:
    column = pa.array(["a", "b"])
    assert not np.array_equal(KeyHash()([column])[0], KeyHash()([column])[0])


def pairs(columns: list[pa.Array], hashed: KeyHash = HASH) -> list[tuple[int, int]]:
    high, low = hashed(columns)
    return list(zip(high.tolist(), low.tolist(), strict=True))
