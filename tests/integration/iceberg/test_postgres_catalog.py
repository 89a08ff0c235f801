"""Commits through PostgreSQL: concurrent callers, and a server that is killed under them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from integration.iceberg.interrupted import InterruptedCatalog
from integration.iceberg.sink_commits import SINK, SinkOnTable
from integration.readers import read_with_duckdb
from pyiceberg.catalog import Catalog
from sqlalchemy.exc import DBAPIError
from support.postgres_server import PostgresServer

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.ports import CommitAttempt, Unknown
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """To be killed."""
    with PostgresServer() as server:
        yield server


def test_many_open_a_new_catalog_at_once(postgres: PostgresServer, tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": postgres.new_database(), "warehouse": tmp_path.as_uri()}

    def open_one(_: int) -> Catalog:
        return load_catalog("new", properties)

    with ThreadPoolExecutor(6) as threads:
        for catalog in threads.map(open_one, range(6)):
            assert catalog.list_namespaces() == []
            catalog.close()


def test_hc23_a_server_killed_before_the_call_is_unknown_and_the_same_files_land_later(
    server: PostgresServer, tmp_path: Path
) -> None:
    properties = {"type": "sql", "uri": server.uri, "warehouse": tmp_path.as_uri()}
    with load_catalog("pg", properties) as catalog:
        sink = SinkOnTable.claimed(catalog, {"id": "long"})
        interrupted = InterruptedCatalog(catalog)
        interrupted.before = server.kill
        attempt = sink.attempt(pa.table({"id": pa.array([1, 2], pa.int64())}))
        table = IcebergTable(interrupted.as_catalog(), sink.identifier, SINK)
        assert isinstance(table.commit(attempt), Unknown)
        assert interrupted.calls == 1
        with pytest.raises(Unreachable):
            table.read()
        assert isinstance(table.commit(attempt), Unknown)
        server.start()
        again = CommitAttempt(table.read(), attempt.record, attempt.files)
        sink.land(table.commit(again))
        rows = read_with_duckdb(sink.load().metadata_location)
    assert sorted(rows["id"].to_pylist()) == [1, 2]


def test_a_lock_that_somebody_keeps_makes_the_outcome_unknown(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    properties = {"type": "sql", "uri": postgres.uri, "warehouse": tmp_path.as_uri()}
    with load_catalog(str(tmp_path), properties, timeout_s=0.5) as catalog:
        sink = SinkOnTable.claimed(catalog, {"id": "long"})
        attempt = sink.attempt(pa.table({"id": pa.array([1], pa.int64())}))
        with closing(postgres.connect()) as other:
            other.cursor().execute("LOCK TABLE iceberg_tables IN SHARE MODE")
            outcome = sink.table.commit(attempt)
        assert isinstance(outcome, Unknown)
        assert "lock timeout" in outcome.reason
        sink.land(sink.table.commit(attempt))


def test_f12_who_is_paused_with_the_row_in_hand_loses_it(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """The zombie's update is done and its transaction open: others would wait as long as it."""
    properties = {"type": "sql", "uri": postgres.uri, "warehouse": tmp_path.as_uri()}
    with (
        load_catalog(str(tmp_path), properties, timeout_s=0.5) as zombie,
        load_catalog(str(tmp_path), properties, timeout_s=20) as heir,
    ):
        sink = SinkOnTable.claimed(heir, {"id": "long"})
        engine = zombie.engine  # type: ignore[attr-defined]
        with engine.connect() as paused:
            paused.exec_driver_sql("UPDATE iceberg_tables SET metadata_location = 'the zombie'")
            sink.commit(pa.table({"id": pa.array([1], pa.int64())}))
            with pytest.raises(DBAPIError):
                paused.commit()
        rows = read_with_duckdb(sink.load().metadata_location)
    assert rows["id"].to_pylist() == [1]
