"""PostgreSQL tables under chaos: the server holds rows, offsets and lock, and fails with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest
from integration.deployment import Deployment
from integration.faults.catalogs import OUTAGE_S, PAUSED_IN_COMMIT, Fault
from integration.faults.stuck_catalog import StuckRow
from integration.readers import read_postgres
from integration.sink_file import COLUMNS, COORDINATES
from support import postgres_example
from support.postgres_server import PostgresServer

PLACES = ("topic", "partition", "offset")
PAST_LOCKS_S = 12.0
"""Longer than a commit waits for a lock, and than the server bears with one that stalls."""
PAST_COMMITS_S = 35.0
"""Longer than anybody waits for the answer to a COMMIT."""
STOPPED_IN_COMMIT = "server stopped in a commit, past its time-out"
_TERMINATED = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headgate'
"""
_WAITS_FOR_REPLICA = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class PostgresTables:
    """The sink's table, its quarantine and the sinks' rows are in one database."""

    # The server ends a paused committer's transaction when its time-out has passed, not before.
    hanging = frozenset({PAUSED_IN_COMMIT})
    properties: Mapping[str, str | None]

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._server = server
        uri = f"postgresql://headgate@{server.host}/postgres"
        self.properties = MappingProxyType({"type": None, "uri": uri, "warehouse": None})
        self.table: Mapping[str, object] = {"type": "postgres", "location": str(folder / "staging")}
        self.later: list[threading.Timer] = []

    def stuck(self, sink: Deployment) -> StuckRow:
        return StuckRow(sink, self._server)

    def faults(self, sink: Deployment) -> Mapping[str, Fault]:
        return {
            "server killed": self._kill,
            "server killed before COMMIT": lambda: self._kill_before_commit(sink),
            "server killed in COMMIT": lambda: self._kill_in_commit(sink),
            "server stopped": lambda: self._stop(OUTAGE_S),
            STOPPED_IN_COMMIT: lambda: self._stop_in_commit(sink),
            "connections terminated": self._terminate,
            "connections terminated in a commit": lambda: self._terminate_in_commit(sink),
            "sink's row locked": lambda: self._lock_row(sink, OUTAGE_S),
            "sink's row locked past its time-out": lambda: self._lock_row(sink, PAST_LOCKS_S),
            "table locked past its time-out": lambda: self._lock_table(PAST_LOCKS_S),
            "tables rewritten": self._rewrite,
        }

    def append(self, sink: Deployment) -> bool:
        """Somebody inserts a row, and removes it: what stays, an audit would call a finding."""
        self._do("INSERT INTO db.rows (id) VALUES (-1)")
        self._do("DELETE FROM db.rows WHERE id = -1")
        return False

    def rows(self, sink: Deployment) -> pa.Table:
        return read_postgres(self._server, (*COLUMNS, *COORDINATES))

    def quarantined(self, sink: Deployment) -> list[pa.Table]:
        if not sink.settings.quarantine.keeps_rejected_records:
            return []
        rows = read_postgres(self._server, PLACES, "db.rows_quarantine")
        return [rows.rename_columns(list(COORDINATES))]

    def _do(self, *statements: str) -> None:
        with closing(self._server.connect()) as connection:
            connection.autocommit = True
            for statement in statements:
                connection.cursor().execute(statement)

    # ------------------------------------------------------------------------- the server is gone

    def _kill(self) -> float:
        self._server.kill()
        self._server.start()
        return time.monotonic()

    def _kill_before_commit(self, sink: Deployment) -> float:
        """The rows are copied, and the commit waits for the sink's row."""
        with self.stuck(sink) as row:
            row.await_commit()
            self._server.kill()
        self._server.start()
        return time.monotonic()

    def _kill_in_commit(self, sink: Deployment) -> float:
        """The server has done the COMMIT, and cannot say so: no replica confirms it."""
        self._server.set("synchronous_standby_names", "nobody")
        sink.wait_until(lambda: self._server.ask(_WAITS_FOR_REPLICA) != [(0,)], "COMMIT that waits")
        self._server.kill()
        self._server.start()
        self._server.set("synchronous_standby_names", "")
        return time.monotonic()

    def _stop(self, seconds: float) -> float:
        self._server.pause()
        time.sleep(seconds)
        self._server.resume()
        return time.monotonic()

    def _stop_in_commit(self, sink: Deployment) -> float:
        """It has the COMMIT, its client gives up, and then it continues."""
        self._server.set("synchronous_standby_names", "nobody")
        sink.wait_until(lambda: self._server.ask(_WAITS_FOR_REPLICA) != [(0,)], "COMMIT that waits")
        self._stop(PAST_COMMITS_S)
        self._server.set("synchronous_standby_names", "")
        return time.monotonic()

    # ------------------------------------------------------------------------------ others' deeds

    def _terminate(self) -> float:
        until = time.monotonic() + OUTAGE_S
        while time.monotonic() < until:
            self._do(_TERMINATED)
            time.sleep(0.05)
        return time.monotonic()

    def _terminate_in_commit(self, sink: Deployment) -> float:
        with self.stuck(sink) as row:
            row.await_commit()
            self._do(_TERMINATED)
        return time.monotonic()

    def _lock_row(self, sink: Deployment, seconds: float) -> float:
        with self.stuck(sink):
            time.sleep(seconds)
        return time.monotonic()

    def _lock_table(self, seconds: float) -> float:
        """Nobody can even read it; what the locker has written, it takes back."""
        with closing(self._server.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("LOCK TABLE db.rows IN ACCESS EXCLUSIVE MODE")
            cursor.execute("INSERT INTO db.rows (id) VALUES (-2)")
            time.sleep(seconds)
        return time.monotonic()

    def _rewrite(self) -> float:
        self._do("VACUUM FULL db.rows", "VACUUM FULL headgate.sinks", "VACUUM headgate.commits")
        return time.monotonic()


@contextmanager
def postgres_tables(folder: Path) -> Iterator[PostgresTables]:
    """On a server of their own, with the example's package for this process and its children."""
    with pytest.MonkeyPatch.context() as patch, PostgresServer() as server:
        postgres_example.install(folder, patch)
        yield PostgresTables(server, folder)
