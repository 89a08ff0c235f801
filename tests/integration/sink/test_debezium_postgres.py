"""A real PostgreSQL through Debezium and Kafka into a table that equals it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2.extensions
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import read_with_duckdb
from integration.registry.server import RegistryServer
from support.debezium_engine import Debezium
from support.postgres_server import PostgresServer

from headgate.operations.audit.audit import audit

pytestmark = [pytest.mark.integration, pytest.mark.soak]

CREATE = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer text, total numeric(12, 2), ratio double precision, paid boolean,
  due date, placed_at timestamptz, changed_at timestamp, tags text[], ident uuid, body jsonb,
  note text
);
ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL;
ALTER TABLE orders REPLICA IDENTITY FULL;
"""
COLUMNS: dict[str, Any] = {
    "id": {"type": "long", "required": True},
    "customer": "string",
    "total": "decimal(12, 2)",
    "ratio": "double",
    "paid": "boolean",
    "due": "date",
    "placed_at": "timestamptz",
    "changed_at": "timestamp",
    "tags": "list<string>",
    "ident": "string",
    "body": "string",
    "note": "string",
}
SINK: dict[str, Any] = {
    "table": {"key": ["id"], "properties": {"format-version": "3"}},
    "table.columns": {"columns": COLUMNS},
    "changes": {"envelope": "debezium"},
    "quarantine": {"policy": "quarantine", "per_thousand_max": 1_000},
}
TEXT_BYTES = 9_000
"""Beyond what PostgreSQL keeps in a row: such a value is logged only where it changes."""


class Shop:
    """Changes the table, in transactions of some statements each."""

    def __init__(self, connection: psycopg2.extensions.connection) -> None:
        self._dice = random.Random(9)
        self._connection = connection
        self._next = 0
        self.run(CREATE)

    def run(self, *statements: str, values: tuple[Any, ...] = ()) -> None:
        with self._connection, self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement, values)

    def change(self, times: int) -> None:
        for _ in range(times):
            with self._connection, self._connection.cursor() as cursor:
                for _ in range(self._dice.randint(1, 4)):
                    self._one(cursor)

    def _one(self, cursor: psycopg2.extensions.cursor) -> None:
        kind, known = self._dice.random(), self._dice.randrange(max(1, self._next))
        if kind < 0.4 or not self._next:
            names = ", ".join(COLUMNS)
            marks = ", ".join(["%s"] * len(COLUMNS))
            cursor.execute(f"INSERT INTO orders ({names}) VALUES ({marks})", self._row())
        elif kind < 0.75:
            wanted = self._dice.sample([*COLUMNS][1:], 3)
            row = dict(zip(COLUMNS, self._row(), strict=True))
            sets = ", ".join(f"{name} = %s" for name in wanted)
            cursor.execute(
                f"UPDATE orders SET {sets} WHERE id = %s", [*(row[n] for n in wanted), known]
            )
        elif kind < 0.85:  # the key itself: Debezium deletes and creates
            cursor.execute("UPDATE orders SET id = %s WHERE id = %s", [self._fresh(), known])
        else:
            cursor.execute("DELETE FROM orders WHERE id = %s", [known])

    def _fresh(self) -> int:
        self._next += 1
        return self._next - 1

    def _row(self) -> list[Any]:
        dice = self._dice
        second = f"{dice.randrange(60):02d}.{dice.randrange(10**6):06d}"
        row: list[Any] = [
            f"customer {dice.randrange(99)}",
            f"{dice.uniform(-1e6, 1e6):.2f}",
            dice.uniform(-1, 1),
            dice.random() < 0.5,
            f"20{dice.randrange(10, 60)}-03-{dice.randrange(1, 28):02d}",
            f"2026-11-23 06:00:{second}+05:30",
            f"1969-12-31 23:59:{second}",
            [f"tag-{dice.randrange(9)}", None, "ünïcode '\"\\"],
            f"{dice.getrandbits(128):032x}",
            json.dumps({"a": dice.randrange(9), "b": [None, {"c": "d"}]}),
            f"{dice.getrandbits(64):016x}" * (TEXT_BYTES // 16 if dice.random() < 0.3 else 1),
        ]
        return [self._fresh(), *(value if dice.random() < 0.9 else None for value in row)]

    def rows(self) -> list[dict[str, Any]]:
        with self._connection, self._connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM orders ORDER BY id")
            return [comparable(zip(COLUMNS, row, strict=True)) for row in cursor.fetchall()]


def comparable(row: Any) -> dict[str, Any]:
    """PostgreSQL's client and Arrow say some values otherwise."""
    found = dict(row)
    body = found["body"]
    found["body"] = json.loads(body) if isinstance(body, str) else body
    found["ident"] = None if found["ident"] is None else str(found["ident"])
    return found


def in_table(sink: Deployment) -> list[dict[str, Any]]:
    with sink.table() as table:
        rows = read_with_duckdb(table.metadata_location).select([*COLUMNS]).to_pylist()
    return sorted((comparable(row.items()) for row in rows), key=lambda row: int(row["id"]))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings=("wal_level=logical", "timezone=UTC")) as server:
        yield server


@pytest.fixture(params=["connect-json", "avro-registry"])
def registry(request: pytest.FixtureRequest) -> Iterator[str]:
    """Its address, or nothing for JSON."""
    if request.param == "connect-json":
        yield ""
        return
    with RegistryServer() as server:
        yield server.url


def test_the_table_equals_the_postgresql_table(
    deploy: Deploy, server: PostgresServer, tmp_path: Path, registry: str
) -> None:
    avro = {"format": {"type": "avro-registry"}, "format.options": {"registry.url": registry}}
    sink = deploy({**SINK, **(avro if registry else {"format": {"type": "connect-json"}})})
    with closing(server.connect()) as connection:
        shop = Shop(connection)
        shop.change(150)
        address = server.uri.replace("+psycopg2", "")
        place = {"bootstrap": sink.bootstrap, "topic": sink.topics[0], "registry": registry}
        with Debezium(tmp_path, address, **place) as debezium:
            sink.start()

            def equal() -> bool:
                debezium.require_alive()
                return sink.record() is not None and in_table(sink) == shop.rows()

            sink.wait_until(equal, "the snapshot", 300)
            shop.change(150)
            sink.kill(sink.participants[0])
            shop.change(100)
            sink.start()
            debezium.kill()  # what it had not noted down comes again
            shop.change(100)
            debezium.start()
            sink.wait_until(equal, "all changes", 300)

            # a value that is not logged: the record is a bad one, and the row of before stands
            text = "x" * TEXT_BYTES
            shop.run("INSERT INTO orders (id, note) VALUES (999999, %s)", values=(text,))
            sink.wait_until(equal, "the long text", 300)
            before = in_table(sink)
            shop.run("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
            shop.run("UPDATE orders SET total = 1 WHERE id = 999999")
            sink.wait_until(lambda: _quarantined(sink) == 1, "the record in the quarantine", 300)
            assert in_table(sink) == before
            shop.run("ALTER TABLE orders REPLICA IDENTITY FULL")
            shop.run("UPDATE orders SET total = 2 WHERE id = 999999")
            sink.wait_until(equal, "the row as it is", 300)

            report = audit(sink.settings)
            assert report.findings == ()
            assert any("value by value" in told for told in report.proven)

            shop.run("TRUNCATE orders")
            assert "emptied" in sink.stopped_by_itself("HG-245", 300)
            assert len(in_table(sink)) == report.live_rows


def _quarantined(sink: Deployment) -> int:
    history = sink.history()
    return sum(commit.record.quarantined for commit in history.commits) if history else 0
