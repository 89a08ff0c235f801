"""Readers skip files by what a sink's commits say about them, and miss no row by it.

Each value is asked for through DuckDB (Delta's own kernel), delta-rs and Arrow, and compared with
what the same condition finds among all rows.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from integration.readers import duckdb_for_delta

from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_format import TableSpec
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.data_plane.batch.file_schema_plans import plan_of_file_schema
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.tables.delta.open_table import DeltaLocation
from headgate.tables.delta.table import DeltaSinkTable
from headgate.tables.delta.table_format import DeltaFormat

ROWS_PER_FILE = 2
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
MOMENTS = [
    FIRST,
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 0, 0, 1, UTC),
    datetime(2024, 2, 29, 12, 0, 0, 999, UTC),
    datetime(2024, 2, 29, 12, 0, 0, 1_500, UTC),
    LAST,
]
LONG = "x" * 40
VALUES: dict[str, list[Any]] = {
    "string": [
        *("", " ", "'", "%", "0", "10", "9", "A", "a", "a/b=c", "\n", "\\", '"', "é", "ﬀ"),
        *(LONG, LONG + "y", LONG + "z", LONG[:16], LONG[:15] + "y"),
        *("\ud7ff" * 20, "\ud7ff" * 16 + "z", "\ue000" * 20, "\U0010ffff" * 20, "😀" * 20),
        "y" * 15 + "\U0010ffff" * 9,
        "q" * 5_000,
    ],
    "long": [-(2**63), -(2**53) - 1, -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1],
    "int": [-(2**31), -1, 0, 1, 2**31 - 1],
    "float": [-math.inf, -3.4e38, -0.1, -0.0, 0.0, 1e-45, 0.1, 16777217.0, 3.4e38, math.inf],
    "double": [-math.inf, -1e308, -0.1, -0.0, 0.0, 5e-324, 0.1, 0.3, 1e308, math.inf, math.nan],
    "boolean": [False, True],
    "binary": [b"", b"\x00", b"a", b"\xff" * 20],
    "date": [date.min, date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date.max],
    "timestamptz": MOMENTS,
    "timestamp": [moment.replace(tzinfo=None) for moment in MOMENTS],
    "decimal(9, 2)": [Decimal(n) for n in ("-9999999.99", "-0.01", "0.00", "0.10", "9999999.99")],
    "decimal(38, 10)": [Decimal(10) ** 27, -(Decimal(10) ** 27), Decimal("0.0000000001")],
}
"""Files are made of neighbours in these lists, of nulls, and of a null beside a value."""

PARTITIONED = ("string", "long", "int", "boolean", "date", "timestamptz", "timestamp")
COMPARISONS = ("=", "<", "<=", ">", ">=", "<>")
COMPARED = (operator.eq, operator.lt, operator.le, operator.gt, operator.ge, operator.ne)


def fill(folder: Path, columns: Struct, files: Sequence[pa.Table], *by: str) -> Path:
    """A table with a file, or one for each partition, for each of these."""
    wanted = TableSpec("db.t", str(folder / "t"), create=True, columns=columns, partition_by=by)
    DeltaFormat().create(wanted)
    layout = DeltaFormat().file_schema(wanted)
    shape = file_shape_of(plan_of_file_schema(layout, "db.t", SourcePlan(kafka={})))
    written = []
    for number, rows in enumerate(files):
        file = DataFiles(shape, f"{layout.location}/data/headgate/{number}", 1 << 30)
        for key, part in shape.partitioner.split(rows.cast(shape.arrow_schema)):
            file.write(key, part)
        written += file.finish()
    table = DeltaSinkTable(DeltaLocation.from_spec(wanted), SinkName("sink"))
    require_landed(commit(table, claim_table(table), record(1, 1, len(written)), *written))
    return folder / "t"


def by_value(kind: str) -> list[Any]:
    return sorted(VALUES[kind], key=lambda value: (value != value, value))


def bounded_values(kind: str) -> list[Any]:
    """The values that all have bounds: delta-rs finds no rows of other files."""
    return [v for v in by_value(kind) if v == v and v != "\U0010ffff" * 20]


def of_type(kind: str, values: Sequence[Any]) -> Iterator[pa.Table]:
    """Files of ``ROWS_PER_FILE`` values and more, some with nulls."""
    schema = pa.schema([("v", arrow(kind)), ("id", pa.int64())])
    chunks = [values[at : at + ROWS_PER_FILE] for at in range(0, len(values), ROWS_PER_FILE)]
    chunks += [[None, None], [None, values[0]], [values[-1], None]]
    for number, chunk in enumerate(chunks):
        ids = [number] * len(chunk)
        yield pa.table([pa.array(chunk, schema.field("v").type), ids], schema=schema)


def arrow(kind: str) -> pa.DataType:
    if kind.startswith("decimal"):
        digits, scale = re.findall(r"\d+", kind)
        return pa.decimal128(int(digits), int(scale))
    named = {"timestamptz": pa.timestamp("us", "UTC"), "timestamp": pa.timestamp("us")}
    named |= {"long": pa.int64(), "int": pa.int32(), "float": pa.float32(), "double": pa.float64()}
    named |= {"boolean": pa.bool_(), "date": pa.date32()}
    return named.get(kind) or getattr(pa, kind)()


def one(kind: str) -> Struct:
    return Struct((Column("v", kind, required=False), Column("id", "long", required=False)))


def literal(kind: str, value: Any) -> str:
    """The value in SQL."""
    match kind:
        case "string":
            return "'" + value.replace("'", "''") + "'"
        case "binary":
            return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"
        case "float" | "double":
            return f"'{value!r}'::{'FLOAT' if kind == 'float' else 'DOUBLE'}"
        case "date":
            return f"DATE '{value.isoformat()}'"
        case "timestamp" | "timestamptz":
            epoch_us = (value.replace(tzinfo=UTC) - MOMENTS[2]) // timedelta(microseconds=1)
            made = f"make_timestamp({epoch_us})"
            return made if kind == "timestamp" else f"make_timestamptz({epoch_us})"
        case _ if kind.startswith("decimal"):
            return f"{value:f}::{kind.upper()}"
        case _:
            return str(value)


def conditions(kind: str) -> Iterator[str]:
    yield "v IS NULL"
    yield "v IS NOT NULL"
    for value in VALUES[kind]:
        for comparison in COMPARISONS:
            yield f"v {comparison} {literal(kind, value)}"


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_for_delta() as connection:
        yield connection


def refuse_differences(duck: duckdb.DuckDBPyConnection, table: Path, wanted: Iterable[str]) -> None:
    """What DuckDB finds in the table is what it finds among all of its rows."""
    duck.execute("CREATE OR REPLACE TABLE everything AS FROM delta_scan(?)", [str(table)])
    for where in wanted:
        said = duck.execute(f"SELECT id FROM delta_scan(?) WHERE {where}", [str(table)]).fetchall()
        true = duck.execute(f"SELECT id FROM everything WHERE {where}").fetchall()
        assert sorted(said) == sorted(true), where


def refuse_differences_in_arrow(table: Path, kind: str) -> None:
    """The same, for delta-rs's own reading: of which files, the log says."""
    dataset = DeltaTable(table).to_pyarrow_dataset()
    rows = dataset.to_table()
    v = ds.field("v")
    wanted = [v.is_null(), v.is_valid()]
    for value in pa.array(bounded_values(kind), rows.schema.field("v").type):
        wanted += [compare(v, value) for compare in COMPARED]
    for where in wanted:
        said = dataset.to_table(filter=where)["id"].to_pylist()
        assert sorted(said) == sorted(rows.filter(where)["id"].to_pylist()), where


FEW = ("double",)
"""Those whose statistics are cut or have values without an order; all others are wide."""


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in FEW else pytest.mark.wide) for k in VALUES]
)
def test_no_reader_misses_a_row_by_the_statistics(
    duck: duckdb.DuckDBPyConnection, tmp_path: Path, kind: str
) -> None:
    for name, values in {"given": VALUES[kind], "sorted": by_value(kind)}.items():
        table = fill(tmp_path / name, one(kind), list(of_type(kind, values)))
        refuse_differences(duck, table, conditions(kind))
    table = fill(tmp_path / "bounded", one(kind), list(of_type(kind, bounded_values(kind))))
    refuse_differences_in_arrow(table, kind)


@pytest.mark.wide
@pytest.mark.parametrize("kind", [*PARTITIONED, "decimal(9, 2)", "decimal(38, 10)"])
def test_no_reader_misses_a_row_by_the_partitions(
    duck: duckdb.DuckDBPyConnection, tmp_path: Path, kind: str
) -> None:
    table = fill(tmp_path, one(kind), list(of_type(kind, by_value(kind))), "v")
    refuse_differences(duck, table, conditions(kind))
    if not kind.startswith("decimal"):  # delta-rs reads partitions of -9.99 as "-9.-99"
        refuse_differences_in_arrow(table, kind)


def column(name: str, kind: Any) -> Column:
    return Column(name, kind, required=False)


DEEP = Struct((column("inner", "double"), column("text", "string")))


def test_no_reader_misses_a_row_by_what_is_inside_of_columns(
    duck: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    columns = Struct(
        (
            column("deep", DEEP),
            column("tags", ListOf(column("", "long"))),
            column("by", MapOf("string", column("", "long"))),
            column("a.b", "long"),
            column("Ünï", "long"),
            column("id", "long"),
        )
    )
    values: list[dict[str, Any]] = [
        {"deep": None, "tags": None, "by": None, "a.b": None, "Ünï": None},
        {"deep": {"inner": None, "text": None}, "tags": [], "by": [], "a.b": 1, "Ünï": 1},
        {"deep": {"inner": 0.0, "text": "a"}, "tags": [None], "by": [("k", None)], "a.b": 2},
        {"deep": {"inner": -0.0, "text": LONG}, "tags": [7], "by": [("k", 7)], "Ünï": 2},
    ]
    inner = pa.struct([("inner", pa.float64()), ("text", pa.string())])
    schema = pa.schema(
        [
            *(("deep", inner), ("tags", pa.list_(pa.int64()))),
            *(("by", pa.map_(pa.string(), pa.int64())), ("a.b", pa.int64())),
            *(("Ünï", pa.int64()), ("id", pa.int64())),
        ]
    )
    pairs = [[one, other] for one in values for other in values]
    files = [
        pa.Table.from_pylist([{**row, "id": number} for row in rows], schema)
        for number, rows in enumerate([*([each] for each in values), *pairs])
    ]
    table = fill(tmp_path, columns, files)
    names = ("deep", "deep.inner", "deep.text", "tags", '"by"', '"a.b"', '"Ünï"')
    nulls = [f"{name} IS {what}" for name in names for what in ("NULL", "NOT NULL")]
    bounds = [
        f"{name} {comparison} {value}"
        for name, value in (
            *(("deep.inner", 0), ("deep.inner", 5), ("deep.inner", "'-0.0'::DOUBLE")),
            *(("deep.text", f"'{LONG}'"), ("deep.text", "'b'")),
            *(('"Ünï"', 1), ('"Ünï"', 2)),
        )
        for comparison in COMPARISONS
    ]
    refuse_differences(duck, table, [*nulls, *bounds])


def test_no_reader_misses_a_row_by_columns_without_statistics(
    duck: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    names = [f"c{number}" for number in range(105)]
    columns = Struct((*(column(name, "long") for name in names), column("id", "long")))
    files = [
        pa.table({**{name: pa.array([value], pa.int64()) for name in names}, "id": [number]})
        for number, value in enumerate((1, 2, None))
    ]
    table = fill(tmp_path, columns, files)
    asked = ("IS NULL", "IS NOT NULL", "= 1", "> 1", "< 2", "<> 1")
    near = (names[0], *names[97:])
    refuse_differences(duck, table, [f"{name} {each}" for name in near for each in asked])


def test_readers_skip_files_by_the_statistics(
    duck: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """Without them all of the above would be true, too."""
    for kind in VALUES:
        if kind in (
            "binary",
            "timestamp",
            "timestamptz",
        ):  # no bounds, or none that DuckDB asks for
            continue
        table = fill(tmp_path / kind, one(kind), list(of_type(kind, by_value(kind))))
        where = f"v < {literal(kind, by_value(kind)[1])}"
        asked = f"EXPLAIN ANALYZE SELECT id FROM delta_scan(?) WHERE {where}"
        ((_, shown),) = duck.execute(asked, [str(table)]).fetchall()
        found = re.search(r"Scanning Files: (\d+)/(\d+)", shown)
        assert found, shown
        assert int(found[1]) < int(found[2]), kind
