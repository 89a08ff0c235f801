"""What a table would need for values that its columns do not hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headgate.control_protocol.columns import Column, Struct
from headgate.data_plane.formats.field_names import with_lookup_names
from headgate.data_plane.formats.json.values import parse_record
from headgate.data_plane.formats.unknown_fields import UnknownFieldFinder


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        ("123456789.5", "decimal(11, 2)"),
        ("123456789012345678901234567890.12000", "decimal(32, 2)"),
        ("123456789012345678901234567890.123", None),
        ("1e35", "decimal(38, 2)"),
        ("1e36", None),
        ("1e1000000", None),
        ("1e-1000000", None),
    ],
)
def test_a_decimal_is_widened_only_for_a_value_that_then_fits(number: str, wanted: Any) -> None:
    columns = pa.schema([("price", pa.decimal128(10, 2))])
    finder = UnknownFieldFinder(columns, (), (), caseless=False)
    needed = finder.columns_needed_by_record(parse_record(b'{"price":%s}' % number.encode()))
    assert [column.type for column in needed.fields] == ([wanted] if wanted else [])


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        *((number, None) for number in ("0.1234", "-0.9999", "0.05", "0.50000", "0", "0.0")),
        ("1.5", "decimal(5, 4)"),
        ("-12", "decimal(6, 4)"),
        ("0.12345", None),
    ],
)
def test_a_decimal_of_fractions_alone_is_widened_only_for_digits_before_the_point(
    number: str, wanted: Any
) -> None:
    finder = UnknownFieldFinder(pa.schema([("share", pa.decimal128(4, 4))]), (), (), caseless=False)
    needed = finder.columns_needed_by_record(parse_record(b'{"share":%s}' % number.encode()))
    assert [column.type for column in needed.fields] == ([wanted] if wanted else [])


@pytest.mark.parametrize("name", ["Payload", "payload", "PAYLOAD"])
def test_a_field_that_is_used_otherwise_is_known_regardless_of_case(name: str) -> None:
    columns = with_lookup_names(pa.schema([("id", pa.int64())]), None, caseless=True)
    finder = UnknownFieldFinder(columns, {"Payload"}, (), caseless=True)
    assert finder.columns_needed_by_record({"ID": 1, name: {"x": 1}}) == Struct()
    written = Struct((Column("id", "long"), Column(name, "string")))
    assert finder.columns_needed_by_writer(written) == Struct()
