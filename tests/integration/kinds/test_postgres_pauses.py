"""SIGSTOP of a PostgreSQL table's coordinator past every time-out: it does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.faults.stuck_catalog import StuckRow
from integration.faults.test_pauses import takes_over
from integration.kinds.test_postgres import examined, postgres, rows
from support.postgres_server import PostgresServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("installed_example"),
    pytest.mark.wide,
]

PAST_ALL_S = 130.0
"""Longer than a transaction may last, and so than every other time-out."""


@pytest.fixture
def sink(deploy: Deploy, server: PostgresServer, tmp_path: Path) -> Deployment:
    sink = deploy(postgres(tmp_path, server), partitions=4)
    sink.rows = lambda: rows(server)  # type: ignore[method-assign]
    sink.start(2)
    return sink


def shared(sink: Deployment) -> None:
    sink.wait_until(lambda: sink.shares() == [2, 2], "partitions with both")
    sink.wait_for_commits(2)


def judged(sink: Deployment) -> None:
    sink.wait_until_lag_zero()
    sink.stop()
    assert sink.judge().rows == sink.produced
    examined(sink)


@pytest.mark.parametrize("seconds", [0, pytest.param(PAST_ALL_S, marks=pytest.mark.soak)])
def test_a_coordinator_that_is_paused_before_commit_is_cut_off(
    sink: Deployment, server: PostgresServer, seconds: float
) -> None:
    """It gets the sink's row while it stands still; the server takes that from it."""
    with sink.load():
        sink.wait_for_commits(2)
        zombie = sink.leader()
        with StuckRow(sink, server) as row:
            row.await_commit()
            zombie.pause()
        takes_over(sink, zombie, seconds)
        zombie.resume()
        sink.wait_until(lambda: zombie.said("nothing was committed"), "an end of its transaction")
        shared(sink)
    judged(sink)


@pytest.mark.parametrize("seconds", [0, pytest.param(PAST_ALL_S, marks=pytest.mark.soak)])
def test_a_commit_lands_while_its_coordinator_is_paused(
    sink: Deployment, server: PostgresServer, seconds: float
) -> None:
    """Its heir continues from there, and the answer is an old one when it is read."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with sink.load():
        sink.wait_for_commits(2)
        zombie = sink.leader()
        position = "SELECT position FROM headgate.sinks"
        server.set("synchronous_standby_names", "nobody")
        sink.wait_until(lambda: server.ask(waits) != [(0,)], "COMMIT that waits for a replica")
        zombie.pause()
        before = server.ask(position)
        server.set("synchronous_standby_names", "")
        sink.wait_until(lambda: server.ask(position) > before, "commit of one that is paused")
        takes_over(sink, zombie, seconds)
        zombie.resume()
        shared(sink)
    judged(sink)
