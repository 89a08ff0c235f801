"""What travels of a data file, as Iceberg's manifests need it."""

from __future__ import annotations

from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headgate.tables.iceberg.data_file import FileDetail

_COLUMNS = st.integers(1, 400)
_COUNTS = st.dictionaries(_COLUMNS, st.integers(0, 2**60), max_size=4)
_BOUNDS = st.dictionaries(_COLUMNS, st.binary(max_size=9), max_size=4)
DETAILS = st.builds(
    FileDetail,
    spec_id=st.integers(0, 9),
    partition=st.lists(st.none() | st.binary(max_size=9), max_size=3).map(tuple),
    file_format=st.sampled_from(["parquet", "orc", "avro"]),
    sort_order_id=st.none() | st.integers(0, 9),
    column_sizes=_COUNTS,
    value_counts=_COUNTS,
    null_value_counts=_COUNTS,
    nan_value_counts=_COUNTS,
    lower_bounds=_BOUNDS,
    upper_bounds=_BOUNDS,
    split_offsets=st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
)
FROZEN = (
    "010e7061727175657402040208010000000000020402020002a00600020"
    "20002b40100000000000202000202610002020002027a000408d08c0100"
)


@given(DETAILS)
def test_a_detail_comes_back_as_it_went(detail: FileDetail) -> None:
    assert FileDetail.decode(detail.encode()) == detail


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_a_detail_or_a_value_error(told: bytes, ours: bool) -> None:
    with suppress(ValueError):
        FileDetail.decode(b"\x01" + told if ours else told)


@pytest.mark.parametrize("spoiled", [b"", b"\x02" + FileDetail().encode()[1:]])
def test_another_version_is_named(spoiled: bytes) -> None:
    with pytest.raises(ValueError, match="another version"):
        FileDetail.decode(spoiled)


def test_bytes_behind_its_end_are_noticed() -> None:
    with pytest.raises(ValueError, match="behind its end"):
        FileDetail.decode(FileDetail().encode() + b"x")


def test_a_column_named_twice_is_noticed() -> None:
    twice = FileDetail(column_sizes={1: 5, 2: 6}).encode().replace(b"\x04\x02\x04", b"\x04\x02\x02")
    with pytest.raises(ValueError, match="twice"):
        FileDetail.decode(twice)


def test_the_bytes_of_version_1_are_frozen() -> None:
    """Statuses of an older release lie in the control topic while members are exchanged."""
    detail = FileDetail(
        spec_id=1,
        partition=(b"\x01\x00\x00\x00", None),
        sort_order_id=2,
        column_sizes={1: 400},
        value_counts={1: 90},
        lower_bounds={1: b"a"},
        upper_bounds={1: b"z"},
        split_offsets=(4, 9_000),
    )
    assert detail.encode().hex() == FROZEN
