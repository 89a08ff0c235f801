"""A promoted replica has a decision but lacks its deliveries: they are made again, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from integration.conftest import Deploy
from integration.kinds.test_postgres import examined
from integration.kinds.test_postgres_many_tables import (
    EVERY,
    places,
    settings_at,
    source_coordinates,
    value,
)
from integration.kinds.test_postgres_secondaries import keeping, locked
from support.postgres_server import PostgresServer

from headgate.operations.audit.audit import audit
from headgate.testing.sink_in_process import SinkInProcess

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("installed_example"),
    pytest.mark.wide,
]

PATIENCE_S = 60


@dataclass
class Pair:
    """A server, and the replica that follows it until it is cut off, some time before."""

    primary: PostgresServer
    replica: PostgresServer

    def cut(self) -> None:
        """The replica has all that there is now, and nothing that comes later."""
        ((newest,),) = self.primary.ask("SELECT pg_current_wal_flush_lsn()::text")
        self._until(self.replica, f"pg_last_wal_replay_lsn() >= '{newest}'")
        self.replica.set("primary_conninfo", "")
        self._until(self.primary, "(SELECT count(*) = 0 FROM pg_stat_replication)")

    def promote(self) -> None:
        self.primary.kill()
        self.replica.promote()

    def _until(self, server: PostgresServer, true: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while server.ask(f"SELECT {true}") != [(True,)]:
            assert time.monotonic() < until_s, true
            time.sleep(0.05)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as opening:
        primary = opening.enter_context(PostgresServer())
        yield Pair(primary, opening.enter_context(PostgresServer(primary)))


@pytest.fixture
def shop(pair: Pair, tmp_path: Path) -> Iterator[SinkInProcess]:
    sink = SinkInProcess(settings_at([pair.primary, pair.replica], tmp_path / "staging"), value)
    yield sink
    sink.end_lives()


@pytest.mark.parametrize(
    ("lost", "heir"),
    [
        (1, False),
        pytest.param(1, True, marks=pytest.mark.soak),
        pytest.param(2, False, marks=pytest.mark.soak),
        pytest.param(4, True, marks=pytest.mark.soak),
    ],
)
def test_deliveries_that_a_promoted_replica_lacks_are_made_again(
    shop: SinkInProcess, pair: Pair, lost: int, *, heir: bool
) -> None:
    """The coordinator sees it happen, or its heir has cleared away meanwhile."""
    shop.begin_life()
    shop.produce(30)
    shop.run_until_settled()
    with locked(pair.primary, "db.zone_a"):
        shop.produce(30)
        shop.run_until(
            lambda: shop.tables_with_pending_commits() == {"db.zone_a"} and shop.lag() == 0
        )
        pair.cut()
    for number in range(lost):
        shop.produce(30 if number else 0)
        shop.run_until_settled()
        if heir:
            shop.begin_life()
            shop.run_until_settled()
    assert places(pair.primary, *EVERY) == source_coordinates(shop)
    pair.promote()
    missing = len(source_coordinates(shop)) - len(places(pair.replica, *EVERY))
    assert missing >= 8, "deliveries are lost"
    shop.produce(30)
    shop.run_until_settled()
    assert places(pair.replica, *EVERY) == source_coordinates(shop)
    assert not audit(shop.settings, with_source=False).findings


@pytest.mark.soak
@pytest.mark.parametrize("lost", [1, 2])
def test_a_sink_with_a_quarantine_goes_on_with_a_replica_that_lacks_its_deliveries(
    deploy: Deploy, pair: Pair, tmp_path: Path, lost: int
) -> None:
    sink = keeping(deploy, tmp_path, pair.primary, pair.replica)
    sink.produce(100)
    sink.start(2)
    sink.wait_until_lag_zero()
    with locked(pair.primary, "db.rows_quarantine"):
        sink.produce(100)
        sink.wait_until(lambda: bool(sink.pending()), "a decision that is not delivered")
        pair.cut()
    sink.wait_until_lag_zero()
    for _ in range(1, lost):
        sink.produce(100)
        sink.wait_until_lag_zero()
    pair.promote()
    sink.produce(100)
    sink.wait_until_lag_zero()
    sink.stop()
    report = sink.judge()
    assert report.sum_over_partitions("in_quarantine") == 20 * (lost + 2)
    examined(sink)
