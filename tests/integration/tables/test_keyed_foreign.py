"""Other writers change a keyed table between a commit's keys and its call.

Spark changes, compacts and upgrades the table by Iceberg's own code of two versions. What is there
then is compared value by value with a dictionary, as both of them, DuckDB and pyiceberg read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from integration.readers import IcebergSpark, read_with_duckdb, read_with_pyiceberg
from support.delete_files import delete_by_equality
from support.keyed_world import NAME, SINK, Event, KeyedWorld, Row, Source, rows_of
from support.local_catalog import LocalCatalog

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.ports import Landed, Refused
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows

pytestmark = [pytest.mark.integration, pytest.mark.spark]

BY = KeyedBy(("id",), "from_partition", "from_offset")
Fold = dict[tuple[int, ...], Row]
Effect = Callable[[Fold], None]


@pytest.fixture(scope="module")
def later_spark() -> Iterator[IcebergSpark]:
    with IcebergSpark("1.12.0") as spark:
        yield spark


@dataclass
class Amid:
    """A keyed table amid others, who are named by their versions of Iceberg."""

    world: KeyedWorld
    local: LocalCatalog
    sparks: Sequence[IcebergSpark]
    turn: int = 0

    def spark(self, statement: str) -> None:
        """The versions take turns in writing."""
        self.turn += 1
        spark = self.sparks[self.turn % len(self.sparks)]
        spark.sql(self.local.name, self.local.database, statement)

    def overtaken(self, statement: str, effect: Effect, *events: Event) -> None:
        """Somebody's statement is run when these records are resolved, and not sent."""
        effect(self.world.source.fold)
        attempt = self.world.attempt(self.world.files(events))
        self.spark(statement)
        assert isinstance(self.world.table.commit(attempt), Refused)
        self.world.land(self.world.again(attempt))
        self.check()

    def alone(self, statement: str, effect: Effect) -> None:
        effect(self.world.source.fold)
        self.spark(statement)
        self.check()

    def check(self, *, pyiceberg: bool = True) -> None:
        """Of delete files by equality pyiceberg reads none."""
        expected = self.world.source.expected_rows()
        for spark in self.sparks:
            read = spark.read(self.local.name, self.local.database, NAME)
            assert rows_of(read) == expected
        location = self.world.load().metadata_location
        assert rows_of(read_with_duckdb(location)) == expected
        if pyiceberg:
            assert rows_of(read_with_pyiceberg(location)) == expected


def put(key: int, zone: str = "a") -> Event:
    return Event((key,), zone)


def gone(key: int) -> Event:
    return Event((key,))


def every(count: int, *, by: int = 1, zone: str = "a") -> list[Event]:
    return [put(n, zone) for n in range(0, count, by)]


def nothing(_: Fold) -> None:
    """Rows are where they were, or elsewhere, and the same."""


def fifths_go(fold: Fold) -> None:
    for key in [key for key in fold if key[0] % 5 == 0]:
        del fold[key]


def merged(fold: Fold) -> None:
    """As ``MERGE`` below."""
    fold.pop((1,), None)
    for key in ((2,), (7,), (77,)):
        if key in fold:
            fold[key] = fold[key] | {"zone": "m"}
    if (77,) not in fold:
        coordinates = {"from_partition": None, "from_offset": None}
        fold[(77,)] = {"id": 77, "name": "theirs", "zone": "m", "n": 0} | coordinates


MERGE = f"""
MERGE INTO local.{NAME} t USING (SELECT explode(array(1, 2, 7, 77)) AS id) s ON t.id = s.id
WHEN MATCHED AND t.id = 1 THEN DELETE
WHEN MATCHED THEN UPDATE SET zone = 'm'
WHEN NOT MATCHED AND s.id = 77
THEN INSERT (id, name, zone, n, from_partition, from_offset)
VALUES (s.id, 'theirs', 'm', 0, NULL, NULL)
"""


def calls(procedure: str, *options: str) -> str:
    given = f", options => map({', '.join(options)})" if options else ""
    return f"CALL local.system.{procedure}(table => '{NAME}'{given})"


ALL = ("'rewrite-all'", "'true'")


@pytest.mark.wide
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("version", "partition_by", "mode", "upgraded"),
    [
        pytest.param(2, (), "merge-on-read", False, marks=pytest.mark.soak),
        pytest.param(2, ("zone",), "merge-on-read", True, marks=pytest.mark.wide),
        (3, ("bucket(2, id)",), "merge-on-read", False),
        pytest.param(3, ("zone",), "copy-on-write", False, marks=pytest.mark.soak),
    ],
)
def test_others_change_and_rewrite_between_and_around(
    sqlite_catalog: LocalCatalog,
    iceberg_spark: IcebergSpark,
    later_spark: IcebergSpark,
    version: int,
    partition_by: tuple[str, ...],
    mode: str,
    upgraded: bool,
) -> None:
    modes = {f"write.{what}.mode": mode for what in ("delete", "update", "merge")}
    world = KeyedWorld.create(sqlite_catalog.catalog, version, partition_by, **modes)
    amid = Amid(world, sqlite_catalog, (iceberg_spark, later_spark))
    world.commit(every(30))
    world.commit(every(30, by=3, zone="b"), [gone(4)])  # rows move to another partition
    delete = f"DELETE FROM local.{NAME} WHERE id % 5 = 0"

    amid.overtaken(delete, fifths_go, put(0), put(6, "c"), gone(5), gone(8))
    if upgraded:
        amid.spark(f"ALTER TABLE local.{NAME} SET TBLPROPERTIES ('format-version' = '3')")
    amid.overtaken(MERGE, merged, put(1, "b"), put(2, "c"), put(77, "c"), gone(7))
    amid.overtaken(calls("rewrite_manifests"), nothing, *every(30, by=4, zone="d"))
    amid.overtaken(calls("rewrite_data_files", *ALL), nothing, *every(30, by=2), gone(3))
    if version == 2 and not upgraded:  # there are none of vectors
        rewrite = calls("rewrite_position_delete_files", *ALL)
        amid.overtaken(rewrite, nothing, *every(30, by=3), gone(2))
    amid.alone(MERGE, merged)
    amid.alone(calls("rewrite_data_files", *ALL), nothing)
    world.restart("another")
    world.commit(every(40, by=3, zone="e"), [gone(77), gone(1)])
    amid.check()


@pytest.mark.wide
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.wide), 3])
def test_snapshots_expire_and_orphans_go_between_and_around(
    sqlite_catalog: LocalCatalog,
    iceberg_spark: IcebergSpark,
    later_spark: IcebergSpark,
    version: int,
) -> None:
    """Spark's clean-up leaves what was resolved and not sent, and what the head still needs."""
    world = KeyedWorld.create(sqlite_catalog.catalog, version)
    amid = Amid(world, sqlite_catalog, (iceberg_spark, later_spark))
    delete = f"DELETE FROM local.{NAME} WHERE id % 5 = 0"
    for n in range(3):
        world.commit(every(30, by=n + 1), [gone(n)])
        if n == 1:
            amid.alone(delete, fifths_go)
        attempt = world.attempt(world.files([*every(30, by=4), gone(7 + n)]))
        before = snapshots(world)
        amid.spark(expiry(world))
        assert len(before) > len(snapshots(world))
        day_old = "TIMESTAMP '" + iso(datetime.now(UTC) - timedelta(hours=25)) + "'"
        amid.spark(
            f"CALL local.system.remove_orphan_files(table => '{NAME}', older_than => {day_old})"
        )
        world.land(attempt)
        amid.check()
    amid.alone(calls("rewrite_data_files", *ALL), nothing)
    amid.spark(expiry(world))
    world.restart("another")
    world.commit(every(40, by=3, zone="e"), [gone(1)])
    amid.check()


def snapshots(world: KeyedWorld) -> list[int]:
    return [snapshot.snapshot_id for snapshot in world.load().metadata.snapshots]


def iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def expiry(world: KeyedWorld) -> str:
    """Of every snapshot but the head, whatever its age."""
    now = iso(datetime.now(UTC) + timedelta(seconds=1))
    return (
        f"CALL local.system.expire_snapshots(table => '{NAME}', "
        f"older_than => TIMESTAMP '{now}', retain_last => 1)"
    )


@pytest.mark.wide
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("upgraded", [False, True])
def test_deletes_by_equality_between_and_around(
    sqlite_catalog: LocalCatalog,
    iceberg_spark: IcebergSpark,
    later_spark: IcebergSpark,
    *,
    upgraded: bool,
) -> None:
    """As Flink writes them. They hide rows of before, and none that come behind them."""
    world = KeyedWorld.create(sqlite_catalog.catalog, 2)
    amid = Amid(world, sqlite_catalog, (iceberg_spark, later_spark))
    world.commit(every(12))
    world.commit([put(4, "b"), gone(5)])

    del world.source.fold[(3,)]
    del world.source.fold[(4,)]
    attempt = world.attempt(world.files([put(4, "c"), put(6, "c"), gone(3)]))
    for key in (3, 4):
        delete_by_equality(world.load(), "id", key)
    if upgraded:
        amid.spark(f"ALTER TABLE local.{NAME} SET TBLPROPERTIES ('format-version' = '3')")
    assert isinstance(world.table.commit(attempt), Refused)
    world.land(world.again(attempt))
    amid.check(pyiceberg=False)
    world.restart("another")
    world.commit([put(3, "d"), put(4, "d"), gone(9), put(9, "e")])
    amid.check(pyiceberg=False)
    amid.spark(calls("rewrite_data_files", *ALL, "'delete-file-threshold'", "'1'"))
    amid.check(pyiceberg=False)
    world.commit(every(12, by=2, zone="f"))
    amid.check(pyiceberg=False)


@pytest.mark.parametrize("version", [2, 3])
def test_a_branch_has_keys_of_its_own(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, version: int
) -> None:
    world = KeyedWorld.create(sqlite_catalog.catalog, version, ("zone",))
    world.commit(every(8))
    on_main = world.source.expected_rows()
    aside = IcebergTable(world.catalog, NAME, SINK, "audited", threads=False, keyed=KeyedRows(BY))
    world.table, world.source = aside, Source()
    assert isinstance(aside.commit(world.attempt(())), Landed)
    world.source.fold |= {(n,): row for n, row in enumerate(_rows(on_main))}
    counts = world.commit([put(1, "b"), put(2), put(50)], [gone(3), gone(60)])
    assert counts == KeyCounts(inserted=1, updated=2, deleted=1, absent=1)

    def read(at: str) -> list[tuple[object, ...]]:
        statement = f"SELECT * FROM local.{NAME} {at}"
        return rows_of(iceberg_spark.sql("local", sqlite_catalog.database, statement))

    assert read("") == on_main
    assert read("VERSION AS OF 'audited'") == world.source.expected_rows()


def _rows(values: Sequence[tuple[object, ...]]) -> list[Row]:
    names = ("id", "name", "zone", "n", "from_partition", "from_offset")
    return [dict(zip(names, row, strict=True)) for row in sorted(values)]
