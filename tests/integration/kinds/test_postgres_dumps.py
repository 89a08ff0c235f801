"""A dump of the database is restored into another server, and the sink continues there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.conftest import Deploy
from integration.kinds.test_postgres import examined, postgres, rows
from integration.kinds.test_postgres_many_tables import EVERY, places, settings_at, value
from integration.kinds.test_postgres_secondaries import keeping
from support.postgres_server import PostgresServer

from headgate.control_protocol.errors import TableRecreated
from headgate.testing.sink_in_process import SinkInProcess

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("installed_example"),
    pytest.mark.wide,
]


@pytest.fixture
def elsewhere() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_sink_continues_in_a_restored_dump(
    deploy: Deploy, server: PostgresServer, elsewhere: PostgresServer, tmp_path: Path, *, runs: bool
) -> None:
    """It reads again what the dump lacks. A process that saw the old table stops, once."""
    sink = deploy(postgres(tmp_path, server, elsewhere))
    sink.rows = lambda: rows(elsewhere)  # type: ignore[method-assign]
    sink.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    elsewhere.restore(server)
    sink.produce(100)
    sink.wait_until_lag_zero()
    if not runs:
        sink.stop()
    server.kill()
    if runs:
        sink.produce(100)
        sink.stopped_by_itself("HG-202")
    sink.start(2)
    sink.produce(100)
    sink.wait_until_lag_zero()
    sink.stop()
    assert sink.judge().rows == sink.produced
    examined(sink)


def test_a_sink_with_a_quarantine_stops_at_a_restored_dump(
    deploy: Deploy, server: PostgresServer, elsewhere: PostgresServer, tmp_path: Path
) -> None:
    """The dump's quarantine is another one than that to which the table has pending rows."""
    sink = keeping(deploy, tmp_path, server, elsewhere)
    sink.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    elsewhere.restore(server)
    server.kill()
    sink.produce(100)
    sink.start()
    assert "quarantine" in sink.stopped_by_itself("HG-202")
    assert rows(elsewhere).num_rows == 80


def test_a_sink_with_many_tables_stops_at_a_restored_dump(
    server: PostgresServer, elsewhere: PostgresServer, tmp_path: Path
) -> None:
    sink = SinkInProcess(settings_at([server, elsewhere], tmp_path / "staging"), value)
    sink.begin_life()
    sink.produce(30)
    sink.run_until_settled()
    elsewhere.restore(server)
    server.kill()
    before = places(elsewhere, *EVERY)
    sink.begin_life()
    sink.produce(30)
    with pytest.raises(TableRecreated):
        sink.run_until_settled()
    sink.end_lives()
    assert places(elsewhere, *EVERY) == before
