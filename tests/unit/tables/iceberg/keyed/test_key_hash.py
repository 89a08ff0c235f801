"""Hashes of keys: equal keys have equal ones, whatever they are stored as, and others do not."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.tables.iceberg.keyed.key_hash import KeyHash

HASH = KeyHash((7, 11))
LONG = "x" * 300


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-(2**63), -1, 0, 1, 2**63 - 1], pa.int64()),
        pa.array([-1, 0, 1], pa.int32()),
        pa.array(["", "a", "ab", "a\0", "abcdefgh", "abcdefgh\0", "abcdefghi", LONG, LONG + "y"]),
        pa.array([b"", b"\0", b"\0\0", bytes(8), bytes(9)], pa.large_binary()),
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


def test_coordinators_hash_by_seeds_of_their_own() -> None:
    column = pa.array(["a", "b"])
    assert not np.array_equal(KeyHash()([column])[0], KeyHash()([column])[0])


def pairs(columns: list[pa.Array]) -> list[tuple[int, int]]:
    high, low = HASH(columns)
    return list(zip(high.tolist(), low.tolist(), strict=True))
