"""PostgreSQL tables that follow, with everything real except Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from integration.conftest import Deploy
from integration.kinds.test_postgres import postgres
from integration.kinds.test_postgres_secondaries import locked, run
from many_tables_of_a_kind import CHANGES, EVERY, MANY, PLACES
from support.postgres_server import PostgresServer

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.identifiers import TopicPartition
from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main
from headgate.operations.many_tables.list import list_tables
from headgate.operations.status.status import read_status
from headgate.testing.contract import (
    CreatedTablesSinkContract,
    KeyedSinkContract,
    ManyTablesSinkContract,
    QuarantineSinkContract,
    SinkContract,
)
from headgate.testing.contract.world import (
    BEGIN,
    COLUMNS,
    expected_zone_by_key,
    recurring_key,
    source_coordinates,
    upsert_or_delete_value,
)
from headgate.testing.contract.world import sometimes_bad_value as without_headers
from headgate.testing.sink_in_process import SinkInProcess

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("installed_example"),
    pytest.mark.wide,
]


def value(at: TopicPartition, offset: int) -> bytes:
    if offset % 10 == 3:
        return b'{"id": 3, "zone": "\\u0000"}'
    return without_headers(at, offset)


def settings_at(
    servers: Sequence[PostgresServer], lake: Path, text: str = BEGIN + MANY
) -> SinkSettings:
    text = text.replace('"delta"', '"postgres"').replace("LAKE", str(lake))
    hosts = ",".join(server.host for server in servers)
    uri = f'[catalog.properties]\nuri = "postgresql://headgate@{hosts}/postgres"\n'
    return parse(text.replace("COLUMNS", COLUMNS) + uri)


@pytest.fixture
def shop(server: PostgresServer, tmp_path: Path) -> Iterator[SinkInProcess]:
    sink = SinkInProcess(settings_at([server], tmp_path / "staging"), value)
    yield sink
    sink.end_lives()


def places(server: PostgresServer, *names: str) -> list[tuple[Any, ...]]:
    """Where the records of all these tables are from."""
    asked = ", ".join(f'"{place}"' for place in PLACES)
    return sorted(row for name in names for row in server.ask(f"SELECT {asked} FROM db.{name}"))


def test_three_tables_and_what_no_route_takes(shop: SinkInProcess, server: PostgresServer) -> None:
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    assert places(server, *EVERY) == source_coordinates(shop)
    assert len(places(server, "zone_a")) == 8
    asked = "SELECT topic, count(*) FROM db.rejected WHERE message = '{}' GROUP BY topic"
    bad = asked.format("zone: a text of PostgreSQL holds no NUL")
    assert sorted(server.ask(bad)) == [("shop.orders", 3), ("shop.returns", 3)]
    states = {each.table: each.state for each in list_tables(shop.settings).tables}
    assert states == dict.fromkeys(("db.orders", "db.returns", "db.zone_a"), "open")
    assert not audit(shop.settings, with_source=False).findings


class PostgresSinkWorld:
    table_lines = 'type = "postgres"'
    quarantine_lines = ""

    def __init__(self, server: PostgresServer, home: Path) -> None:
        self._server, self._staging = server, home / "staging"

    @property
    def further_sections(self) -> str:
        uri = f"postgresql://headgate@{self._server.host}/postgres"
        return f'[catalog.properties]\nuri = "{uri}"\n'

    def location_lines(self, name: str) -> str:
        return f'location = "{self._staging}/{name}"'

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [row for (row,) in self._server.ask(f"SELECT to_jsonb(t) FROM db.{name} t")]

    def lock_table(self, name: str) -> AbstractContextManager[None]:
        return locked(self._server, f"db.{name}")

    def take_table_away(self, name: str) -> None:
        run(self._server, f"ALTER TABLE db.{name} RENAME TO away")

    def bring_table_back(self, name: str) -> None:
        run(self._server, f"ALTER TABLE db.away RENAME TO {name}")


class TestPostgresSink(
    SinkContract,
    QuarantineSinkContract,
    ManyTablesSinkContract,
    CreatedTablesSinkContract,
    KeyedSinkContract,
):
    @pytest.fixture
    def world(self, server: PostgresServer, tmp_path: Path) -> PostgresSinkWorld:
        return PostgresSinkWorld(server, tmp_path)


@pytest.mark.wide
def test_a_restored_database_that_lacks_a_delivery_is_delivered_again(
    shop: SinkInProcess, server: PostgresServer
) -> None:
    """As a replica that is promoted: it has the decision, and what was delivered since is
    missing."""
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    with locked(server, "db.zone_a"):
        shop.produce(30)
        shop.run_until(
            lambda: shop.tables_with_pending_commits() == {"db.zone_a"} and shop.lag() == 0
        )
        shop.end_lives()
        server.kill()  # with the delivery that waits
    server.start()
    elsewhere(server, "CREATE DATABASE replica TEMPLATE postgres")
    shop.begin_life()
    shop.run_until(lambda: places(server, *EVERY) == source_coordinates(shop))
    shop.end_lives()
    elsewhere(server, "ALTER DATABASE postgres RENAME TO lost")
    elsewhere(server, "ALTER DATABASE replica RENAME TO postgres")
    assert len(places(server, *EVERY)) < len(source_coordinates(shop))
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    assert places(server, *EVERY) == source_coordinates(shop)
    assert not audit(shop.settings, with_source=False).findings


def elsewhere(server: PostgresServer, statement: str) -> None:
    """From another database: nobody may be in the one that it is about."""
    uri = f"postgresql://headgate@{server.host}/template1"
    with closing(psycopg2.connect(uri)) as connection:
        connection.autocommit = True
        connection.cursor().execute(statement)


@pytest.mark.wide
def test_tables_are_looked_at_by_few_connections_however_many_they_are(
    shop: SinkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    shop.end_lives()
    connect, opened, seen = psycopg.connect, list[Any](), list[int]()

    def counted(**told: Any) -> Any:
        opened.append(connect(**told))
        # Counted here: the server shows a connection for a moment after it was closed.
        seen.append(sum(not each.closed for each in opened))
        return opened[-1]

    monkeypatch.setattr(psycopg, "connect", counted)
    assert len(list_tables(shop.settings).tables) == 3
    assert len(seen) > 3
    assert max(seen) <= 2, "the ledger's, and the table's that is looked at"


# ------------------------------------------------------------------------------------ rows by key


def orders(server: PostgresServer) -> dict[int, str]:
    return dict(server.ask("SELECT id, zone FROM db.orders"))


def by_key(server: PostgresServer, lake: Path) -> SinkInProcess:
    text = CHANGES.replace("[coordinator]", '[coordinator]\non_topic_recreated = "earliest"')
    settings = settings_at([server], lake, text)
    return SinkInProcess(settings, upsert_or_delete_value, recurring_key)


@pytest.mark.wide
def test_key_3_a_table_with_a_key_among_others_is_the_fold_of_a_topic_that_was_created_anew(
    server: PostgresServer, tmp_path: Path
) -> None:
    """What was decided before is pending still, and comes by one delivery with what is newer."""
    shop = by_key(server, tmp_path / "staging")
    try:
        shop.begin_life()
        shop.produce(50)
        shop.run_until_settled()
        with locked(server, "db.orders"):
            shop.produce(25)
            shop.run_until(
                lambda: shop.tables_with_pending_commits() == {"db.orders"} and shop.lag() == 0
            )
            shop.end_lives()
            shop.source.create_or_replace("shop.orders", 1)
            shop.produce(10)
            shop.begin_life()
            shop.run_until(lambda: shop.lag() == 0)
            pending_commits = shop.record.pending_commits if shop.record else ()
            assert (
                len(
                    {
                        pending_commit.transaction.epoch
                        for pending_commit in pending_commits
                        if pending_commit.manifest
                    }
                )
                == 2
            )
            shop.end_lives()
        expected = expected_zone_by_key(75)
        expected.pop(3)
        expected |= expected_zone_by_key(10)
        shop.begin_life()
        shop.run_until(lambda: orders(server) == expected)
        shop.run_until_settled()
        assert len(places(server, "returns")) == 85
        report = audit(shop.settings, with_source=False)
        assert not report.findings
        assert f"db.orders: each of {len(expected)} live rows has a key of its own" in report.proven
        (table,) = (each for each in list_tables(shop.settings).tables if each.table == "db.orders")
        assert (table.state, table.keys is not None) == ("open", True)
    finally:
        shop.end_lives()


@pytest.mark.wide
def test_pending_4_a_restored_database_that_lacks_a_delivery_by_key_is_delivered_again(
    server: PostgresServer, tmp_path: Path
) -> None:
    shop = by_key(server, tmp_path / "staging")
    try:
        shop.begin_life()
        shop.produce(50)
        shop.run_until_settled()
        with locked(server, "db.orders"):
            shop.produce(25)
            shop.run_until(
                lambda: shop.tables_with_pending_commits() == {"db.orders"} and shop.lag() == 0
            )
            shop.end_lives()
            server.kill()  # with the delivery that waits
        server.start()
        elsewhere(server, "CREATE DATABASE replica TEMPLATE postgres")
        shop.begin_life()
        shop.run_until(lambda: orders(server) == expected_zone_by_key(75))
        shop.end_lives()
        elsewhere(server, "ALTER DATABASE postgres RENAME TO lost")
        elsewhere(server, "ALTER DATABASE replica RENAME TO postgres")
        assert orders(server) == expected_zone_by_key(50)
        shop.begin_life()
        shop.run_until(lambda: orders(server) == expected_zone_by_key(75))
        shop.run_until_settled()
        assert not audit(shop.settings, with_source=False).findings
    finally:
        shop.end_lives()


def test_key_8_a_key_in_two_partitions_suspends_its_table_and_no_other_through_a_kill(
    deploy: Deploy, server: PostgresServer, tmp_path: Path
) -> None:
    """A broker, two processes, and kill -9 between a decision and its delivery."""
    sink = deploy({}, topics=2)
    first, second = sink.topics
    columns = [
        {"name": "id", "type": "long", "required": True},
        {"name": "zone", "type": "string"},
    ]
    sink.change(
        {
            **dict.fromkeys(("table", "table.columns", "table.record_columns")),
            "catalog.properties": postgres(tmp_path, server)["catalog.properties"],
            "tables": {"type": "postgres", "ledger": "db.ledger"},
            "tables.create": {
                "schema": "declared",
                "location": f"{tmp_path}/staging/{{table}}",
            },
            "tables.record_columns": {"topic": "t", "partition": "p", "offset": "o"},
            "tables.route": [
                {"topic": first, "to": "db.orders"},
                {"topic": second, "to": "db.returns"},
            ],
            "tables.table": [
                {"match": "db.orders", "key": ["id"], "columns": columns},
                {"match": "db.returns", "columns": columns},
            ],
            "quarantine": {"per_thousand_max": 1_000, "table": "db.rejected"},
        }
    )
    producer, expected = Producer({"bootstrap.servers": sink.bootstrap}), dict[int, str]()

    def produce(round_: int) -> None:
        """Each key to its partition; some rows go."""
        for key in range(100):
            goes = (key + round_) % 7 == 0
            value = None if goes else f'{{"id": {key}, "zone": "{round_}"}}'.encode()
            producer.produce(first, value, str(key), partition=key % 2)
            expected.pop(key, None)
            expected.update({} if goes else {key: str(round_)})
            producer.produce(second, f'{{"id": {key}, "zone": "{round_}"}}', partition=key % 2)
        producer.flush()

    produce(0)
    sink.start(2)
    sink.wait_until_lag_zero()
    with locked(server, "db.orders"):
        produce(1)
        sink.wait_until(
            lambda: {d.table for d in sink.pending()} == {"db.orders"}, "one pending commit"
        )
        sink.kill(sink.leader())
        server.kill()
    server.start()
    sink.start()
    produce(2)
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: orders(server) == expected, "the fold")

    producer.produce(first, b'{"id": 2, "zone": "moved"}', "2", partition=1)
    producer.flush()
    produce(3)

    def suspended() -> bool:
        return "db.orders is suspended: HG-241" in " ".join(read_status(sink.settings).notes)

    sink.wait_until(suspended, "a suspended table")
    count = "SELECT count(*) FROM db.returns"
    sink.wait_until(lambda: server.ask(count) == [(400,)], "rows of the other table")
    sink.stop()
    (two,) = server.ask("SELECT zone FROM db.orders WHERE id = 2")
    assert two == ("2",)
    done = CliRunner().invoke(main, ["tables", str(sink.sink_file)])
    assert done.exit_code == 1
    assert "HG-241" in done.output
