"""A real PostgreSQL through Debezium into one topic, from there into a table for each table.

Beside the tables there is what Debezium writes besides: heartbeats, transactions, messages of the
log, nulls in columns with a default, keys that change, and columns that come and go.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2.extensions
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import read_with_duckdb
from integration.sink.test_debezium_postgres import server
from integration.tables.test_keyed_routes import keyed_routes
from support.debezium_engine import ONE_TOPIC, Debezium
from support.postgres_server import PostgresServer
from support.topics import delete_topics

from headgate.operations.audit.audit import audit
from headgate.operations.check.check import State
from headgate.operations.check.check import check as check_sink

pytestmark = [pytest.mark.integration, pytest.mark.soak]

__all__ = ["server"]
CREATE = """
CREATE TABLE orders (id bigint PRIMARY KEY, name text DEFAULT 'unnamed', n numeric(12, 2) DEFAULT 7,
  ratio double precision);
CREATE TABLE visits (region int, code text, n int, note text, PRIMARY KEY (region, code));
CREATE TABLE units (serial int NOT NULL, ident uuid NOT NULL, name text);
CREATE UNIQUE INDEX units_ident ON units (ident);
ALTER TABLE orders REPLICA IDENTITY FULL;
ALTER TABLE units REPLICA IDENTITY USING INDEX units_ident;
"""
COLUMNS: dict[str, dict[str, str]] = {
    "orders": {"id": "long", "name": "string", "n": "decimal(12, 2)", "ratio": "double"},
    "visits": {"region": "long", "code": "string", "n": "int", "note": "string"},
    "units": {"serial": "int", "ident": "string", "name": "string"},
}
KEYS = {"orders": ("id",), "visits": ("region", "code"), "units": ("ident",)}
MORE = """
heartbeat.interval.ms=500
provide.transaction.metadata=true
signal.enabled.channels=in-process
table.include.list=public.orders,public.visits,public.units
"""
_ORDER = "INSERT INTO orders VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET"
_VISIT = "INSERT INTO visits VALUES (%s, %s, %s) ON CONFLICT (region, code) DO UPDATE SET"
_UNIT = "INSERT INTO units VALUES (%s, %s, %s) ON CONFLICT (ident) DO UPDATE SET"


class Database:
    """Changes three tables at random; ``run`` does what is asked for."""

    def __init__(self, connection: psycopg2.extensions.connection) -> None:
        self._connection, self._dice = connection, random.Random(4)
        self.run(CREATE)

    def run(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        with self._connection, self._connection.cursor() as cursor:
            cursor.execute(statement, values)

    def change(self, times: int) -> None:
        for _ in range(times):
            with self._connection, self._connection.cursor() as cursor:
                for _ in range(self._dice.randint(1, 3)):
                    self._one(cursor)

    def _one(self, cursor: psycopg2.extensions.cursor) -> None:
        dice = self._dice
        key, other, n = dice.randrange(30), dice.randrange(30, 60), dice.randrange(10**6)
        name = None if dice.random() < 0.2 else f"name {n}"
        ident = f"{key:08d}-0000-4000-8000-000000000000"
        statements: list[tuple[str, tuple[Any, ...]]] = [
            (
                f"{_ORDER} name = excluded.name, n = excluded.n, ratio = excluded.ratio",
                (key, name, None if n % 3 == 0 else n, n / 7),
            ),
            ("UPDATE orders SET id = %s WHERE id = %s", (other + n * 100, key)),
            ("DELETE FROM orders WHERE id = %s", (key,)),
            (f"{_VISIT} n = excluded.n", (key % 5, f"c{key}", n)),
            ("UPDATE visits SET code = %s WHERE code = %s", (f"m{n}", f"c{key}")),
            ("DELETE FROM visits WHERE code = %s", (f"c{key}",)),
            (f"{_UNIT} name = excluded.name", (n, ident, name)),
            ("DELETE FROM units WHERE ident = %s", (ident,)),
            ("SELECT pg_logical_emit_message(true, 'shop', 'hello')", ()),
        ]
        cursor.execute(*dice.choice(statements))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self._asked(f"SELECT {', '.join(COLUMNS[table])} FROM {table}")

    def _asked(self, query: str) -> list[tuple[Any, ...]]:
        with self._connection, self._connection.cursor() as cursor:
            cursor.execute(query)
            return ordered(cursor.fetchall())


def ordered(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


def in_table(sink: Deployment, table: str) -> list[tuple[Any, ...]]:
    with sink.catalog() as catalog:
        if not catalog.table_exists(f"db.{table}"):
            return []
        location = catalog.load_table(f"db.{table}").metadata_location
    rows = read_with_duckdb(location).select([*COLUMNS[table]]).to_pylist()
    return ordered(row.values() for row in rows)


def shared(deploy: Deploy) -> Deployment:
    sink = keyed_routes(deploy)
    topic = sink.topics[0]
    sections = [
        {
            "match": f"db.{table}",
            "key": KEYS[table],
            "columns": [
                {"name": name, "type": kind, "required": name in KEYS[table]}
                for name, kind in columns.items()
            ],
        }
        for table, columns in COLUMNS.items()
    ]
    sink.change(
        {
            "source": {"topics": [topic]},
            "tables.route": [{"topic": topic, "field": "source.table", "to": "db.{field}"}],
            "tables.table": sections,
            "format": {"type": "connect-json"},
            "changes": {"envelope": "debezium", "tombstones": "skip"},
        }
    )
    return sink


@pytest.fixture
def besides(admin: AdminClient) -> Iterator[None]:
    """Topics for what is of no table."""
    names = ["__debezium-heartbeat.shop", "shop.transaction", "shop.message"]
    for made in admin.create_topics([NewTopic(name, 1) for name in names]).values():
        made.result()
    yield
    delete_topics(admin, *names)


BY_TABLE = r"""
transforms=one
transforms.one.type=io.debezium.transforms.ByLogicalTableRouter
transforms.one.topic.regex=shop\\.public\\..*
transforms.one.topic.replacement=shop
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("router", [ONE_TOPIC, BY_TABLE], ids=["regex", "logical"])
@pytest.mark.usefixtures("besides")
def test_tables_of_one_topic_equal_those_of_postgresql(
    deploy: Deploy, server: PostgresServer, tmp_path: Path, router: str
) -> None:
    """A null in a column with a default stays one, unless Debezium's router builds the record."""
    sink = shared(deploy)
    more = router.replace("replacement=shop", f"replacement={sink.topics[0]}") + MORE
    with closing(server.connect()) as connection:
        shop = Database(connection)
        if router is BY_TABLE:
            shop.run("ALTER TABLE orders ALTER name DROP DEFAULT, ALTER n DROP DEFAULT")
        shop.change(100)
        address = server.uri.replace("+psycopg2", "")
        with Debezium(tmp_path, address, bootstrap=sink.bootstrap, more=more) as debezium:
            sink.start()

            def equal() -> bool:
                debezium.require_alive()
                return sink.record() is not None and all(
                    in_table(sink, table) == shop.rows(table) for table in COLUMNS
                )

            sink.wait_until(equal, "the snapshot", 300)
            shop.change(150)
            sink.kill(sink.participants[0])
            shop.run("ALTER TABLE visits ADD COLUMN later int DEFAULT 5")
            shop.change(100)
            shop.run("ALTER TABLE visits DROP COLUMN later")
            sink.start()
            debezium.kill()
            shop.change(100)
            debezium.start()
            sink.wait_until(equal, "all changes", 300)
            found = {each.what: each for each in check_sink(sink.settings)}
            assert {each.state for each in found.values()} <= {State.OK, State.UNCHECKED}
            report = audit(sink.settings)
            assert report.findings == ()
            assert sum(len(each) for each in sink.quarantined()) == 0
            shop.run("TRUNCATE visits")
            assert "emptied" in sink.stopped_by_itself("HG-245", 300)
