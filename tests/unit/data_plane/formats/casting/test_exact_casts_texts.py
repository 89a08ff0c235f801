"""A number that a text holds is read through the nearest double, as JSON's are."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest

from headgate.data_plane.formats.casting.exact_casts import cast, numbers_and_booleans_to_text

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


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("0", "0"),
        ("1.5", "1.5"),
        ("100", "100"),
        ("-0.0000001", "-0.0000001"),
        ("1234567890123456789012345678.0123456789", "1234567890123456789012345678.0123456789"),
    ],
)
def test_a_decimal_is_written_with_the_fewest_digits_and_no_exponent(
    number: str, text: str
) -> None:
    values = pa.array([Decimal(number), None], pa.decimal128(38, 10))
    assert numbers_and_booleans_to_text(values).to_pylist() == [text, None]


@pytest.mark.parametrize(
    ("source", "target"),
    [(pa.float64(), pa.int64()), (pa.float32(), pa.int64()), (pa.float32(), pa.int32())],
)
def test_a_float_just_beyond_an_integer_is_refused_before_the_processor_is_asked(
    source: pa.DataType, target: pa.DataType
) -> None:
    beyond = 2.0 ** (target.bit_width - 1)
    with pytest.raises(ValueError, match=f"is out of the range of {target}"):
        cast(pa.array([1.0, None, beyond], source), target)
    assert cast(pa.array([-beyond, None], source), target).to_pylist() == [int(-beyond), None]
