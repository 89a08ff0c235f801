"""A sink fills PostgreSQL with the example's package, and every process is killed in turn."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.faults.stuck_catalog import StuckRow
from integration.readers import read_postgres
from integration.sink_file import COLUMNS, COORDINATES, Sections
from support.postgres_server import PostgresServer

from headgate.operations.cli.main import main

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("installed_example")]


def postgres(folder: Path, *servers: PostgresServer, **more: object) -> Sections:
    hosts = ",".join(server.host for server in servers)
    uri = f"postgresql://headgate@{hosts}/postgres"
    return {
        "catalog.properties": {"type": None, "uri": uri, "warehouse": None},
        "table": {"type": "postgres", "location": str(folder / "staging"), **more},
    }


def rows(server: PostgresServer) -> pa.Table:
    return read_postgres(server, (*COLUMNS, *COORDINATES))


def kill_in_commit(sink: Deployment, server: PostgresServer) -> None:
    """The server dies while a commit waits for the sink's row, which somebody else has."""
    with StuckRow(sink, server) as row:
        row.await_commit()
        server.kill()
    server.start()


def examined(sink: Deployment, *audit: str) -> None:
    for command in (["status"], ["audit", *audit], ["check"]):
        done = CliRunner().invoke(main, [*command, str(sink.sink_file)])
        assert done.exit_code == 0, done.output


@pytest.mark.wide
def test_coordinators_and_the_server_are_killed_in_commits(deploy: Deploy, tmp_path: Path) -> None:
    with PostgresServer() as server:
        sink = deploy(postgres(tmp_path, server))
        sink.rows = lambda: rows(server)  # type: ignore[method-assign]
        sink.start(2)
        with sink.load():
            sink.wait_for_commits(2)
            sink.kill(sink.leader())
            sink.start()
            sink.wait_for_commits(2)
            kill_in_commit(sink, server)
            sink.wait_until(sink.all_share, "partitions with both")
            sink.wait_for_commits(1)
        sink.wait_until_lag_zero()
        sink.stop()
        assert sink.judge().rows == sink.produced
        examined(sink)
        refused = CliRunner().invoke(main, ["rollback", str(sink.sink_file), "1.1"])
        assert refused.exit_code == 2
        assert "HG-151" in refused.output


@pytest.mark.soak
def test_a_keyed_table_holds_the_last_record_of_each_key(
    deploy: Deploy, bootstrap: str, tmp_path: Path
) -> None:
    with PostgresServer() as server:
        sink = deploy(
            {
                **postgres(tmp_path, server, key=["id"]),
                "table.columns": {
                    "columns": {"id": {"type": "long", "required": True}, "zone": "string"}
                },
            }
        )
        sink.start(2)
        producer, expected = Producer({"bootstrap.servers": bootstrap}), dict[int, str]()
        for round_ in range(8):
            for key in range(200):
                gone = (key + round_) % 7 == 0
                value = None if gone else f'{{"id": {key}, "zone": "{round_}"}}'.encode()
                producer.produce(sink.topics[0], value, str(key), partition=key % 2)
                expected |= {} if gone else {key: str(round_)}
                if gone:
                    expected.pop(key, None)
            producer.flush()
            sink.wait_for_commits(1)
            if round_ % 3 == 1:
                sink.kill(sink.leader())
                sink.start()
            if round_ % 3 == 2:
                kill_in_commit_of_keys(sink, server, producer)
        sink.wait_until_lag_zero()
        sink.wait_until(sink.all_share, "a share for everybody")
        sink.stop()
        assert dict(server.ask("SELECT id, zone FROM db.rows WHERE id < 200")) == expected
        examined(sink, "--accept-unproven")  # the fold is compared for Iceberg only


def kill_in_commit_of_keys(sink: Deployment, server: PostgresServer, producer: Producer) -> None:
    producer.produce(sink.topics[0], b'{"id": 1000}', "1000", partition=0)
    producer.flush()
    kill_in_commit(sink, server)


@pytest.mark.soak
def test_a_sink_goes_on_with_the_replica(deploy: Deploy, tmp_path: Path) -> None:
    """Asynchronous: the newest commits are missing there, rows and offsets, and are made again."""
    with ExitStack() as opening:
        primary = opening.enter_context(PostgresServer())
        replica = opening.enter_context(PostgresServer(primary))
        sink = deploy(postgres(tmp_path, primary, replica))
        sink.rows = lambda: rows(replica)  # type: ignore[method-assign]
        sink.start(2)
        with sink.load():
            sink.wait_for_commits(3)
            replica.set("primary_conninfo", "")
            sink.wait_for_commits(3)
            primary.kill()
            replica.promote()
            sink.wait_for_commits(3)
        sink.wait_until_lag_zero()
        sink.stop()
        assert sink.judge().rows == sink.produced
        examined(sink)


@pytest.mark.soak
def test_values_that_postgresql_does_not_hold_are_bad_records(
    deploy: Deploy, tmp_path: Path
) -> None:
    with PostgresServer() as server:
        sink = deploy({**postgres(tmp_path, server), "quarantine": {"policy": "skip"}})
        producer = Producer({"bootstrap.servers": sink.bootstrap})
        for value in (b'{"id": 1, "zone": "a\\u0000b"}', b'{"id": 2, "zone": "b"}'):
            producer.produce(sink.topics[0], value, partition=0)
        producer.flush()
        sink.start()
        sink.wait_until_lag_zero()
        sink.stop()
        history = sink.history()
        assert history is not None
        assert sum(commit.record.skipped for commit in history.commits) == 1
        assert server.ask("SELECT id, zone FROM db.rows") == [(2, "b")]
        examined(sink, "--accept-unproven")  # which records were skipped, nothing tells
