"""Kills the server in a commit, or promotes its replica: what landed is known later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.ports import Refused, Unknown
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)

pytestmark = pytest.mark.wide

servers = pytest.importorskip(
    "support.postgres_server", reason="kills servers that it starts itself"
)

PATIENCE_S = 60


def address(*servers_: servers.PostgresServer) -> str:
    return f"postgresql://headgate@{','.join(each.host for each in servers_)}/postgres"


def wait_until(uri: str, query: str) -> None:
    """Ask until the answer is true."""
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(uri, autocommit=True) as connection:
        while not connection.execute(query).fetchone()[0]:
            assert time.monotonic() < deadline, query
            time.sleep(0.02)


def kill_in_commit(server: servers.PostgresServer) -> Callable[[psycopg.Connection], None]:
    """Make a COMMIT that the server has done but cannot answer: no replica confirms it."""

    def killed(connection: psycopg.Connection) -> None:
        waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

        def kill() -> None:
            wait_until(address(server), waits)
            server.kill()

        killing = threading.Thread(target=kill)
        killing.start()
        try:
            connection.commit()
        finally:
            killing.join()

    return killed


def test_a_server_that_is_killed_before_and_within_commit(world_at, tmp_path: Path) -> None:
    with servers.PostgresServer() as server:
        world = world_at(address(server), tmp_path)
        table = world.open()
        view = claim_table(table)

        def killed(connection: psycopg.Connection) -> None:
            server.set("synchronous_standby_names", "nobody")  # counts once it is started again
            server.kill()
            connection.commit()

        table._commit = killed
        file = world.write_file(1)
        assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
        with pytest.raises(Unreachable):
            table.read()
        server.start()
        assert table.read() == view
        table._commit = kill_in_commit(server)
        assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
        server.start()
        server.set("synchronous_standby_names", "")
        after = table.read()
        assert record(1, 1, 3).is_same_commit(after.record), (
            "the answer was lost, the commit was not"
        )
        table._commit = psycopg.Connection.commit
        require_landed(commit(table, after, record(1, 2, 6), world.write_file(2)))
        assert world.visible_file_numbers() == [1, 2]


def test_a_promoted_replica_has_rows_and_offsets_of_one_moment(world_at, tmp_path: Path) -> None:
    """What it confirmed is there; what it had not received is missing, and is made again.

    Who read the same commit of the primary knows a history that is gone, and is refused
    (PENDING-4).
    """
    with ExitStack() as opening:
        primary = opening.enter_context(servers.PostgresServer())
        replica = opening.enter_context(servers.PostgresServer(primary))
        primary.set("synchronous_standby_names", "*")
        streams = "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until(address(primary), streams)
        world = world_at(address(replica, primary), tmp_path)
        table = world.open()
        confirmed = require_landed(
            commit(table, claim_table(table), record(1, 1, 3), world.write_file(1))
        )
        primary.set("synchronous_standby_names", "")
        replica.set("primary_conninfo", "")
        wait_until(address(primary), "SELECT count(*) = 0 FROM pg_stat_replication")
        file = world.write_file(2)
        lost = require_landed(commit(table, confirmed, record(1, 2, 6), world.write_file(2)))
        primary.kill()
        replica.promote()
        assert isinstance(commit(table, lost, record(1, 3, 9), world.write_file(3)), Refused)
        view = table.read()
        assert view.record == confirmed.record
        assert isinstance(commit(table, confirmed, record(1, 2, 6), world.write_file(2)), Refused)
        require_landed(commit(table, view, record(2, 0), file))
        assert world.visible_file_numbers() == [1, 2]
