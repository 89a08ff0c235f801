"""A server that does not answer, and keeps its sockets open: nobody waits for it for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Refused, TableView, Unknown
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate_postgres import kind as kinds
from headgate_postgres import table as committing
from headgate_postgres.kind import _place
from headgate_postgres.ledger import _ADVISORY_LOCK
from headgate_postgres.table import PostgresTable

pytestmark = pytest.mark.wide

servers = pytest.importorskip(
    "support.postgres_server", reason="stops servers that it starts itself"
)
relays = pytest.importorskip("support.held_relay")

COMMIT_S = 1.0
PATIENCE_MS = 300
HANGS_S = 30.0
"""Whoever waits for longer hangs."""


@pytest.fixture
def server() -> Iterator[Any]:
    with servers.PostgresServer() as server:
        yield server


@pytest.fixture
def relay(server) -> Iterator[Any]:
    with relays.HeldRelay(int(server.host.rpartition(":")[2])) as relay:
        yield relay


def address(host: str) -> str:
    return f"postgresql://headgate@{host}/postgres?connect_timeout=2"


def impatient(world: Any) -> PostgresTable:
    return PostgresTable(_place(world.wanted), SinkName("sink"), commit_s=COMMIT_S)


def committing_behind(happens: Callable[[], None]) -> Callable[[psycopg.Connection], None]:
    """Return a commit behind something that befalls it."""

    def commits(connection: psycopg.Connection) -> None:
        happens()
        connection.commit()

    return commits


def ends(call: Any) -> Any:
    """Call in a thread, which must not hang."""
    answers: list[Any] = []
    calling = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    calling.start()
    calling.join(HANGS_S)
    assert not calling.is_alive(), "it hangs"
    (answer,) = answers
    return answer


def until_landed(table: PostgresTable) -> TableView:
    deadline = time.monotonic() + HANGS_S
    while not record(1, 1, 3).is_same_commit((view := table.read()).record):
        assert time.monotonic() < deadline, view
        time.sleep(0.05)
    return view


def goes_on(world: Any, stale: TableView, file: Any) -> None:
    """The commit landed after all: nobody brings it again, and the next one follows it."""
    table = world.open()
    view = until_landed(table)
    assert isinstance(commit(table, stale, record(1, 1, 3), file), Refused)
    require_landed(commit(table, view, record(1, 2, 6), world.write_file(2)))
    assert world.visible_file_numbers() == [1, 2]


def test_a_server_that_is_stopped_in_commit_is_given_up(server, world_at, tmp_path: Path) -> None:
    """Its kernel has the COMMIT, and the server does it when it continues."""
    world = world_at(address(server.host), tmp_path)
    table = impatient(world)
    view = claim_table(table)

    table._commit = committing_behind(server.pause)
    file = world.write_file(1)
    outcome = ends(lambda: commit(table, view, record(1, 1, 3), file))
    assert isinstance(outcome, Unknown)
    assert "no answer within 1 s" in outcome.reason
    with pytest.raises(Unreachable):
        table.read()
    server.resume()
    goes_on(world, view, file)


def test_an_answer_to_a_landed_commit_that_never_comes_is_a_lost_one(
    server, relay, world_at, tmp_path: Path
) -> None:
    world = world_at(address(relay.host), tmp_path)
    table = impatient(world)
    view = claim_table(table)

    table._commit = committing_behind(relay.answering.clear)
    file = world.write_file(1)
    assert isinstance(ends(lambda: commit(table, view, record(1, 1, 3), file)), Unknown)
    relay.answering.set()
    goes_on(world, view, file)


def test_a_commit_that_reaches_the_server_late_is_waited_for(
    server, relay, world_at, tmp_path: Path
) -> None:
    """Until then nobody else commits; and when it has landed, its rows are not brought again."""
    world = world_at(address(relay.host), tmp_path)
    table = impatient(world)
    view = claim_table(table)

    table._commit = committing_behind(relay.asking.clear)
    file = world.write_file(1)
    assert isinstance(ends(lambda: commit(table, view, record(1, 1, 3), file)), Unknown)
    direct = world_at(address(server.host), tmp_path)
    direct.wanted = type(world.wanted)(
        **{
            **{name: getattr(world.wanted, name) for name in world.wanted.__slots__},
            "storage": direct.wanted.storage,
        }
    )
    heir = PostgresTable(_place(direct.wanted), SinkName("sink"), patience_ms=PATIENCE_MS)
    outcome = commit(heir, heir.read(), record(2, 0))
    assert isinstance(outcome, Unknown)
    assert "lock timeout" in outcome.reason
    relay.asking.set()
    goes_on(world, view, file)


def test_a_commit_that_no_replica_confirms_is_given_up_and_lands(
    server, world_at, tmp_path: Path
) -> None:
    """With synchronous replication, COMMIT waits for a replica that may never come back."""
    world = world_at(address(server.host), tmp_path)
    table = impatient(world)
    view = claim_table(table)
    server.set("synchronous_standby_names", "nobody")
    file = world.write_file(1)
    assert isinstance(ends(lambda: commit(table, view, record(1, 1, 3), file)), Unknown)
    assert table.read() == view
    server.set("synchronous_standby_names", "")
    goes_on(world, view, file)


def test_a_transaction_without_end_is_given_up(world, monkeypatch) -> None:
    """Whatever it waits for before COMMIT: nothing of it lands."""
    table = world.open()
    view = claim_table(table)
    monkeypatch.setattr(committing, "TRANSACTION_S", COMMIT_S)

    class Slow(committing.Moving):
        def append(self, table: Any) -> None:
            self._connection.execute("SELECT pg_sleep(60)")

    monkeypatch.setattr(committing, "Moving", Slow)
    outcome = ends(lambda: commit(table, view, record(1, 1, 3), world.write_file(1)))
    assert isinstance(outcome, Unknown)
    assert outcome.reason.startswith("nothing was committed")
    assert table.read() == view


def test_a_question_without_answer_is_given_up(world) -> None:
    server = _place(world.wanted).server

    def asked() -> str:
        with pytest.raises(Unreachable) as told, server.connected(COMMIT_S) as connection:
            connection.execute("SELECT pg_sleep(60)")
        return str(told.value)

    assert "no answer within 1 s" in ends(asked)


def test_who_stands_still_while_the_ledger_is_made_keeps_nobody_waiting(
    world,
) -> None:
    """A paused process has the lock of the first claim: others say so, and try again."""
    table = PostgresTable(_place(world.wanted), SinkName("sink"), patience_ms=PATIENCE_MS)
    with psycopg.connect(world.uri) as paused:
        paused.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        outcome = ends(lambda: commit(table, table.read(), record(1, 0)))
        assert isinstance(outcome, Unknown)
        assert "lock timeout" in outcome.reason
    claim_table(table)


def test_who_stands_still_while_the_table_is_made_keeps_nobody_waiting(world, monkeypatch) -> None:
    monkeypatch.setattr(kinds, "PATIENCE_MS", PATIENCE_MS)
    world.drop()
    with psycopg.connect(world.uri) as paused:
        paused.execute(f"CREATE TABLE {world.wanted.name} (number bigint)")

        def ensured() -> None:
            with pytest.raises(Unreachable, match="lock timeout"):
                world.kind.create(world.wanted)

        ends(ensured)
        paused.rollback()
    world.kind.create(world.wanted)
    claim_table(world.open())
