"""Upper bounds cut short are still upper bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.data_plane.files.metrics import (
    truncated_bytes_upper_bound,
    truncated_text_upper_bound,
)

LAST = "\U0010ffff"


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 5))
def test_a_text_above_is_short_and_above(value: str, length: int) -> None:
    above = truncated_text_upper_bound(value, length)
    if above is None:
        assert value.startswith(LAST * length)
    else:
        assert len(above) <= length
        assert above.encode() >= value.encode()


@given(st.binary(), st.integers(1, 5))
def test_bytes_above_are_short_and_above(value: bytes, length: int) -> None:
    above = truncated_bytes_upper_bound(value, length)
    if above is None:
        assert value.startswith(b"\xff" * length)
    else:
        assert len(above) <= length
        assert above >= value


@pytest.mark.parametrize(
    ("value", "above"),
    [
        ("abc", "abc"),
        ("abcd", "abd"),
        (f"ab{LAST}d", "ac"),
        ("ab\ud7ff!", "ab\ue000"),
        (LAST * 4, None),
    ],
)
def test_the_character_before_the_surrogates_has_one_after(value: str, above: str | None) -> None:
    assert truncated_text_upper_bound(value, 3) == above
