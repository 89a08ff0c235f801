"""PostgreSQL is the catalog, and is killed under a whole sink: in mid-commit, and at any time."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy
from integration.faults.stuck_catalog import StuckCatalog
from support.postgres_server import PostgresServer

pytestmark = pytest.mark.integration


@pytest.mark.wide
def test_hc23_postgresql_is_killed_in_mid_commit_and_at_any_time(deploy: Deploy) -> None:
    with PostgresServer() as server:
        sink = deploy({"catalog.properties": {"uri": server.uri}})
        sink.start(2)
        with sink.load():
            sink.wait_until(lambda: sink.shares() == [1, 1], "partitions with both")
            sink.wait_for_commits(2)
            epoch = sink.record().transaction.epoch
            with StuckCatalog(sink) as catalog:
                catalog.await_commit()
                server.kill()
            server.start()
            sink.wait_for_commits(2)
            for _ in range(2):
                server.kill()
                server.start()
                sink.wait_for_commits(2)
        sink.wait_until_lag_zero()
        sink.stop()
        # It was never the coordinator's fault: the same files are committed again, or had landed.
        assert sink.judge().epochs[-1] == epoch
