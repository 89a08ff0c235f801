"""Rows that are appended to a table whose updates lie in logs until others compact them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_tables.world import HudiWorld

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.hudi.append_table import HudiSinkTable
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.write_configuration import KEY, TYPE

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

pytestmark = pytest.mark.timeout(900)

COLUMNS = Struct((Column("id", "long"), Column("name", "string", required=False)))


@pytest.fixture
def world(tmp_path: Path, spark: Any, lock: dict[str, str]) -> Iterator[HudiWorld]:
    properties = {TYPE: "MERGE_ON_READ", KEY: "id"}
    world = HudiWorld(tmp_path, spark, lock, columns=COLUMNS, properties=properties)
    spark.sql(f"create table merged using hudi location '{world.folder}'")
    yield world
    spark.sql("drop table merged")


def test_appends_between_others_updates_compaction_and_cleaning_are_all_read(
    world: HudiWorld,
) -> None:
    """A compaction is planned before a commit of the sink, and executed behind it."""
    table = world.open()
    view = claim_table(table)
    view = require_landed(commit(table, view, record(1, 1, 3), file(world, table, 0, 1, 2)))
    upsert(world, {1: "first"})
    assert logs(world)
    holds(world, {0: "ours", 1: "first", 2: "ours"}, 3)

    call(
        world,
        "run_compaction",
        "path => '{}', op => 'schedule'",
        "hoodie.compact.inline.max.delta.commits=1",
    )
    view = require_landed(commit(table, table.read(), record(1, 2, 5), file(world, table, 3, 4)))
    upsert(world, {0: "second", 3: "second"})
    holds(world, {0: "second", 1: "first", 2: "ours", 3: "second", 4: "ours"}, 5)
    call(world, "run_compaction", "path => '{}', op => 'execute'")
    call(
        world,
        "run_compaction",
        "path => '{}', op => 'scheduleandexecute'",
        "hoodie.compact.inline.max.delta.commits=1",
    )
    before = len(world.data_files())
    call(
        world,
        "run_clean",
        "table => 'merged', clean_policy => 'KEEP_LATEST_FILE_VERSIONS', "
        "file_versions_retained => 1",
    )
    assert len(world.data_files()) < before, "nothing was cleaned"
    heir = world.open()
    claim_table(heir, epoch=2)
    require_landed(commit(heir, heir.read(), record(2, 1, 6), file(world, heir, 5)))
    holds(world, {0: "second", 1: "first", 2: "ours", 3: "second", 4: "ours", 5: "ours"}, 6)


def file(world: HudiWorld, table: HudiSinkTable, *ids: int) -> WrittenFile:
    told = pa.table({"id": pa.array(ids, pa.int64()), "name": ["ours"] * len(ids)})
    return world.write(told, table.new_token())[0]


def upsert(world: HudiWorld, told: Mapping[int, str]) -> None:
    """By Hudi's own Spark writer."""
    options = {
        **world.place.settings,
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.upsert.shuffle.parallelism": "1",
    }
    frame = world.spark.createDataFrame(list(told.items()), "id long, name string")
    frame.write.format("hudi").options(**options).mode("append").save(str(world.folder))


def call(world: HudiWorld, procedure: str, told: str, *settings: str) -> None:
    """One of Hudi's procedures, under the table's lock."""
    options = ",".join([*(f"{k}={v}" for k, v in world.place.settings.items()), *settings])
    what = f"{told.format(world.folder)}, options => '{options}'"
    world.spark.sql(f"call {procedure}({what})").collect()


def logs(world: HudiWorld) -> list[Path]:
    return [path for path in world.folder.glob(".*.log.*") if not path.name.endswith(".crc")]


def holds(world: HudiWorld, expected: Mapping[int, str], ours: int) -> None:
    """As Spark, hudi-rs and the sink's reader have it; the sink has brought so many rows."""
    found = world.read().select("id", "name").collect()
    assert sorted(map(tuple, found)) == sorted(expected.items())
    batches = hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    told = [row for batch in batches for row in batch.select(["id", "name"]).to_pylist()]
    assert sorted((row["id"], row["name"]) for row in told) == sorted(expected.items())

    reader = HudiFormat().reader(world.wanted, SinkName("sink"))
    history = reader.history()
    assert history.complete
    assert sum(each.added_records for each in history.commits) == ours
    assert sum(each.records for each in reader.live_files()) == len(expected)
    _, scanned = reader.scan(["id"])
    ids = [n for each in scanned for batch in each.batches() for n in batch.column(0).to_pylist()]
    assert sorted(ids) == sorted(expected)
    reader.close()
