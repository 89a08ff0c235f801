"""Numbers with a unit become times to the last digit, or are refused; columns and single ones."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.casting import epoch_times
from headgate.data_plane.formats.casting.cast_to_table import cast_column
from headgate.data_plane.formats.record_format import Faults

TARGETS = [pa.timestamp("us", tz="UTC"), pa.timestamp("ns"), pa.time64("us")]
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def column(target: pa.DataType, unit: str) -> pa.Field:
    return column_options.with_read_options_of_rule(
        pa.field("v", target), column_options.ColumnRule(unit=unit)
    )


def read(values: pa.Array, target: pa.DataType, unit: str) -> tuple[list[int | None], set[int]]:
    faults = Faults()
    found = cast_column(values, column(target, unit), faults)
    return found.cast(pa.int64()).to_pylist(), set(faults.reasons)


def wanted(number: Decimal, target: pa.DataType, unit: str) -> int | None:
    """By plain arithmetic; ``None`` where the column cannot hold it."""
    count = number * PER_SECOND[target.unit] / PER_SECOND[unit]
    if count != int(count):
        return None
    if pa.types.is_time(target):
        return int(count) if 0 <= count < 86_400 * PER_SECOND[target.unit] else None
    least, most = -62_135_596_800, 253_402_300_800
    seconds = Decimal(int(count)) / PER_SECOND[target.unit]
    inside = least <= seconds < most and -(2**63) <= count < 2**63
    return int(count) if inside else None


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(10**6), 10**6),
    st.integers(1_600_000_000, 1_900_000_000).flatmap(
        lambda s: st.sampled_from([s, s * 10**3, s * 10**6, s * 10**9 + 7])
    ),
)
DECIMALS = st.decimals(-(10**13), 10**13, places=9, allow_nan=False) | NUMBERS.map(Decimal)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=6), st.sampled_from(TARGETS), st.sampled_from("smun"))
def test_whole_numbers_count_units(numbers: list[int], target: pa.DataType, letter: str) -> None:
    unit = {"s": "s", "m": "ms", "u": "us", "n": "ns"}[letter]
    expected = [wanted(Decimal(number), target, unit) for number in numbers]
    for values in (
        pa.array(numbers, pa.int64()),
        pa.array(map(str, numbers), pa.large_string()),
        pa.array(map(Decimal, numbers), pa.decimal128(38, 0)),
    ):
        found, bad = read(values, target, unit)
        assert bad == {row for row, value in enumerate(expected) if value is None}
        assert [f for row, f in enumerate(found) if row not in bad] == [
            value for value in expected if value is not None
        ]


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(DECIMALS, min_size=1, max_size=6),
    st.sampled_from(TARGETS),
    st.sampled_from(["s", "ms", "us", "ns"]),
)
def test_fractions_are_kept_or_refused(
    numbers: list[Decimal], target: pa.DataType, unit: str
) -> None:
    expected = [wanted(number, target, unit) for number in numbers]
    for values in (
        pa.array([f"{number:f}" for number in numbers], pa.large_string()),
        pa.array([f"{number:e}" for number in numbers], pa.large_string()),
        pa.array(numbers, pa.decimal128(38, 9)),
    ):
        found, bad = read(values, target, unit)
        assert bad == {row for row, value in enumerate(expected) if value is None}
        assert [f for row, f in enumerate(found) if row not in bad] == [
            value for value in expected if value is not None
        ]


def test_doubles_are_taken_as_they_are_written() -> None:
    values = pa.array([1_700_000_000.123456, 0.5, None, float("nan"), 1e300, 0.1234567])
    found, bad = read(values, TARGETS[0], "s")
    assert found[:3] == [1_700_000_000_123_456, 500_000, None]
    assert bad == {3, 4, 5}


@pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "9" * 5_000, "-1e40", "1E+41"])
def test_numbers_beyond_measure_are_refused_at_once(text: str) -> None:
    for target in TARGETS:
        assert read(pa.array(["5", text], pa.large_string()), target, "s")[1] == {1}
    with pytest.raises(ValueError, match=r"."):
        epoch_times.count_of_number_text_in_target_unit(text, "s", TARGETS[0])


def test_text_that_is_no_number_is_a_time_as_ever() -> None:
    texts = pa.array(["1700000000", "2023-11-14T22:13:20Z", None, "soon"], pa.large_string())
    found, bad = read(texts, TARGETS[0], "s")
    assert found[:3] == [1_700_000_000_000_000] * 2 + [None]
    assert bad == {3}
