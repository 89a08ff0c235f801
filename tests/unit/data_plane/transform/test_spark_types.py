"""Types on the way to Spark and back, and which go into a table's column without a question."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.data_plane.transform.spark_types import (
    is_assignable_type,
    to_spark_types_and_unsupported,
    with_large_arrow_types,
)

NESTED = pa.struct(
    [("a", pa.large_list(pa.large_string())), ("m", pa.map_(pa.int32(), pa.date32()))]
)


def test_there_and_back_a_nested_type_is_the_same() -> None:
    schema, lacking = to_spark_types_and_unsupported(pa.schema([("x", NESTED)]))
    assert not lacking
    assert schema.field("x").type.field("a").type == pa.list_(pa.string())
    assert with_large_arrow_types(schema.field("x").type) == NESTED


@pytest.mark.parametrize(
    "kind",
    [pa.uuid(), pa.time64("us"), pa.binary(4), pa.timestamp("ns"), pa.timestamp("ns", "UTC")],
)
def test_what_spark_has_no_type_for_is_named_wherever_it_is(kind: pa.DataType) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", kind), ("c", pa.struct([("d", pa.list_(kind))]))])
    assert to_spark_types_and_unsupported(schema)[1] == ["b", "c"]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.int32(), pa.int64()),
        (pa.int32(), pa.float64()),
        (pa.int64(), pa.decimal128(19, 0)),
        (pa.int32(), pa.decimal128(12, 2)),
        (pa.float32(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(12, 4)),
        (pa.large_string(), pa.uuid()),
        (pa.large_string(), pa.time64("us")),
        (pa.large_string(), pa.timestamp("ns")),
        (pa.large_string(), pa.timestamp("ns", "UTC")),
        (pa.large_binary(), pa.binary(4)),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("ns")),
        (pa.null(), pa.large_string()),
        (NESTED, NESTED),
        (pa.large_list(pa.int32()), pa.large_list(pa.int64())),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    ],
)
def test_a_wider_column_takes_it(source: pa.DataType, target: pa.DataType) -> None:
    assert is_assignable_type(source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.decimal128(18, 0)),
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.decimal128(38, 10)),
        (pa.decimal128(12, 4), pa.decimal128(12, 2)),
        (pa.decimal128(12, 2), pa.decimal128(12, 4)),
        (pa.decimal128(4, 0), pa.int64()),
        (pa.large_string(), pa.int64()),
        (pa.large_string(), pa.timestamp("us")),
        (pa.int64(), pa.large_string()),
        (pa.int64(), pa.timestamp("us")),
        (pa.bool_(), pa.int32()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.timestamp("us")),
        (pa.large_list(pa.int64()), pa.large_list(pa.int32())),
        (pa.struct([("a", pa.int32()), ("c", pa.int32())]), pa.struct([("a", pa.int64())])),
        (pa.struct([]), pa.struct([pa.field("a", pa.int64(), nullable=False)])),
        (pa.map_(pa.int64(), pa.int64()), pa.map_(pa.int32(), pa.int64())),
        (pa.large_list(pa.int64()), pa.int64()),
    ],
)
def test_what_only_sometimes_fits_must_be_cast_by_the_transform(
    source: pa.DataType, target: pa.DataType
) -> None:
    assert not is_assignable_type(source, target)
