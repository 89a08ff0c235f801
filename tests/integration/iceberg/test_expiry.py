"""RETENTION-1: snapshots expire after commits as the table asks: what stays is whole, what goes is
gone.

Every test ends by the same measure: storage holds what the retained snapshots reach, and no more
(unless the test says which orphans there must be), and independent readers find every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from integration.iceberg.rest_server import LyingProxy
from integration.iceberg.sink_commits import SINK, SinkOnTable, record
from integration.readers import IcebergSpark, read_with_duckdb, read_with_pyiceberg
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import CommitTableResponse
from pyiceberg.table.update import RemoveSnapshotsUpdate
from support.local_catalog import LocalCatalog

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Landed, Lineage
from headgate.operations.audit.files import check_files_of_commits, check_live_files
from headgate.operations.audit.table_checks import check_commit_chain
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.maintenance.snapshot_expiry import DUE_MIN
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable

pytestmark = pytest.mark.integration

COLUMNS = {"id": "long"}
KEEP = 5
ASKED = {
    "history.expire.max-snapshot-age-ms": "1",
    "history.expire.min-snapshots-to-keep": str(KEEP),
    "commit.manifest.min-count-to-merge": "4",
}


class WatchedCatalog:
    """Something happens ``around`` the next removal of snapshots that is sent; the rest passes."""

    def __init__(self, real: Catalog) -> None:
        self._real = real
        self.around: Callable[[Callable[[], CommitTableResponse]], CommitTableResponse] | None
        self.around = None
        self.removals = 0

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
        def send() -> CommitTableResponse:
            return self._real.commit_table(table, requirements, updates)

        if not any(isinstance(update, RemoveSnapshotsUpdate) for update in updates):
            return send()
        self.removals += 1
        around, self.around = self.around, None
        return around(send) if around else send()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture
def catalog(sqlite_catalog: LocalCatalog) -> Catalog:
    return sqlite_catalog.catalog


@pytest.fixture
def watched(catalog: Catalog) -> WatchedCatalog:
    return WatchedCatalog(catalog)


@pytest.fixture
def sink(watched: WatchedCatalog) -> SinkOnTable:
    """Its next commit makes snapshots due: expiry is about to happen."""
    sink = SinkOnTable.claimed(watched, COLUMNS, properties=ASKED)  # type: ignore[arg-type]
    for number in range(KEEP + DUE_MIN - 2):
        sink.commit(rows(number) if number < 10 else None)
    assert not watched.removals
    return sink


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def commits(sink: SinkOnTable, ids: Iterable[int]) -> None:
    for number in ids:
        sink.commit(rows(number))


def compact(sink: SinkOnTable) -> None:
    """By somebody else; the sink goes on from there."""
    table = sink.load()
    table.overwrite(table.scan().to_arrow())
    sink.view = sink.table.read()


def reached(sink: SinkOnTable) -> set[str]:
    """Every file but metadata.json that a retained snapshot refers to: read as the spec says."""
    table = sink.load()
    paths = {file.statistics_path for file in table.metadata.statistics}
    paths |= {file.statistics_path for file in table.metadata.partition_statistics}
    for snapshot in table.snapshots():
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            paths.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io)
            paths |= {entry.data_file.file_path for entry in entries}
    return {path.removeprefix("file://").removeprefix("file:") for path in paths}


def stored(sink: SinkOnTable) -> set[str]:
    folder = Path(sink.load().location().removeprefix("file://"))
    files = {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"}
    return {str(path) for path in files if not path.name.endswith(".metadata.json")}


def assert_rows(sink: SinkOnTable, ids: Iterable[int]) -> None:
    location = sink.load().metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        assert sorted(read(location)["id"].to_pylist()) == sorted(ids)


def snapshots(sink: SinkOnTable) -> list[int]:
    return [snapshot.snapshot_id for snapshot in sink.load().snapshots()]


# -------------------------------------------------------------------------------- what stays, goes


@pytest.mark.wide
def test_the_table_stays_bounded_and_storage_holds_what_it_reaches(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=ASKED)
    most = 0
    for number in range(80):
        sink.commit(rows(number))
        most = max(most, len(snapshots(sink)))
    assert most == KEEP + DUE_MIN - 1
    assert stored(sink) == reached(sink)
    assert_rows(sink, range(80))
    metadata_files = Path(sink.load().location().removeprefix("file://")).rglob("*.metadata.json")
    assert len(list(metadata_files)) == len(sink.load().metadata.metadata_log) + 1


def test_what_compaction_replaced_goes_and_nothing_else(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=ASKED)
    replaced: set[str] = set()
    for begin in range(0, 60, 20):
        commits(sink, range(begin, begin + 20))
        replaced |= {task.file.file_path for task in sink.load().scan().plan_files()}
        compact(sink)
    while (
        replaced & {f"file://{path}" for path in reached(sink)} or len(snapshots(sink)) > KEEP + 2
    ):
        sink.commit(None)
    assert len(replaced) > 60
    assert not any(Path(path.removeprefix("file://")).exists() for path in replaced)
    assert stored(sink) == reached(sink)
    assert_rows(sink, range(60))


def test_refs_and_other_sinks_lineage_stay(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=ASKED)
    commits(sink, range(3))
    manage = sink.load().manage_snapshots()
    manage.create_tag(sink.view.head, "release").create_branch(sink.view.head, "audit").commit()
    commits(sink, range(3, 30))
    idle = IcebergTable(catalog, "db.t", SinkName("idle"), threads=False)
    claim = idle.commit(CommitAttempt(idle.read(), record(7, 0, sink="idle")))
    assert isinstance(claim, Landed)
    sink.view = sink.table.read()
    commits(sink, range(30, 60))

    table = sink.load()
    assert table.scan().use_ref("release").to_arrow()["id"].to_pylist() == [2, 1, 0]
    assert table.scan().use_ref("audit").to_arrow().num_rows == 3
    assert len(snapshots(sink)) < 60
    view = idle.read()
    assert (view.lineage, view.record) == (Lineage.CONTAINS_TAG, claim.view.record)
    assert isinstance(idle.commit(CommitAttempt(view, record(7, 1, sink="idle"))), Landed)
    assert stored(sink) == reached(sink)
    assert_rows(sink, range(60))


def test_nothing_goes_when_collection_is_off(catalog: Catalog) -> None:
    properties = {**ASKED, "gc.enabled": "false"}
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=properties)
    for _ in range(KEEP + DUE_MIN + 5):
        sink.commit(None)
    assert len(snapshots(sink)) == KEEP + DUE_MIN + 6


def test_the_audit_calls_an_expired_history_well(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, properties=ASKED)
    for number in range(50):
        files = sink.attempt(rows(number)).files
        counted = record(1, number + 1, number, records=1)
        sink.land(sink.table.commit(CommitAttempt(sink.view, counted, files)))
    reader = IcebergReader(sink.load(), SINK, "main")
    history = reader.history()
    assert not history.complete
    assert len(history.commits) < 50
    assert check_commit_chain(history) == []
    assert check_files_of_commits(reader, history, lambda *_: None) == []
    files_of_head = reader.live_files()
    assert len(files_of_head) == 50
    assert check_live_files(reader, files_of_head, lambda *_: None) == ([], frozenset())


# ------------------------------------------------------------------------------------ while others


def append(sink: SinkOnTable) -> None:
    sink.load().append(rows(-1))


def tag_what_is_due(sink: SinkOnTable) -> None:
    table = sink.load()
    table.manage_snapshots().create_tag(table.snapshots()[2].snapshot_id, "just-now").commit()


def primary_elsewhere(sink: SinkOnTable) -> None:
    heir = IcebergTable(sink.catalog, "db.t", SINK, threads=False)
    assert isinstance(heir.commit(CommitAttempt(heir.read(), record(2, 0))), Landed)


@pytest.mark.parametrize(
    "others", [append, tag_what_is_due, pytest.param(primary_elsewhere, marks=pytest.mark.wide)]
)
def test_who_was_faster_is_not_overrun(
    watched: WatchedCatalog, sink: SinkOnTable, others: Callable[[SinkOnTable], None]
) -> None:
    def around(send: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        others(sink)
        return send()

    before = set(snapshots(sink))
    watched.around = around
    outcome = sink.table.commit(sink.attempt(rows(77)))

    assert isinstance(outcome, Landed)
    assert watched.removals == 1 + (others is primary_elsewhere)
    if others is not primary_elsewhere:  # the heir expires what is due by itself
        assert before < set(snapshots(sink))
    assert stored(sink) == reached(sink)
    sink.view = sink.table.read()
    sink.commit(None)
    assert not before <= set(snapshots(sink))  # another time
    assert stored(sink) == reached(sink)


def test_a_lost_answer_that_had_landed_is_proven_by_reading(
    watched: WatchedCatalog, sink: SinkOnTable
) -> None:
    def around(send: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        send()
        raise ConnectionError("the answer was lost")

    watched.around = around
    sink.commit(None)
    assert len(snapshots(sink)) == KEEP
    assert stored(sink) == reached(sink)


def test_a_lost_request_deletes_nothing(watched: WatchedCatalog, sink: SinkOnTable) -> None:
    def around(send: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        raise ConnectionError("the request was lost")

    before = stored(sink)
    watched.around = around
    sink.commit(None)
    assert before < stored(sink) == reached(sink)


def test_a_removal_that_lands_among_others_commits_leaves_orphans(
    watched: WatchedCatalog, sink: SinkOnTable
) -> None:
    def around(send: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        send()
        append(sink)
        raise ConnectionError("the answer was lost")

    before = stored(sink)
    watched.around = around
    sink.commit(None)
    assert before < stored(sink)
    assert reached(sink) < stored(sink)
    assert_rows(sink, [*range(10), -1])


def test_a_crash_between_removal_and_deletion_leaves_orphans_only(
    watched: WatchedCatalog, sink: SinkOnTable
) -> None:
    def around(send: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        send()
        raise Killed

    watched.around = around
    with pytest.raises(Killed):
        sink.commit(None)
    assert len(snapshots(sink)) == KEEP
    orphans = stored(sink) - reached(sink)
    assert orphans
    heir = IcebergTable(sink.catalog, "db.t", SINK, threads=False)
    revived = SinkOnTable(sink.catalog, "db.t", heir, heir.read(), sink.number)
    commits(revived, range(10, 50))
    assert stored(revived) == reached(revived) | orphans
    assert_rows(revived, range(50))


def test_a_commit_has_landed_whatever_cleaning_up_meets(
    watched: WatchedCatalog, sink: SinkOnTable, caplog: pytest.LogCaptureFixture
) -> None:
    """A list that a careless orphan clean-up deleted: what the snapshot holds cannot be known."""
    Path(sink.load().snapshots()[3].manifest_list.removeprefix("file://")).unlink()
    sink.commit(rows(10))
    sink.commit(rows(11))
    assert watched.removals == 0
    assert len([r for r in caplog.records if "not cleaned up" in r.message]) == 1
    assert_rows(sink, range(12))


# ------------------------------------------------------------------------------------ other worlds


@pytest.mark.wide
def test_through_a_rest_catalog(lying_proxy: LyingProxy, unique_name: str) -> None:
    identifier = f"{unique_name.replace('-', '_')}.trips"
    with load_catalog("rest", {"type": "rest", "uri": lying_proxy.uri}) as catalog:
        sink = SinkOnTable.claimed(catalog, COLUMNS, properties=ASKED, identifier=identifier)
        commits(sink, range(20))
        compact(sink)
        commits(sink, range(20, 70))
        assert len(snapshots(sink)) < KEEP + DUE_MIN
        assert stored(sink) == reached(sink)
        assert_rows(sink, range(70))


class Spark:
    """Java's Iceberg on the sink's table."""

    def __init__(self, spark: IcebergSpark, local: LocalCatalog) -> None:
        self._spark, self._local = spark, local
        self._table = f"{local.name}.db.t"

    def sql(self, before: str, after: str = "") -> None:
        statement = f"{before} {self._table} {after}"
        self._spark.sql(self._local.name, self._local.database, statement)

    def call(self, procedure: str, arguments: str = "") -> None:
        statement = f"CALL {self._local.name}.system.{procedure}(table => 'db.t' {arguments})"
        self._spark.sql(self._local.name, self._local.database, statement)

    def ids(self, where: str = "") -> list[int]:
        statement = f"SELECT id FROM {self._table} {where}"
        found = self._spark.sql(self._local.name, self._local.database, statement)
        return sorted(found["id"].to_pylist())


@pytest.mark.spark
@pytest.mark.wide
@pytest.mark.parametrize("version", ["2", "3"])
def test_the_reference_reads_what_is_kept_and_expires_the_rest(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, version: str
) -> None:
    spark = Spark(iceberg_spark, sqlite_catalog)
    properties = {**ASKED, "write.delete.mode": "merge-on-read", "format-version": version}
    partition_by = ["bucket(2, id)"]
    sink = SinkOnTable.claimed(sqlite_catalog.catalog, COLUMNS, partition_by, properties)
    sink.commit(rows(*range(10)))
    spark.sql("DELETE FROM", "WHERE id IN (3, 4)")
    spark.sql("INSERT INTO", "VALUES (100), (101), (102)")
    spark.call("compute_table_stats")
    spark.call("compute_partition_stats")
    before = reached(sink)
    assert delete_files(sink) & before
    metadata = sink.load().metadata
    assert (len(metadata.statistics), len(metadata.partition_statistics)) == (1, 1)
    for procedure in ("rewrite_data_files", "rewrite_position_delete_files"):
        spark.call(procedure, ", options => map('rewrite-all', 'true')")
    spark.call("rewrite_manifests")
    sink.view = sink.table.read()
    commits(sink, range(10, 50))

    alive = [*range(3), *range(5, 50), 100, 102, 101]
    assert not before & stored(sink)
    metadata = sink.load().metadata
    assert (metadata.statistics, metadata.partition_statistics) == ([], [])
    assert stored(sink) == reached(sink)
    assert spark.ids() == sorted(alive)
    for snapshot_id in snapshots(sink):
        assert set(spark.ids(f"VERSION AS OF {snapshot_id}")) <= set(alive)
    at_once = ", older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1"
    spark.call("expire_snapshots", at_once)
    assert len(snapshots(sink)) == 1
    assert stored(sink) == reached(sink)
    sink.view = sink.table.read()
    commits(sink, range(200, 240))
    assert spark.ids() == sorted([*alive, *range(200, 240)])
    assert stored(sink) == reached(sink)


def delete_files(sink: SinkOnTable) -> set[str]:
    table = sink.load()
    snapshot = table.current_snapshot()
    assert snapshot
    return {
        entry.data_file.file_path.removeprefix("file://").removeprefix("file:")
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content is DataFileContent.POSITION_DELETES
    }
