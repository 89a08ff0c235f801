"""A table with every type, hard values in it, and our files of them, committed without a sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.data_plane.batch.writer_task_plan import SourcePlan, load_table_and_plan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.tables.iceberg.manifests import to_manifest_data_files

NAN = float("nan")
INNER = StructType(NestedField(50, "q", DecimalType(10, 2)), NestedField(51, "d", DoubleType()))
FIELDS = (
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "int", IntegerType()),
    NestedField(3, "float", FloatType()),
    NestedField(4, "double", DoubleType()),
    NestedField(5, "zero", DoubleType()),
    NestedField(6, "zeros", FloatType()),
    NestedField(7, "nans", DoubleType()),
    NestedField(8, "decimal9", DecimalType(9, 2)),
    NestedField(9, "decimal18", DecimalType(18, 4)),
    NestedField(10, "decimal38", DecimalType(38, 10)),
    NestedField(11, "boolean", BooleanType()),
    NestedField(12, "string", StringType()),
    NestedField(13, "long_string", StringType()),
    NestedField(14, "last_string", StringType()),
    NestedField(15, "date", DateType()),
    NestedField(16, "timestamp", TimestampType()),
    NestedField(17, "timestamptz", TimestamptzType()),
    NestedField(18, "uuid", UUIDType()),
    NestedField(19, "fixed", FixedType(20)),
    NestedField(20, "binary", BinaryType()),
    NestedField(21, "high_binary", BinaryType()),
    NestedField(
        22,
        "struct",
        StructType(
            NestedField(40, "x", LongType()),
            NestedField(41, "y", StringType()),
            NestedField(42, "in", INNER),
        ),
    ),
    NestedField(23, "list", ListType(60, IntegerType(), element_required=False)),
    NestedField(24, "map", MapType(61, StringType(), 62, DecimalType(10, 2), False)),
    NestedField(
        25, "deep", ListType(63, StructType(NestedField(64, "t", TimestamptzType())), False)
    ),
    NestedField(26, "nothing", StringType()),
)
TIME = NestedField(27, "time", TimeType())  # Spark cannot read a table that has one
SCHEMA = Schema(*FIELDS)


def rows() -> list[dict[str, Any]]:
    return [_row(number) for number in range(3)] + [{"id": 3}]


def _row(number: int) -> dict[str, Any]:
    moment = datetime(1959 + 50 * number, 1, 2, 3, 4, 5, 678_901, UTC)
    inner = {"q": Decimal("1.25") * (number - 1), "d": [NAN, 0.5, -1.0][number]}
    return {
        "id": number,
        "int": -(2**31) + number,
        "float": [1.5, NAN, -0.0][number],
        "double": [NAN, -2.0, 7e300][number],
        "zero": 0.0,
        "zeros": [0.0, -0.0, 0.0][number],
        "nans": NAN,
        "decimal9": Decimal("-12.30") * number,
        "decimal18": Decimal("99999999999999.1234") * (number - 1),
        "decimal38": Decimal("-1234567890123456789012345678.0123456789") * (number - 1),
        "boolean": number == 1,
        "string": ["häßlich und sehr lang dazu", "\U0001f600" * 20, ""][number],
        "long_string": "y" * 5000 + str(number),
        "last_string": "\U0010ffff" * 20,
        "date": moment.date() if number else date(1, 1, 1),
        "time": time(23 - number, 59, 59, 999_999),
        "timestamp": moment.replace(tzinfo=None),
        "timestamptz": moment,
        "uuid": [b"\x80" + bytes(15), bytes(16), b"\x7f" + b"\xff" * 15][number],
        "fixed": bytes([255 - number]) * 20,
        "binary": b"\xff" * (20 if number else 3),
        "high_binary": b"a" + b"\xff" * 30,
        "struct": {"x": number, "y": f"nested, and longer than sixteen {number}", "in": inner},
        "list": [[1, None, -3], [], None][number],
        "map": [[("k", Decimal("1.00")), ("l", None)], [], None][number],
        "deep": [{"t": moment}, None] if number else [],
        "nothing": None,
    }


def table_of(
    catalog: Catalog,
    name: str,
    properties: Mapping[str, str] | None = None,
    *,
    schema: Schema = SCHEMA,
    order: SortOrder = UNSORTED_SORT_ORDER,
) -> Table:
    return catalog.create_table(name, schema, sort_order=order, properties=dict(properties or {}))


def arrow_rows(table: Table, some: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(some, schema_to_pyarrow(table.schema()))


def append(catalog: Catalog, table: Table, some: list[dict[str, Any]]) -> tuple[WrittenFile, ...]:
    """The rows in our files, in the table."""
    start = TableStart(
        table=".".join(table.name()),
        uuid=str(table.metadata.table_uuid),
        schema_id=table.schema().schema_id,
        spec_id=table.spec().spec_id,
        file_prefix=f"{table.location()}/data/nonce",
    )
    shape = file_shape_of(load_table_and_plan(catalog, start, SourcePlan({})))
    files = DataFiles(shape, start.file_prefix, 1 << 27)
    for key, of_partition in shape.partitioner.split(arrow_rows(table, some)):
        files.write(key, of_partition)
    written = files.finish()
    add_files(table, written)
    return written


def add_files(table: Table, written: Sequence[WrittenFile]) -> None:
    """Commit them, by pyiceberg's own append."""
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for file in to_manifest_data_files(table, tuple(written)):
            update.append_data_file(file)
