"""PostgreSQL tables that follow, with everything that is real but Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from integration.kinds.test_postgres_followers import locked, run
from many_tables_of_a_kind import BEGIN, COLUMNS, DECLARED, EVERY, MANY, PLACES, source
from many_tables_of_a_kind import value as without_headers
from postgres_server import PostgresServer
from sink_in_process import SinkInProcess

from headgate.control_protocol.identifiers import TopicPartition
from headgate.operations.audit import audit
from headgate.operations.tables import tables
from headgate.sink.load import parse
from headgate.sink.settings import SinkSettings

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("installed_example")]


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
    sink.die()


def places(server: PostgresServer, *names: str) -> list[tuple[Any, ...]]:
    """Where the records of all these tables are from."""
    asked = ", ".join(f'"{place}"' for place in PLACES)
    return sorted(row for name in names for row in server.ask(f"SELECT {asked} FROM db.{name}"))


def test_point_5_three_tables_and_what_no_route_takes(
    shop: SinkInProcess, server: PostgresServer
) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    assert places(server, *EVERY) == source(shop)
    assert len(places(server, "zone_a")) == 8
    asked = "SELECT topic, count(*) FROM db.rejected WHERE message = '{}' GROUP BY topic"
    bad = asked.format("zone: a text of PostgreSQL holds no NUL")
    assert sorted(server.ask(bad)) == [("shop.orders", 3), ("shop.returns", 3)]
    states = {each.table: each.state for each in tables(shop.settings).tables}
    assert states == dict.fromkeys(("db.orders", "db.returns", "db.zone_a"), "open")
    assert not audit(shop.settings, with_source=False).findings


def test_point_5_a_coordinator_dies_between_two_tables_and_one_is_renamed_meanwhile(
    shop: SinkInProcess, server: PostgresServer
) -> None:
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    with locked(server, "db.zone_a"):
        shop.produce(30)
        shop.until(lambda: shop.owed() == {"db.zone_a"} and shop.lag() == 0)
        shop.die()
    run(server, "ALTER TABLE db.returns RENAME TO away")
    shop.begin()
    shop.until(lambda: "db.returns" in shop.parked())
    assert shop.parked()["db.returns"].startswith("HG-102")
    shop.produce(30)
    shop.until_settled("db.returns")
    assert tables(shop.settings).exit_code == 1
    run(server, "ALTER TABLE db.away RENAME TO returns")
    shop.resume("db.returns")
    shop.until(lambda: shop.record is not None and not shop.record.parked)
    shop.produce(30)
    shop.until_settled()
    assert places(server, *EVERY) == source(shop)
    assert not audit(shop.settings, with_source=False).findings


def test_point_5_a_restored_database_that_lacks_a_payment_is_paid_again(
    shop: SinkInProcess, server: PostgresServer
) -> None:
    """As a replica that is promoted: it has the decision, and what was paid since is missing."""
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    with locked(server, "db.zone_a"):
        shop.produce(30)
        shop.until(lambda: shop.owed() == {"db.zone_a"} and shop.lag() == 0)
        shop.die()
        server.kill()  # with the payment that waits
    server.start()
    elsewhere(server, "CREATE DATABASE replica TEMPLATE postgres")
    shop.begin()
    shop.until(lambda: places(server, *EVERY) == source(shop))
    shop.die()
    elsewhere(server, "ALTER DATABASE postgres RENAME TO lost")
    elsewhere(server, "ALTER DATABASE replica RENAME TO postgres")
    assert len(places(server, *EVERY)) < len(source(shop))
    shop.begin()
    shop.produce(30)
    shop.until_settled()
    assert places(server, *EVERY) == source(shop)
    assert not audit(shop.settings, with_source=False).findings


def elsewhere(server: PostgresServer, statement: str) -> None:
    """From another database: nobody may be in the one that it is about."""
    uri = f"postgresql://headgate@{server.host}/template1"
    with closing(psycopg2.connect(uri)) as connection:
        connection.autocommit = True
        connection.cursor().execute(statement)


def test_point_5_n1_tables_of_fields_are_made_of_what_records_show(
    server: PostgresServer, tmp_path: Path
) -> None:
    text = (BEGIN + MANY).replace('"declared"', '"infer"').replace(DECLARED, "")
    sink = SinkInProcess(settings_at([server], tmp_path / "staging", text), value)
    try:
        for _ in range(2):
            sink.begin()
            sink.produce(30)
            sink.until_settled()
        assert places(server, *EVERY, "zone_b", "zone_c") == source(sink)
        comment = "SELECT obj_description('db.zone_a'::regclass)"
        assert server.ask(comment) == [('{"headgate.raw-name": "db.zone_a"}',)]
    finally:
        sink.die()
