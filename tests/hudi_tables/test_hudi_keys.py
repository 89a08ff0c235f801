"""Hudi tables with a key: upserts and deletes that participants staged, by every index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_tables.world import HudiWorld

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import (
    HudiUnsafe,
    KeyChanged,
    KeyInTwoPartitions,
    TableChanged,
)
from headgate.control_protocol.events import FileKind
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Refused, TableView, Unknown
from headgate.control_protocol.table_format import RowKey
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.hudi.reader import HudiReader
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.upsert_table import HudiKeyedJava, HudiKeyedTable
from headgate.tables.hudi.write_client import HudiJava

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

pytestmark = pytest.mark.timeout(1_200)

COLUMNS = Struct(
    (
        Column("id", "long"),
        Column("zone", "string"),
        Column("name", "string", required=False),
        Column("fare", "decimal(9, 2)"),
        Column("at", "timestamptz"),
        Column("at_partition", "int", required=False),
        Column("at_offset", "long", required=False),
    )
)
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("zone", pa.string()),
        pa.field("name", pa.string()),
        pa.field("fare", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("at_partition", pa.int32()),
        pa.field("at_offset", pa.int64()),
    ]
)
GONE = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("zone", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
    ]
)
INDEX = "hoodie.index.type"
WAYS = [
    ("COPY_ON_WRITE", "SIMPLE", ()),
    ("MERGE_ON_READ", "SIMPLE", ("zone",)),
    ("COPY_ON_WRITE", "BLOOM", ("zone",)),
    ("MERGE_ON_READ", "BUCKET", ("zone",)),
    ("COPY_ON_WRITE", "BUCKET", ()),
    ("MERGE_ON_READ", "GLOBAL_RECORD_LEVEL_INDEX", ("zone",)),
]

Make = Callable[..., HudiWorld]


@pytest.fixture
def make(tmp_path: Path, spark: Any, lock: dict[str, str]) -> Iterator[Make]:
    def made(
        kind: str = "COPY_ON_WRITE", index: str = "SIMPLE", by: tuple[str, ...] = ()
    ) -> HudiWorld:
        return HudiWorld(
            tmp_path,
            spark,
            lock,
            columns=COLUMNS,
            partition_by=by,
            key=RowKey(("id", "zone"), "at_partition", "at_offset"),
            properties={
                "hoodie.table.type": kind,
                INDEX: index,
                **({"hoodie.bucket.index.num.buckets": "2"} if index == "BUCKET" else {}),
            },
        )

    return made


def zone(number: int) -> str:
    return f"zone {number % 2}/%"


def rows(*told: tuple[int, str, int, int]) -> pa.Table:
    """Key, name, partition, offset."""
    return pa.Table.from_pylist(
        [
            {
                "id": number,
                "zone": zone(number),
                "name": name,
                "fare": Decimal("1.25"),
                "at": NOON,
                "at_partition": partition,
                "at_offset": offset,
            }
            for number, name, partition, offset in told
        ],
        SCHEMA,
    )


def gone(*told: tuple[int, int, int]) -> pa.Table:
    """Key, partition, offset."""
    return pa.Table.from_pylist(
        [
            {"id": number, "zone": zone(number), "_partition": partition, "_offset": offset}
            for number, partition, offset in told
        ],
        GONE,
    )


def names(world: HudiWorld) -> dict[int, str]:
    """As Hudi's Spark reader has it; each key once."""
    found = world.read().select("id", "zone", "name", "at_partition").collect()
    assert all(row.zone == zone(row.id) and row.at_partition >= 0 for row in found)
    told = {row.id: row.name for row in found}
    assert len(told) == len(found)
    return told


def names_by_hudi_rs(world: HudiWorld) -> dict[int, str]:
    batches = hudi.HudiTableBuilder.from_base_uri(str(world.folder)).build().read()
    return dict(
        pair
        for batch in batches
        for pair in zip(
            batch.column("id").to_pylist(), batch.column("name").to_pylist(), strict=True
        )
    )


def left(world: HudiWorld) -> frozenset[str]:
    """What was begun, and is neither complete nor rolled back."""
    java = HudiJava(world.place, world.place.read_config_ensuring_uuid().schema)
    return java.pending_instants(java.load_meta_client())


def three(world: HudiWorld) -> tuple[HudiKeyedTable, TableView]:
    """A table with the rows 1 to 3."""
    table = world.open()
    assert isinstance(table, HudiKeyedTable)
    file = world.stage(rows((1, "a", 0, 1), (2, "b", 0, 2), (3, "c", 1, 1)))
    return table, require_landed(commit(table, claim_table(table), record(1, 1, 3), file))


@pytest.mark.parametrize(("kind", "index", "by"), WAYS)
def test_the_last_record_of_a_key_wins_whatever_file_it_came_in(
    make: Make, kind: str, index: str, by: tuple[str, ...]
) -> None:
    world = make(kind, index, by)
    table = world.open()
    newer = world.stage(rows((1, "new", 0, 3), (2, "x", 0, 4)))
    older = world.stage(rows((1, "old", 0, 1), (3, "y", 1, 1)))
    view = require_landed(commit(table, claim_table(table), record(1, 1, 5), newer, older))
    assert view.record.keys == KeyCounts(inserted=3, superseded=1)
    more = world.stage(rows((1, "newer", 0, 5), (2, "z", 0, 6), (4, "four", 0, 9)))
    less = world.stage(gone((2, 0, 7), (3, 1, 2), (9, 1, 3), (4, 0, 8)), FileKind.KEYS)
    view = require_landed(commit(table, view, record(1, 2, 9), less, more))
    assert view.record.keys == KeyCounts(inserted=1, updated=1, deleted=2, absent=1, superseded=2)
    assert names(world) == {1: "newer", 4: "four"} == names_by_hudi_rs(world)
    assert world.open().read() == view
    assert not list(world.staged.rglob("*.parquet"))
    again = world.stage(rows((2, "again", 0, 10)))  # a key that was deleted comes back
    view = require_landed(commit(table, view, record(1, 3, 11), again))
    assert view.record.keys == KeyCounts(inserted=1)
    assert names(world) == {1: "newer", 2: "again", 4: "four"}
    reader = HudiReader(world.place, SinkName("sink"))
    assert sum(file.records for file in reader.live_files()) == 3
    _, files = reader.scan(["id"])
    assert sorted(n for f in files for b in f.batches() for n in b.column(0).to_pylist()) == [
        1,
        2,
        4,
    ]
    reader.close()


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_key_in_two_partitions_stops_the_sink(make: Make, kind: str) -> None:
    world = make(kind)
    table, view = three(world)
    again = world.stage(rows((2, "b", 0, 3)))  # into a log file, where there are such
    view = require_landed(commit(table, view, record(1, 2, 4), again))
    for told in (rows((1, "b", 1, 9)), rows((7, "b", 1, 9), (7, "c", 0, 9))):
        with pytest.raises(KeyInTwoPartitions):
            commit(table, view, record(1, 3, 9), world.stage(told))
    with pytest.raises(KeyInTwoPartitions):
        commit(table, view, record(1, 3, 9), world.stage(gone((1, 2, 4)), FileKind.KEYS))
    short = world.stage(rows((1, "b", 0, 9)))
    with pytest.raises(TableChanged):
        commit(table, view, record(1, 3, 9), replace(short, records=2))
    heir = world.open()
    claim_table(heir, epoch=2)  # rolls back what the attempts have left
    assert names(world) == {1: "a", 2: "b", 3: "c"}
    assert not left(world)


def test_deletes_of_keys_that_are_not_there_change_no_file(make: Make) -> None:
    world = make()
    table, view = three(world)
    before = world.data_files()
    less = world.stage(gone((8, 0, 5), (9, 1, 5)), FileKind.KEYS)
    view = require_landed(commit(table, view, record(1, 2, 9), less))
    assert view.record.keys == KeyCounts(absent=2)
    assert world.data_files() == before
    more = world.stage(gone((8, 0, 10), (1, 0, 11)), FileKind.KEYS)
    view = require_landed(commit(table, view, record(1, 3, 12), more))
    assert view.record.keys == KeyCounts(deleted=1, absent=1)
    assert names(world) == {2: "b", 3: "c"}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_zombie_s_upsert_and_a_lost_answer_change_each_key_once(make: Make, kind: str) -> None:
    """What a refused upsert has written is rolled back, and its records come with the next."""
    world = make(kind)
    zombie, stale = three(world)
    heir = world.open()
    view = claim_table(heir, epoch=2)
    file = world.stage(rows((1, "heir", 0, 4), (4, "d", 0, 5)))
    refused = commit(zombie, stale, record(1, 2, 6), file)
    assert isinstance(refused, Refused), refused
    assert not refused.for_good
    world.lose_next_answer(landed=False)
    losing = world.open()
    assert isinstance(commit(losing, losing.read(), record(2, 1, 6), file), Unknown)
    world.lose_next_answer(landed=True)
    assert isinstance(commit(losing, losing.read(), record(2, 1, 6), file), Unknown)
    view = world.open().read()
    assert view.record.keys == KeyCounts(inserted=1, updated=1)
    assert names(world) == {1: "heir", 2: "b", 3: "c", 4: "d"}
    again = world.stage(rows((2, "late", 0, 7)))
    heir = world.open()
    view = require_landed(commit(heir, view, record(2, 2, 9), again))
    claim_table(heir, epoch=3)
    assert names(world) == {1: "heir", 2: "late", 3: "c", 4: "d"}
    assert not left(world)


def test_an_upsert_that_dies_in_the_middle_is_rolled_back_and_made_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are written and nobody has committed them."""
    world = make()
    table, view = three(world)
    upserts = HudiKeyedJava.upsert

    def dies(java: HudiKeyedJava, *told: Any) -> KeyCounts:
        upserts(java, *told)
        raise OSError("no space left")

    file = world.stage(rows((1, "once", 0, 4), (5, "e", 0, 5)))
    with monkeypatch.context() as failing:
        failing.setattr(HudiKeyedJava, "upsert", dies)
        assert isinstance(commit(table, view, record(1, 2, 6), file), Unknown)
    assert names(world) == {1: "a", 2: "b", 3: "c"}
    require_landed(commit(table, table.read(), record(1, 2, 6), file))
    assert names(world) == {1: "once", 2: "b", 3: "c", 5: "e"}
    assert not left(world)


def test_a_staged_file_that_is_gone_is_refused_for_good(make: Make) -> None:
    world = make()
    table, view = three(world)
    file = world.stage(rows((1, "lost", 0, 4)))
    Path(file.path.removeprefix("file://")).unlink()
    refused = commit(table, view, record(1, 2, 6), file)
    assert isinstance(refused, Refused)
    assert refused.for_good


def test_another_key_and_other_buckets_are_refused_by_name(make: Make) -> None:
    world = make("COPY_ON_WRITE", "BUCKET")
    three(world)
    other = replace(world.wanted, key=RowKey(("id",), "at_partition", "at_offset"))
    with pytest.raises(KeyChanged):
        HudiFormat().create(other)
    for index in ({INDEX: "SIMPLE"}, {"hoodie.bucket.index.num.buckets": "3"}):
        changed = {**world.wanted.properties, **index}
        with pytest.raises(HudiUnsafe, match="keys would be there twice"):
            HudiFormat().create(replace(world.wanted, properties=changed))


def test_a_table_that_was_filled_without_a_key_takes_none(
    tmp_path: Path, spark: Any, lock: dict[str, str]
) -> None:
    """Rows that were appended may have their keys twice; and rows by key are not appended to."""
    columns = Struct(tuple(c for c in COLUMNS.fields if c.name != "zone"))
    properties = {"hoodie.datasource.write.recordkey.field": "id"}
    world = HudiWorld(tmp_path, spark, lock, columns=columns, properties=properties)
    claim_table(world.open())
    claim_table(world.open("other"), sink="other")
    keyed = replace(
        world.wanted,
        key=RowKey(("id",), "at_partition", "at_offset"),
        properties={**lock},
    )
    HudiFormat().create(keyed)
    with pytest.raises(KeyChanged, match="without a key"):
        HudiFormat().open(keyed, SinkName("sink")).read()
    third = HudiFormat().open(keyed, SinkName("third"))
    claim_table(third, sink="third")
    with pytest.raises(KeyChanged, match="by key"):
        world.open("third").read()


def test_texts_of_a_key_are_folders_as_the_table_calls_them(make: Make) -> None:
    """Hudi's own generator escapes nothing unless it is told to: `..` was the lake's folder."""
    world = make(by=("zone",))
    odd = ["..", ".", "a,b:c", "a=b", "ü/%", "-1"]
    told = rows(*((n, "x", 0, n) for n in range(len(odd)))).set_column(1, "zone", [odd])
    table = world.open()
    view = require_landed(commit(table, claim_table(table), record(1, 1, 9), world.stage(told)))
    found = world.read().select("zone", "_hoodie_partition_path").collect()
    paths = {row.zone: row[1] for row in found}
    marking = world.place.read_config_ensuring_uuid().marking
    assert paths == {each: marking.partition_path([each]) for each in odd}
    again = rows((0, "new", 0, 10)).set_column(1, "zone", [[".."]])
    require_landed(commit(table, view, record(1, 2, 11), world.stage(again)))
    assert world.read().where("zone = '..' and name = 'new'").count() == 1


def test_a_key_that_goes_while_a_compaction_is_planned_stays_gone(make: Make) -> None:
    world = make("MERGE_ON_READ")
    table, view = three(world)
    file = world.stage(rows((1, "new", 0, 5), (2, "new", 0, 6)))
    view = require_landed(commit(table, view, record(1, 2, 7), file))
    compaction(world, "schedule")
    files = world.stage(gone((1, 0, 7)), FileKind.KEYS), world.stage(rows((2, "newest", 0, 8)))
    view = require_landed(commit(table, table.read(), record(1, 3, 9), *files))
    assert view.record.keys == KeyCounts(updated=1, deleted=1)
    assert names(world) == {2: "newest", 3: "c"} == names_by_hudi_rs(world)
    compaction(world, "run")
    assert names(world) == {2: "newest", 3: "c"} == names_by_hudi_rs(world)


def test_a_clustering_that_others_have_planned_holds_upserts_up_until_it_is_made(
    make: Make,
) -> None:
    world = make()
    table, view = three(world)
    clustering(world, "schedule")
    view = table.read()
    file = world.stage(rows((1, "new", 0, 5)))
    held_up = commit(table, view, record(1, 2, 6), file)
    assert isinstance(held_up, Unknown), held_up
    assert "clustering" in held_up.reason
    assert names(world) == {1: "a", 2: "b", 3: "c"}
    clustering(world, "execute")
    going = world.stage(gone((2, 0, 5)), FileKind.KEYS)
    view = require_landed(commit(table, table.read(), record(1, 2, 6), file, going))
    assert view.record.keys == KeyCounts(updated=1, deleted=1)
    again = world.stage(rows((2, "again", 0, 6)))  # it is in a file still that was replaced
    view = require_landed(commit(table, view, record(1, 3, 7), again))
    assert view.record.keys == KeyCounts(inserted=1)
    reader = HudiReader(world.place, SinkName("sink"))
    assert sum(file.records for file in reader.live_files()) == 3
    assert names(world) == {1: "new", 2: "again", 3: "c"} == names_by_hudi_rs(world)
    assert not left(world)


def clustering(world: HudiWorld, step: str) -> None:
    told = ",".join(f"{key}={value}" for key, value in world.place.settings.items())
    call = f"call run_clustering(op => '{step}', path => '{world.folder}', options => '{told}')"
    world.spark.sql(call).collect()


def compaction(world: HudiWorld, step: str) -> None:
    settings = {**world.place.settings, "hoodie.compact.inline.max.delta.commits": "1"}
    told = ",".join(f"{key}={value}" for key, value in settings.items())
    call = f"call run_compaction(op => '{step}', path => '{world.folder}', options => '{told}')"
    assert world.spark.sql(call).count()


def test_a_clock_that_is_behind_the_table_commits_nothing(make: Make) -> None:
    """Its commit would pass for an older one, and the records behind that would come again."""
    world = make()
    _, view = three(world)
    head = str(view.head)
    (newest,) = world.timeline(f"*_{head}.commit")
    tomorrow = str(int(head) + 10**9)
    newest.rename(newest.with_name(newest.name.replace(head, tomorrow)))
    heir = world.open()
    refused = commit(heir, heir.read(), record(1, 2, 5), world.stage(rows((1, "new", 0, 5))))
    assert isinstance(refused, Refused), refused
    assert "this machine's clock says" in refused.reason
    assert names(world) == {1: "a", 2: "b", 3: "c"}


def test_keys_of_a_table_that_others_cut_otherwise_are_not_put_there_twice(
    tmp_path: Path, spark: Any, lock: dict[str, str]
) -> None:
    """No property of the table says into how many buckets: its files do."""
    spark.sql(
        "create table cut (id bigint not null, name string, at_partition int, at_offset bigint) "
        f"using hudi location '{tmp_path}/trips' tblproperties (primaryKey = 'id', type = 'cow', "
        "'hoodie.index.type' = 'BUCKET', 'hoodie.bucket.index.num.buckets' = '4', "
        "'hoodie.table.timeline.timezone' = 'UTC')"
    )
    spark.sql("insert into cut select id, 'theirs', null, null from range(40)")
    absent = ["zone", "fare", "at"]
    for buckets, taken in (("8", False), ("4", True)):
        world = HudiWorld(
            tmp_path,
            spark,
            lock,
            columns=Struct(tuple(c for c in COLUMNS.fields if c.name not in absent)),
            key=RowKey(("id",), "at_partition", "at_offset"),
            properties={INDEX: "BUCKET", "hoodie.bucket.index.num.buckets": buckets},
        )
        told = rows(*((n, "ours", 0, n) for n in range(40))).drop(absent)
        table, file = world.open(), world.stage(told)
        view = claim_table(table, 1 if buckets == "8" else 2)
        if taken:
            require_landed(commit(table, view, record(2, 1, 40), file))
            continue
        with pytest.raises(HudiUnsafe, match="keys would be there twice"):
            commit(table, view, record(1, 1, 40), file)
    found = spark.read.format("hudi").load(str(tmp_path / "trips")).select("name").collect()
    assert [row.name for row in found] == ["ours"] * 40
