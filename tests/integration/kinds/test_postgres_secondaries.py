"""PostgreSQL tables that follow: quarantine and routed tables, whose rows another one decided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.kinds.test_delta_secondaries import (
    TABLES,
    judged,
    routed,
    suspended_and_resumed,
)
from integration.kinds.test_postgres import examined, postgres
from integration.readers import read_postgres
from integration.sink_file import COLUMNS, COORDINATES, KEPT
from support.postgres_server import PostgresServer

from headgate.operations.audit.audit import audit
from headgate.operations.status.status import read_status

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("installed_example"),
    pytest.mark.wide,
]

PLACES = ("topic", "partition", "offset")


@contextmanager
def locked(server: PostgresServer, table: str) -> Iterator[None]:
    """Somebody else has the table: it can be read, and nobody can deliver to it."""
    with closing(server.connect()) as connection:
        connection.cursor().execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        yield


def keeping(deploy: Deploy, folder: Path, *servers: PostgresServer) -> Deployment:
    """A sink whose every fifth record is bad; the last server has it in the end."""
    sink = deploy({**postgres(folder, *servers), **KEPT})
    sink.bad_every = 5
    server = servers[-1]

    def aside() -> list[pa.Table]:
        rows = read_postgres(server, PLACES, "db.rows_quarantine")
        return [rows.rename_columns(list(COORDINATES))]

    sink.rows = lambda: read_postgres(server, (*COLUMNS, *COORDINATES))  # type: ignore[method-assign]
    sink.quarantined = aside  # type: ignore[method-assign]
    return sink


def test_what_a_postgres_quarantine_is_pending_is_delivered_by_whoever_comes_next(
    deploy: Deploy, tmp_path: Path, server: PostgresServer
) -> None:
    sink = keeping(deploy, tmp_path, server)
    sink.produce(100)
    sink.start(2)
    sink.wait_until_lag_zero()
    with locked(server, "db.rows_quarantine"):
        sink.produce(100)
        sink.wait_until(lambda: bool(sink.pending()), "a decision that is not delivered")
        sink.kill(sink.leader())
        assert "are pending for the quarantine" in " ".join(audit(sink.settings).remarks)
        assert (
            read_status(sink.settings).pending_rows
            == sum(pending_commit.rows for pending_commit in sink.pending())
            == 20
        )
        server.kill()
    server.start()
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    report = sink.judge()
    assert (
        report.sum_over_partitions("in_table"),
        report.sum_over_partitions("in_quarantine"),
    ) == (160, 40)
    assert len(read_status(sink.settings).rejected_records) == 5
    examined(sink)


NUL = b'{"id": 1, "zone": "a\\u0000b"}'


def test_a_quarantine_takes_whatever_postgresql_does_not_hold(
    deploy: Deploy, tmp_path: Path, server: PostgresServer
) -> None:
    sink = keeping(deploy, tmp_path, server)
    producer = Producer({"bootstrap.servers": sink.bootstrap})
    headers: list[tuple[str, Any]] = [("trace", b"\0\xff"), ("none", None), (" é", b"")]
    producer.produce(sink.topics[0], NUL, b"\0key", partition=0, headers=headers)
    producer.produce(sink.topics[0], b'{"id": "a\\u0000b"}', partition=0)
    producer.produce(sink.topics[0], b'{"a\\u0000b": ', partition=0)
    producer.produce(sink.topics[0], b'{"id": 2, "zone": "b"}', partition=0)
    producer.flush()
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    asked = 'SELECT key, value, headers, message FROM db.rows_quarantine ORDER BY "offset"'
    (key, value, told, message), *others = server.ask(asked)
    assert (bytes(key), bytes(value)) == (b"\0key", NUL)
    assert told == [
        {"key": "trace", "value": "AP8="},
        {"key": "none", "value": None},
        {"key": " é", "value": ""},
    ]
    assert message == "zone: a text of PostgreSQL holds no NUL"
    assert len(others) == 2
    assert server.ask("SELECT id, zone FROM db.rows") == [(2, "b")]
    sink.judge()
    examined(sink)


@pytest.mark.soak
def test_a_coordinator_dies_between_two_of_three_tables_and_one_is_renamed_meanwhile(
    deploy: Deploy, tmp_path: Path, server: PostgresServer
) -> None:
    properties = postgres(tmp_path, server)["catalog.properties"]
    assert isinstance(properties, dict)
    sink = routed(deploy, "postgres", tmp_path / "staging", {"uri": properties["uri"]})
    for topic in sink.topics:
        sink.produce(90, topic)
    sink.start(2)
    sink.wait_until_lag_zero()
    with locked(server, "db.zone_a"):
        for topic in sink.topics:
            sink.produce(90, topic)
        sink.wait_until(
            lambda: {pending_commit.table for pending_commit in sink.pending()} == {"db.zone_a"},
            "one pending commit",
        )
        sink.kill(sink.leader())
        run(server, "ALTER TABLE db.returns RENAME TO away")
    sink.start()

    def given_back() -> None:
        run(server, "ALTER TABLE db.away RENAME TO returns")

    suspended_and_resumed(sink, given_back)
    columns = dict.fromkeys(TABLES, (*COLUMNS, *COORDINATES)) | {"rejected": PLACES}
    judged(sink, lambda name: read_postgres(server, columns[name], f"db.{name}"))


def run(server: PostgresServer, statement: str) -> None:
    with closing(server.connect()) as connection:
        connection.autocommit = True
        connection.cursor().execute(statement)
