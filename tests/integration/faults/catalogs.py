"""The catalogs that chaos runs on, and what can be done to each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from integration.deployment import Deployment
from integration.faults.stuck_catalog import StuckCatalog, StuckProxy
from integration.faults.vending import VendingCatalog
from integration.iceberg.rest_server import LyingProxy, rest_server
from pyiceberg.exceptions import CommitFailedException
from support.postgres_server import PostgresServer

if TYPE_CHECKING:
    from integration.faults.stores import StoreOfChaos

from headgate.kafka.control_log import KafkaLogTimes
from headgate.tables.iceberg.catalog import TIMEOUT_S

Fault = Callable[[], float]
"""Done to a loaded sink; the moment (monotonic s) from which its recovery counts: the stroke, or
the end of an outage during which nothing could go on."""

PAUSED_IN_COMMIT = "coordinator paused in its commit"
WITHOUT_LOG = frozenset({"control topic deleted", "broker killed", "broker restarted"})
OUTAGE_S = 4.0
DELAY_S = 60.0


class Stuck(Protocol):
    def await_commit(self) -> None: ...


class CatalogOfChaos(Protocol):
    """``hanging``: faults in which a call may hang until the catalog's own time-out ends it.

    ``later``: what a fault has left to happen when the sink has recovered. ``table``: what the sink
    file says of the table besides.
    """

    properties: Mapping[str, str | None]
    table: Mapping[str, object]
    hanging: frozenset[str]
    later: list[threading.Timer]

    def stuck(self, sink: Deployment) -> AbstractContextManager[Stuck]: ...

    def faults(self, sink: Deployment) -> Mapping[str, Fault]: ...

    def append(self, sink: Deployment) -> bool:
        """Somebody else appends a row; whether it is there, and an audit is to know of it."""

    def rows(self, sink: Deployment) -> pa.Table:
        """By a reader that shares no code with the writers."""

    def quarantined(self, sink: Deployment) -> list[pa.Table]:
        """As ``Deployment.quarantined``."""


class Catalog:
    """Of Iceberg tables."""

    table: Mapping[str, object] = MappingProxyType({})

    def append(self, sink: Deployment) -> bool:
        with sink.table() as table, suppress(CommitFailedException):
            table.append(pa.table({"id": pa.array([-1], pa.int64())}))
            return True
        return False

    def rows(self, sink: Deployment) -> pa.Table:
        return sink.rows()

    def quarantined(self, sink: Deployment) -> list[pa.Table]:
        return sink.quarantined()


class Sqlite(Catalog):
    hanging: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.properties: Mapping[str, str | None] = {}
        self.later: list[threading.Timer] = []

    def stuck(self, sink: Deployment) -> StuckCatalog:
        return StuckCatalog(sink)

    def faults(self, sink: Deployment) -> Mapping[str, Fault]:
        return {"catalog locked": lambda: _locked(sink)}


class Postgres(Catalog):
    # The server lets a paused committer's row go when the time-out has passed, not before.
    hanging = frozenset({PAUSED_IN_COMMIT})

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.later: list[threading.Timer] = []
        self.properties: Mapping[str, str | None] = {"uri": server.uri}

    def stuck(self, sink: Deployment) -> StuckCatalog:
        return StuckCatalog(sink)

    def faults(self, sink: Deployment) -> Mapping[str, Fault]:
        return {
            "catalog locked": lambda: _locked(sink),
            "PostgreSQL killed": self._kill,
            "PostgreSQL killed in mid-commit": lambda: self._kill_in_commit(sink),
        }

    def _kill(self) -> float:
        self._server.kill()
        self._server.start()
        return time.monotonic()

    def _kill_in_commit(self, sink: Deployment) -> float:
        with self.stuck(sink) as catalog:
            catalog.await_commit()
            self._server.kill()
        self._server.start()
        return time.monotonic()


class Rest(Catalog):
    hanging = frozenset({"commit delayed by a minute", "no answer to a landed commit"})

    def __init__(self, proxy: LyingProxy) -> None:
        self._proxy = proxy
        self.later: list[threading.Timer] = []
        self.properties: Mapping[str, str | None] = {
            "type": "rest",
            "uri": proxy.uri,
            "warehouse": None,
        }

    def stuck(self, sink: Deployment) -> StuckProxy:
        return StuckProxy(sink, self._proxy)

    def faults(self, sink: Deployment) -> Mapping[str, Fault]:
        lies = {
            "503 for a landed commit": "503-after",
            "connection lost before a commit": "drop-before",
            "connection lost after a commit": "drop-after",
            "commit sent twice": "twice",
            "no answer to a landed commit": "hang-after",
        }
        return {
            **{kind: lambda lie=lie: self._lie(sink, lie) for kind, lie in lies.items()},
            "commit delayed by a minute": lambda: self._delay(sink),
            "catalog refuses": self._refuse,
        }

    def _lie(self, sink: Deployment, lie: str) -> float:
        self._proxy.lie = lie
        sink.wait_until(lambda: self._proxy.lie is None, "commit to lie about")
        return time.monotonic()

    def _delay(self, sink: Deployment) -> float:
        """Its client gives up and says it again long before it is sent on."""
        self._proxy.keep_next()
        sink.wait_until(self._proxy.kept.is_set, "commit to keep")
        self.later.append(threading.Timer(DELAY_S, self._proxy.let_go))
        self.later[-1].start()
        return time.monotonic()

    def _refuse(self) -> float:
        self._proxy.refusing = True
        time.sleep(OUTAGE_S)
        self._proxy.refusing = False
        return time.monotonic()


def _locked(sink: Deployment) -> float:
    with StuckCatalog(sink):
        time.sleep(OUTAGE_S)
    return time.monotonic()


@contextmanager
def catalog_of(kind: str, home: Path, store: StoreOfChaos | None) -> Iterator[CatalogOfChaos]:
    if kind == "sqlite":
        yield Sqlite()
        return
    if kind == "postgres":
        with PostgresServer() as server:
            yield Postgres(server)
        return
    (home / "rest").mkdir()
    if store is not None and store.keys is not None:
        with (
            VendingCatalog(home / "rest", store.store, store.keys) as vending,
            LyingProxy(vending.server_port) as proxy,
        ):
            yield Rest(proxy)
    else:
        with rest_server(home / "rest") as port, LyingProxy(port) as proxy:
            yield Rest(proxy)


def bound_s(sink: Deployment, catalog: CatalogOfChaos, kind: str) -> float:
    """How long recovery from a fault may take: two intervals, and every time-out in between.

    Two commit intervals: the one that the fault struck, and the one that brings what came after.
    Kafka's session time-out: until a member is missed. The commit time-out: an END may wait for
    who is gone. The release time-out: handing partitions over may wait for a batch. The election
    time-out: who was superseded lets the other be silent first, for that and an interval and a
    commit time-out more (rule EPOCH-4). The longest back-off: a repeated call may just have failed.
    Then the catalog's own time-out, where the fault makes a call hang, and the one of an append,
    where it takes the control topic away.
    """
    settings = sink.settings
    coordinator = settings.coordinator
    waits_ms = (
        2 * coordinator.commit_interval_ms
        + int(settings.kafka["session.timeout.ms"])
        + coordinator.commit_timeout_ms
        + settings.participant.release_timeout_ms
        + coordinator.election_timeout_ms
        + coordinator.retry_backoff_max_ms
    )
    if kind in WITHOUT_LOG:
        waits_ms += KafkaLogTimes().delivery_ms
    return waits_ms / 1000 + (TIMEOUT_S if kind in catalog.hanging else 0)
