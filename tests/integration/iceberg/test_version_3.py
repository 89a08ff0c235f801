"""Tables of format version 3: read, written and deleted from by Java's Iceberg between commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from integration.iceberg.sink_commits import SINK, SinkOnTable, record
from integration.readers import IcebergSpark, read_with_duckdb, read_with_pyiceberg
from pyiceberg.catalog import Catalog
from support.iceberg_files import write_files

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Staging
from headgate.data_plane.batch.writer_task_plan import SourcePlan, load_table_and_plan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.operations.audit.files import check_live_files
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.tag_lineage import snapshots_by_id

pytestmark = [pytest.mark.integration, pytest.mark.spark]

VERSION_3 = {
    "format-version": "3",
    "commit.manifest.min-count-to-merge": "2",
    "write.delete.mode": "merge-on-read",
}
EDGES = [-(2**63), -(2**63) + 1, -1_000_000_001, -1, 0, 1, 1_785_585_600_123_456_789, 2**63 - 1]


@dataclass(frozen=True)
class World:
    """A catalog as headgate opens it, and as Spark does: ``sql`` takes the table as ``{}``."""

    catalog: Catalog
    namespace: str
    sql: Callable[[str], pa.Table]


@pytest.fixture(params=["sql", pytest.param("rest", marks=pytest.mark.wide)])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, unique_name: str, iceberg_spark: IcebergSpark
) -> Iterator[World]:
    namespace = unique_name.replace("-", "_")
    with ExitStack() as stack:
        if request.param == "rest":
            uri = f"http://127.0.0.1:{request.getfixturevalue('rest_port')}"
            properties = {"type": "rest", "uri": uri}

            def sql(text: str) -> pa.Table:
                return iceberg_spark.rest_sql(uri, text.format(f"rest.{namespace}.t"))
        else:
            database = tmp_path / "catalog.sqlite"
            warehouse = (tmp_path / "warehouse").as_uri()
            properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": warehouse}

            def sql(text: str) -> pa.Table:
                return iceberg_spark.sql("local", database, text.format(f"local.{namespace}.t"))

        # The name is part of a SQL catalog: Spark must find what headgate wrote.
        catalog = stack.enter_context(load_catalog("local", properties))
        yield World(catalog, namespace, sql)


def rows(*ids: int) -> pa.Table:
    zones = ["north" if number % 2 else "south" for number in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "zone": zones})


def row_ids(world: World) -> dict[int, int]:
    """From the column ``id`` to the row's id, each of which is there once."""
    found = world.sql("SELECT id, _row_id FROM {}").to_pydict()
    assert len(set(found["_row_id"])) == len(found["id"]) == len(set(found["id"]))
    return dict(zip(found["id"], found["_row_id"], strict=True))


def claimed(world: World, columns: dict[str, str], partition_by: list[str]) -> SinkOnTable:
    identifier = f"{world.namespace}.t"
    return SinkOnTable.claimed(
        world.catalog, columns, partition_by, VERSION_3, identifier=identifier
    )


def test_rows_keep_their_ids_whoever_writes_and_deletes(world: World) -> None:
    sink = claimed(world, {"id": "long", "zone": "string"}, ["zone"])
    for number in range(0, 9, 3):
        sink.commit(rows(number, number + 1, number + 2))
    first = row_ids(world)
    assert sorted(first) == list(range(9))
    world.sql("DELETE FROM {} WHERE id IN (1, 4, 6)")
    world.sql("INSERT INTO {} VALUES (100, 'north'), (101, 'south')")
    (vectors,) = world.sql(
        "SELECT count(*) AS n FROM {}.delete_files WHERE file_format = 'PUFFIN'"
    ).to_pydict()["n"]
    assert vectors == 3
    reader = IcebergReader(sink.load(), SinkName("sink"), "main")
    assert check_live_files(reader, reader.live_files(), lambda *_: None) == ([], frozenset())
    second = row_ids(world)
    sink.view = sink.table.read()
    for more in (rows(200, 201), None, rows(202)):
        sink.commit(more)
    third = row_ids(world)
    alive = [0, 2, 3, 5, 7, 8, 100, 101, 200, 201, 202]
    assert sorted(third) == alive
    assert first.items() & third.items() == {(n, first[n]) for n in alive[:6]}
    assert second.items() <= third.items()
    location = sink.load().metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        assert sorted(read(location)["id"].to_pylist()) == alive


@pytest.mark.wide
def test_compaction_by_the_reference_keeps_the_ids_that_commits_gave(world: World) -> None:
    sink = claimed(world, {"id": "long", "zone": "string"}, [])
    for number in range(4):
        sink.commit(rows(number))
    before = row_ids(world)
    catalog = "rest" if "Rest" in type(world.catalog).__name__ else "local"
    world.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => '{world.namespace}.t', "
        "options => map('rewrite-all', 'true'))"
    )
    sink.view = sink.table.read()
    for number in (4, 5):
        sink.commit(rows(number))
    after = row_ids(world)
    assert before.items() < after.items()
    assert sorted(after) == list(range(6))


@pytest.mark.wide
@pytest.mark.parametrize("version", ["2", "3"])
def test_a_table_that_the_reference_made_or_upgraded(world: World, version: str) -> None:
    world.catalog.create_namespace(world.namespace)
    properties = f"('format-version' = '{version}')"
    world.sql(f"CREATE TABLE {{}} (id bigint, zone string) TBLPROPERTIES {properties}")
    world.sql("INSERT INTO {} VALUES (1, 'north'), (2, 'south')")
    sink = claimed(world, {}, [])
    sink.commit(rows(3))
    world.sql("ALTER TABLE {} SET TBLPROPERTIES ('format-version' = '3')")
    sink.view = sink.table.read()
    sink.commit(rows(4))
    numbered = row_ids(world)
    assert sorted(numbered) == [1, 2, 3, 4]
    world.sql("INSERT INTO {} VALUES (5, 'north')")
    sink.view = sink.table.read()
    sink.commit(rows(6))
    assert numbered.items() < row_ids(world).items()


def test_nanoseconds_arrive_exactly_at_javas_reader(
    world: World, iceberg_spark: IcebergSpark
) -> None:
    columns = {"id": "long", "at": "timestamp_ns", "seen": "timestamptz_ns"}
    sink = claimed(world, columns, ["hour(at)", "bucket(4, seen)"])
    expected: dict[int, Any] = {}
    for commit in range(3):
        table = sink.load()
        start = TableStart(
            table=sink.identifier,
            uuid=str(table.metadata.table_uuid),
            schema_id=table.schema().schema_id,
            spec_id=table.spec().spec_id,
            file_prefix=f"{table.location()}/data/{commit}",
        )
        shape = file_shape_of(load_table_and_plan(world.catalog, start, SourcePlan({})))
        numbers = [commit * len(EDGES) + place for place in range(len(EDGES))]
        counts = pa.array(EDGES, pa.int64())
        written = pa.table(
            [
                pa.array(numbers, pa.int64()),
                counts.cast(pa.timestamp("ns")),
                counts.cast(pa.timestamp("ns", tz="UTC")),
            ],
            schema=shape.arrow_schema,
        )
        files = DataFiles(shape, start.file_prefix, 1 << 27)
        for key, part in shape.partitioner.split(written):
            files.write(key, part)
        sink.number += 1
        done = files.finish()
        sink.land(
            sink.table.commit(CommitAttempt(sink.view, record(1, sink.number, sink.number), done))
        )
        expected |= dict(zip(numbers, EDGES, strict=True))
    table = sink.load()
    assert len(snapshots_by_id(table.metadata)) == 4
    found = iceberg_spark.read_with_java(table.metadata_location)
    assert {row["id"]: row["at"] for row in found} == expected
    assert {row["id"]: row["seen"] for row in found} == expected
    assert len({row["_row_id"] for row in found}) == len(found) == len(expected)
    mine = read_with_pyiceberg(table.metadata_location)
    counts = dict(zip(mine["id"].to_pylist(), mine["at"].cast(pa.int64()).to_pylist(), strict=True))
    assert counts == expected


@pytest.mark.parametrize("version", [pytest.param("2", marks=pytest.mark.wide), "3"])
@pytest.mark.parametrize(
    "partitions",
    [
        pytest.param([], marks=pytest.mark.wide, id="whole"),
        pytest.param(["zone"], id="partitioned"),
    ],
)
def test_pending_5_drafted_manifests_are_read_by_all_once_they_are_delivered(
    world: World, version: str, partitions: list[str]
) -> None:
    """Others append, evolve and delete between draft and delivery; later commits merge them."""
    properties = {**VERSION_3, "format-version": version}
    identifier = f"{world.namespace}.t"
    sink = SinkOnTable.claimed(
        world.catalog,
        {"id": "long", "zone": "string"},
        partitions,
        properties,
        identifier=identifier,
    )
    pending_commits = [drafted(sink, number, number, number + 1) for number in (10, 20, 30)]
    world.sql("INSERT INTO {} VALUES (1, 'north'), (2, 'south')")
    before = row_ids(world) if version == "3" else {}
    world.sql("ALTER TABLE {} ADD COLUMN more int")
    deliver(sink, *pending_commits[:2])
    assert found(world) == [1, 2, 10, 11, 20, 21]
    if version == "3":
        assert before.items() < row_ids(world).items()
    world.sql("DELETE FROM {} WHERE id IN (1, 11)")
    deliver(sink, pending_commits[2])
    sink.commit(rows(40).append_column("more", pa.array([4], pa.int32())))
    alive = [2, 10, 20, 21, 30, 31, 40]
    assert found(world) == alive
    delivered = row_ids(world) if version == "3" else {}
    sink.commit(rows(50).append_column("more", pa.array([5], pa.int32())))
    assert found(world) == [*alive, 50]
    if version == "3":
        assert delivered.items() < row_ids(world).items(), (
            "merging the manifests numbers nothing anew"
        )
    location = sink.load().metadata_location
    readers = [read_with_pyiceberg] if version == "3" else [read_with_pyiceberg, read_with_duckdb]
    for read in readers:
        assert sorted(read(location)["id"].to_pylist()) == [*alive, 50]


def found(world: World) -> list[int]:
    return sorted(world.sql("SELECT id FROM {}")["id"].to_pylist())


def drafted(sink: SinkOnTable, number: int, *ids: int) -> PendingCommit:
    files = write_files(sink.load(), rows(*ids))
    transaction = record(1, number).transaction
    draft = Staging(sink.view, transaction, record(1, number).coordinator, tuple(files))
    (pending_commit,) = sink.table.stage(draft)
    return pending_commit


def deliver(sink: SinkOnTable, *pending_commits: PendingCommit) -> None:
    """As another process does it."""
    table = IcebergTable(sink.catalog, sink.identifier, SINK)
    newest = pending_commits[-1].transaction.number
    delivery = record(
        1, newest, newest, records=sum(pending_commit.rows for pending_commit in pending_commits)
    )
    sink.land(table.commit(CommitAttempt(table.read(), delivery, pending_commits=pending_commits)))
    sink.number = newest
