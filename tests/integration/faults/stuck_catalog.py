"""Provides a catalog with somebody in the way: a commit hangs in the middle."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Self

import psycopg2
from integration.deployment import Deployment
from integration.iceberg.rest_server import LyingProxy
from support.postgres_server import PostgresServer


class StuckCatalog:
    """While entered, a SQL catalog can be read, and no commit gets further than to its last step.

    Nothing of the product takes part in this: it is what another process's long transaction does.
    """

    def __init__(self, sink: Deployment) -> None:
        self._sink = sink
        self._lock = _locked(sink.settings.catalog.properties["uri"])

    def __enter__(self) -> Self:
        self._lock.__enter__()
        self._before = self._sink.metadata_files()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def await_commit(self) -> None:
        """A commit has written its metadata file, and waits for the lock to have it named."""
        self._sink.wait_until(
            lambda: bool(self._sink.metadata_files() - self._before), "stuck commit"
        )


def kill_in_commit(sink: Deployment) -> None:
    """``kill -9`` the coordinator once its manifests are written and the catalog is called.

    Whether the commit will land, nobody knows. The sink's catalog is a SQL one.
    """
    leader = sink.leader()
    with StuckCatalog(sink) as catalog:
        catalog.await_commit()
        sink.kill(leader)


@contextmanager
def _locked(uri: str) -> Iterator[None]:
    scheme, _, address = uri.partition("://")
    if scheme == "sqlite":
        path = address[1:].partition("?")[0]
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        return
    with closing(psycopg2.connect(f"postgresql://{address}")) as connection:
        connection.cursor().execute("LOCK TABLE iceberg_tables IN SHARE MODE")
        yield  # the server may be killed meanwhile; closing needs none


class StuckProxy:
    """The same for a REST catalog: the proxy keeps the next commit, and sends it on at the end."""

    def __init__(self, sink: Deployment, proxy: LyingProxy) -> None:
        self._sink = sink
        self._proxy = proxy

    def __enter__(self) -> Self:
        self._proxy.keep_next()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._proxy.let_go()

    def await_commit(self) -> None:
        self._sink.wait_until(self._proxy.kept.is_set, "kept commit")


class StuckRow:
    """The same for the sink's row in a PostgreSQL table: somebody else has it."""

    def __init__(self, sink: Deployment, server: PostgresServer) -> None:
        self._sink = sink
        self._server = server

    def __enter__(self) -> Self:
        self._ours = self._server.connect()
        self._ours.cursor().execute("SELECT FROM headgate.sinks FOR UPDATE")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ours.close()  # the server may have been killed meanwhile

    def await_commit(self) -> None:
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        self._sink.wait_until(lambda: self._server.ask(waits) != [(0,)], "commit that waits")
