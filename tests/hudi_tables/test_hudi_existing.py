"""Tables that others have made with Spark SQL: filled beside them, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_tables.world import QUICK, HudiWorld

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.errors import TableUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_format import RowKey
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.hudi.table_format import HudiFormat

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

pytestmark = pytest.mark.timeout(1_200)

COLUMNS = Struct(
    (
        Column("id", "long"),
        Column("name", "string", required=False),
        Column("at_partition", "int", required=False),
        Column("at_offset", "long", required=False),
        Column("city", "string", required=False),
    )
)
CITIES = ("Łódź", "a/b")
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}
VARYING = {**BUCKETS, "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}
BY_KEY = {"key": RowKey(("id",), "at_partition", "at_offset")}

Make = Callable[..., HudiWorld]


@pytest.fixture
def make(tmp_path: Path, spark: Any, lock: dict[str, str]) -> Iterator[Make]:
    def made(kind: str, index: dict[str, str] | None = None, **wanted: Any) -> HudiWorld:
        """A world about a table that Spark SQL has made, with its lock and this index."""
        told = {
            **lock,
            **QUICK,
            **(index or {}),
            "type": {"COPY_ON_WRITE": "cow"}.get(kind, "mor"),
            "primaryKey": "id",
            "hoodie.table.timeline.timezone": "UTC",
            "hoodie.datasource.write.partitionpath.urlencode": "true",
            "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
            "hoodie.clean.failed.writes.policy": "LAZY",
        }
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in told.items())
        spark.sql(
            "create table theirs (id bigint not null, name string, at_partition int, "
            f"at_offset bigint, city string not null) using hudi location '{tmp_path}/trips' "
            f"tblproperties ({properties}) "
            f"{'' if 'key' in wanted else 'partitioned by (city)'}"
        )
        return HudiWorld(tmp_path, spark, lock, columns=COLUMNS, **wanted)

    yield made
    spark.sql("drop table if exists theirs")


def theirs(world: HudiWorld, first: int, count: int, name: str = "theirs") -> None:
    """Insert rows by Spark SQL."""
    world.spark.sql(
        f"insert into theirs select id, '{name}', null, null, "
        f"if(id % 2 = 0, '{CITIES[0]}', '{CITIES[1]}') from range({first}, {first + count})"
    )


def ours(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": ["ours"] * len(ids),
            "at_partition": pa.array([0] * len(ids), pa.int32()),
            "at_offset": pa.array(ids, pa.int64()),
            "city": [CITIES[number % 2] for number in ids],
        }
    )


@pytest.mark.parametrize(
    ("kind", "index", "wanted"),
    [
        ("COPY_ON_WRITE", BUCKETS, {}),
        ("MERGE_ON_READ", BUCKETS, {}),
        ("MERGE_ON_READ", VARYING, {}),
        ("COPY_ON_WRITE", BUCKETS, BY_KEY),
        ("MERGE_ON_READ", VARYING, BY_KEY),
    ],
)
def test_a_table_that_others_cut_into_buckets_is_refused(
    make: Make, kind: str, index: dict[str, str], wanted: dict[str, Any]
) -> None:
    """Nothing in its properties says so."""
    world = make(kind, index, **wanted)
    theirs(world, 0, 12)
    with pytest.raises(TableUnfit, match="is cut into buckets"):
        world.open().read()
    with pytest.raises(TableUnfit, match="is cut into buckets"):
        HudiFormat().reader(world.wanted, SinkName("sink"))


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_table_of_spark_sql_is_appended_to_and_its_makers_upsert(make: Make, kind: str) -> None:
    """Rows of the sink and of others are found by each other's writers, each key once."""
    world = make(kind)
    theirs(world, 0, 4)
    table = world.open()
    view, stamp = claim_table(table), table.new_token()
    view = require_landed(
        commit(table, view, record(1, 1, 4), *world.write(ours(4, 5, 6, 7), stamp))
    )
    world.spark.sql("update theirs set name = 'updated' where id in (1, 5)")
    world.spark.sql(
        "merge into theirs using (select id, 'merged' as name, cast(null as int) as at_partition, "
        "cast(null as bigint) as at_offset, "
        f"if(id % 2 = 0, '{CITIES[0]}', '{CITIES[1]}') as city "
        "from range(6, 9)) as new on theirs.id = new.id and theirs.city = new.city "
        "when matched then update set * when not matched then insert *"
    )
    world.spark.sql("delete from theirs where id in (0, 4)")
    stamp = table.new_token()
    require_landed(commit(table, table.read(), record(1, 2, 6), *world.write(ours(9, 10), stamp)))
    expected = [
        (1, "updated"),
        (2, "theirs"),
        (3, "theirs"),
        (5, "updated"),
        (6, "merged"),
        (7, "merged"),
        (8, "merged"),
        (9, "ours"),
        (10, "ours"),
    ]
    found = world.read().select("id", "name", "city").collect()
    assert sorted((row.id, row.name) for row in found) == expected
    assert all(row.city == CITIES[row.id % 2] for row in found)
    by_rust = hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    told = [row for batch in by_rust for row in batch.select(["id", "name"]).to_pylist()]
    assert sorted((row["id"], row["name"]) for row in told) == expected
