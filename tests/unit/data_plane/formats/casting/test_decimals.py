"""Decimals whose writers give the scale beside the digits: every digit, or the value is refused."""

from __future__ import annotations

from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.data_plane.formats.casting.cast_to_table import cast_rows
from headgate.data_plane.formats.casting.decimals import Unscaled, unscaled_to_decimals
from headgate.data_plane.formats.casting.exact_casts import cast
from headgate.data_plane.formats.record_format import Faults

DIGITS = 10**38 // 81  # 1234567901...: no digit of it may become a zero
MOST = 10**38 - 1
EXACT = Context(prec=100)


def unscaled(scale: int, *numbers: int | None) -> pa.Array:
    stored = [
        None if n is None else n.to_bytes((n.bit_length() + 8) // 8, "big", signed=True)
        for n in numbers
    ]
    return pa.ExtensionArray.from_storage(Unscaled(scale), pa.array(stored, pa.large_binary()))


@pytest.mark.parametrize(
    ("scale", "number"),
    [
        (0, MOST),
        (38, MOST),
        (19, DIGITS),
        (39, DIGITS * 10),
        (39, MOST * 10),
        (40, DIGITS * 100),
        (-1, DIGITS // 10),
        (-5, DIGITS // 10**5),
        (76, DIGITS * 10**38),
        (77, 10**39),
        (-(10**9), 0),
        (10**9, 0),
    ],
)
def test_every_digit_is_kept_whatever_the_scale(scale: int, number: int) -> None:
    plus, minus = (Decimal(n).scaleb(-scale, EXACT) if n else Decimal() for n in (number, -number))
    found = unscaled_to_decimals(unscaled(scale, number, None, -number)).to_pylist()
    assert found == [plus, None, minus]


@pytest.mark.parametrize(
    ("scale", "number"),
    [
        (0, MOST + 1),
        (38, MOST + 1),
        (39, 1),
        (39, DIGITS * 10 + 1),
        (39, (MOST + 1) * 10),
        (-1, MOST // 10 + 1),
        (-(10**9), 1),
        (10**9, 1),
    ],
)
def test_what_38_digits_do_not_hold_is_refused(scale: int, number: int) -> None:
    for sign in (1, -1):
        with pytest.raises(ValueError, match="a decimal of more than 38 digits"):
            unscaled_to_decimals(unscaled(scale, sign * number))


@st.composite
def columns(draw: st.DrawFn) -> pa.DataType:
    precision = draw(st.integers(30, 38) | st.integers(1, 38))
    return pa.decimal128(precision, draw(st.integers(0, precision)))


@given(st.integers(-MOST, MOST), st.integers(0, 38), columns())
@example(92, 0, pa.decimal128(38, 38))  # times 10**38, and in 128 bits again within 38 digits
@example(4 * 10**18, 0, pa.decimal128(38, 20))
@example(4 * 10**20, 0, pa.decimal128(38, 18))
def test_no_decimal_becomes_another(number: int, scale: int, column: pa.DataType) -> None:
    value = Decimal(number).scaleb(-scale, EXACT)
    moved = value.scaleb(column.scale, EXACT)
    fits = abs(moved) < 10**column.precision and moved == moved.to_integral_value()
    sources = [
        pa.array([value], pa.decimal128(38, scale)),
        pa.array([f"{value:f}"], pa.large_string()),
    ]
    if value == number and abs(number) < 2**63:
        sources.append(pa.array([number], pa.int64()))
    for source in sources:
        try:
            assert cast(source, column).to_pylist() == [value]
            assert fits
        except pa.ArrowInvalid:
            assert not fits


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e-20, 1e-20), columns())
@example(1.7391420043434412e-23, pa.decimal128(38, 0))
@example(-0.0, pa.decimal128(10, 2))
@example(1e22, pa.decimal128(38, 10))
def test_a_double_is_the_decimal_that_it_is_written_as(number: float, column: pa.DataType) -> None:
    value = Decimal(str(number))
    moved = value.scaleb(column.scale, EXACT)
    fits = abs(moved) < 10**column.precision and moved == moved.to_integral_value()
    try:
        assert cast(pa.array([number]), column).to_pylist() == [value]
        assert fits
    except ValueError:
        assert not fits


def test_in_a_record_that_becomes_json_text_it_is_a_number() -> None:
    """Its bytes alone would not tell the scale. A text holds any number of digits."""
    fields = [unscaled(2, 123456, None, 10**60 + 1, 0), unscaled(-3, -12, 1, None, 7)]
    inside = pa.StructArray.from_arrays(fields, names=["m", "n"])
    records, faults = pa.StructArray.from_arrays([inside], names=["r"]), Faults()
    found = cast_rows(records, pa.schema({"r": pa.large_string()}), faults)
    wide = f"1{'0' * 57}0.01"
    assert found.column("r").to_pylist() == [
        '{"m":1234.56,"n":-1.2E+4}',
        '{"m":null,"n":1E+3}',
        f'{{"m":{wide},"n":null}}',
        '{"m":0.00,"n":7E+3}',
    ]
    assert faults.reasons == {}
