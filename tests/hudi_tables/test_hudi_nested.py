"""Hudi tables of nested columns: files of ours, read and rewritten by Hudi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_tables.world import HudiWorld

from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

pytestmark = pytest.mark.timeout(600)

STOP = Struct((Column("zone", "string"), Column("fare", "decimal(9, 2)", required=False)))
COLUMNS = Struct(
    (
        Column("id", "long"),
        Column("rider", Struct((Column("name", "string", required=False), Column("age", "int")))),
        Column("stops", ListOf(Column("", STOP, required=False)), required=False),
        Column("counts", MapOf("string", Column("", "long", required=False)), required=False),
    )
)
KEY = {"hoodie.datasource.write.recordkey.field": "id"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("rider", pa.struct({"name": pa.string(), "age": pa.int32()})),
        pa.field("stops", pa.list_(pa.struct({"zone": pa.string(), "fare": pa.decimal128(9, 2)}))),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def row(number: int, name: str = "ada") -> dict[str, Any]:
    return {
        "id": number,
        "rider": {"name": name, "age": 30 + number},
        "stops": [{"zone": "a", "fare": None}, {"zone": "b", "fare": None}][:number] or None,
        "counts": [("x", number), ("y", None)],
    }


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_nested_columns_are_read_upserted_and_clustered_by_hudi(
    tmp_path: Path, spark: Any, lock: dict[str, str], kind: str
) -> None:
    properties = {**KEY, "hoodie.table.type": kind}
    world = HudiWorld(tmp_path, spark, lock, columns=COLUMNS, properties=properties)
    table = world.open()
    view = claim_table(table)
    for number in (0, 1, 2):
        files = world.write(pa.Table.from_pylist([row(number)], SCHEMA), table.new_token())
        view = require_landed(commit(table, view, record(1, number + 1, number), *files))
    expected = {number: row(number) for number in range(3)}
    assert by_spark(world) == expected
    by_rust = hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    found = [plain(each) for batch in by_rust for each in batch.to_pylist()]
    assert {each["id"]: each for each in found} == expected

    options = {
        **world.place.settings,
        **KEY,
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.upsert.shuffle.parallelism": "1",
    }
    theirs = world.read().where("id = 1").withColumn("rider", named("eve", 31))
    theirs.select("id", "rider", "stops", "counts").write.format("hudi").options(**options).mode(
        "append"
    ).save(str(world.folder))
    if kind == "COPY_ON_WRITE":
        world.compact(by="id")
    assert by_spark(world) == {**expected, 1: row(1, "eve")}
    files = world.write(pa.Table.from_pylist([row(3)], SCHEMA), table.new_token())
    require_landed(commit(table, table.read(), record(1, 4, 9), *files))
    assert by_spark(world) == {**expected, 1: row(1, "eve"), 3: row(3)}


def named(name: str, age: int) -> Any:
    from pyspark.sql import functions as f

    return f.struct(f.lit(name).alias("name"), f.lit(age).alias("age"))


def by_spark(world: HudiWorld) -> dict[int, dict[str, Any]]:
    found = world.read().select("id", "rider", "stops", "counts").collect()
    rows = [plain(each.asDict(recursive=True)) for each in found]
    assert len({each["id"] for each in rows}) == len(rows)
    return {each["id"]: each for each in rows}


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """With maps as the pairs that pyarrow tells."""
    return {name: found[name] for name in SCHEMA.names} | {
        "counts": sorted(dict(found["counts"]).items())
    }
