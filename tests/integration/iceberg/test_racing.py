"""Two processes commit to one table at full speed: every outcome is known, no row doubles."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from integration.iceberg.sink_commits import SINK, SinkOnTable, record
from integration.readers import read_with_duckdb, read_with_pyiceberg
from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Snapshot
from support.local_catalog import LocalCatalog
from support.postgres_server import PostgresServer

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import decode_record
from headgate.control_protocol.ports import CommitAttempt, Landed, Refused
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable

pytestmark = [pytest.mark.integration, pytest.mark.wide]

COMMITS = 30


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.wide), "postgres"])
def local(
    request: pytest.FixtureRequest, tmp_path: Path, sqlite_catalog: LocalCatalog
) -> Iterator[LocalCatalog]:
    """SQLite lets one transaction in at a time; PostgreSQL lets both call at once."""
    if request.param == "sqlite":
        yield sqlite_catalog
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    properties = {**sqlite_catalog.properties, "uri": server.uri}
    with load_catalog(str(tmp_path), properties) as catalog:
        yield replace(sqlite_catalog, name=str(tmp_path), properties=properties, catalog=catalog)


def test_two_processes_race(local: LocalCatalog) -> None:
    properties = {"commit.manifest.min-count-to-merge": "7"}
    sink = SinkOnTable.claimed(local.catalog, {"id": "long"}, properties=properties)
    processes = [_start(local, racer) for racer in (1, 2)]
    told: Counter[str] = Counter()
    for process in processes:
        assert process.stdout
        process.stdout.readline()  # both are ready before either begins
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0
        told.update(said.split())
    assert told["landed"] == 2 * COMMITS
    assert told["refused"] > 0  # else they did not race
    expected = sorted(racer * 1000 + number for racer in (1, 2) for number in range(COMMITS))
    location = sink.load().metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        assert sorted(read(location)["id"].to_pylist()) == expected
    assert len(_records(sink.load().metadata.snapshots)) == 2 * COMMITS + 1


def _records(snapshots: Iterable[Snapshot]) -> list[CommitRecord]:
    found = (decode_record(SINK, s.summary.additional_properties) for s in snapshots if s.summary)
    return [one for one in found if one]


def _start(local: LocalCatalog, racer: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "integration.iceberg.test_racing"]
    arguments = [local.name, local.properties["uri"], local.properties["warehouse"], str(racer)]
    return subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def race(catalog: Catalog, racer: int) -> Iterator[str]:
    """The outcome of each try; a number is tried until it is known to have landed."""
    table = IcebergTable(catalog, "db.t", SINK)
    sink = SinkOnTable(catalog, "db.t", table, table.read())
    for number in range(COMMITS):
        identity = racer * 1000 + number
        files = sink.attempt(pa.table({"id": pa.array([identity], pa.int64())})).files
        while True:
            outcome = table.commit(CommitAttempt(table.read(), record(racer, identity), files))
            if isinstance(outcome, Landed):
                yield "landed"
                break
            yield "refused" if isinstance(outcome, Refused) else "unknown"
            if not isinstance(outcome, Refused) and _landed_unseen(catalog, identity):
                yield "landed"
                break


def _landed_unseen(catalog: Catalog, identity: int) -> bool:
    found = _records(catalog.load_table("db.t").metadata.snapshots)
    return any(one.transaction.number == identity for one in found)


if __name__ == "__main__":
    name, uri, warehouse, racer = sys.argv[1:]
    with load_catalog(name, {"type": "sql", "uri": uri, "warehouse": warehouse}) as opened:
        print("ready", flush=True)
        sys.stdin.readline()
        print(*race(opened, int(racer)))
