"""A number that a text holds is read through the nearest double, as JSON's are."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

from headgate.data_plane.formats.casting.exact_casts import cast

HALFWAY = Fraction(1) + Fraction(1, 1 << 24)
"""Between two floats: the nearest double of anything near it is exactly it."""


def decimal_text(number: Fraction) -> str:
    """All of its digits."""
    digits = str(number.numerator * 10**120 // number.denominator)
    return f"{digits[:-120]}.{digits[-120:]}".rstrip("0")


@pytest.mark.parametrize("nearest", [HALFWAY + Fraction(1, 1 << 60), HALFWAY, HALFWAY / 3])
def test_a_float_is_that_of_the_texts_double(nearest: Fraction) -> None:
    text = decimal_text(nearest)
    found = cast(pa.array([text, "2", None], pa.large_string()), pa.float32())
    assert found.to_pylist() == [pa.scalar(float(text)).cast(pa.float32()).as_py(), 2.0, None]
