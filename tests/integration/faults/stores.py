"""An object store that fails for a while: alone, and while a participant is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from integration.deployment import Deployment
from integration.faults.catalogs import OUTAGE_S, Fault
from integration.faults.vending import VendedKeys
from support.object_store import ObjectStore
from support.store_proxy import CUTS, HANGS, RESETS, Answer, Request, StoreProxy, s3_error

from headgate.tables.storage.s3_file_io import S3_PART_BYTES

LATE_S = 2.0
STORE_S = 30.0
"""Within this a request that met a failing store has ended; it is tried again after that."""

WITH_A_KILL = ", and a kill"

COMPLETE = ("POST", r"[?&]uploadId=")
WRITES = ("POST|PUT", "")
ALL = (".*", "")
ONCE_LOST = "answer to one CompleteMultipartUpload lost"


class StoreOfChaos:
    """S3 behind a proxy. Its keys are temporary ones, so that a refusal is not the sink's end.

    ``keys``: those that a catalog vends; the store refuses all others.
    """

    def __init__(
        self, store: ObjectStore, proxy: StoreProxy, keys: VendedKeys | None = None
    ) -> None:
        self.store = store
        self.keys = keys
        self.proxy = proxy
        own = {"s3.session-token": "for-a-while"}
        if keys is not None:
            own = {"s3.access-key-id": None, "s3.secret-access-key": None}
            proxy.first = keys.judge
        self.properties: Mapping[str, str | None] = {
            **store.s3(proxy.uri),
            **own,
            S3_PART_BYTES: "2048",  # a file of a second goes in parts
        }
        asks = (s3_error(503, "SlowDown"), ALL)
        expired = (s3_error(400, "ExpiredToken"), ALL)
        self._refusals: Mapping[str, tuple[Answer, tuple[str, str]]] = {
            "store asks to slow down": asks,
            "store resets connections": (RESETS, ALL),
            "store hangs": (HANGS, ALL),
            "credentials expired": expired,
        }
        self._spoilt: Mapping[str, tuple[Answer, tuple[str, str]]] = {
            "503 for landed writes": (s3_error(503, "SlowDown"), WRITES),
            "connections lost after landed writes": (RESETS, WRITES),
            "answers to CompleteMultipartUpload lost": (RESETS, COMPLETE),
            "store breaks bodies off": (CUTS, ("GET", "")),
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        return (*self._refusals, *self._spoilt, "store answers late")

    def extra_s(self, kind: str) -> float:
        known = (*self.kinds, ONCE_LOST)
        return STORE_S if kind.removesuffix(WITH_A_KILL) in known else 0.0

    def faults(self, sink: Deployment, kill: Callable[[], Fault]) -> Mapping[str, Fault]:
        """``kill`` chooses a victim while the store still answers; what it gives, kills."""

        def outage(kind: str) -> Fault:
            return lambda: self._outage(kind)

        def with_a_kill(kind: str) -> Fault:
            return lambda: self._outage(kind, kill())

        return {
            **{kind: outage(kind) for kind in self.kinds},
            **{f"{kind}{WITH_A_KILL}": with_a_kill(kind) for kind in self.kinds},
            ONCE_LOST: lambda: self._lose_once(sink),
        }

    def _outage(self, kind: str, kill: Fault | None = None) -> float:
        """The store fails for some seconds; in the middle of them somebody dies."""
        self._begin(kind)
        try:
            time.sleep(OUTAGE_S / 2)
            if kill is not None:
                kill()
            time.sleep(OUTAGE_S / 2)
        finally:
            self._end()
        return time.monotonic()

    def _begin(self, kind: str) -> None:
        self.proxy.released = threading.Event()
        if kind in self._refusals:
            answer, (methods, path) = self._refusals[kind]
            self.proxy.refuse(methods, answer, path=path)
        elif kind in self._spoilt:
            answer, (methods, path) = self._spoilt[kind]
            self.proxy.spoils(methods, answer, path=path)
        else:
            self.proxy.judge = self._late

    def _end(self) -> None:
        self.proxy.pass_on()
        self.proxy.let_go()

    def _late(self, _: Request) -> None:
        self.proxy.released.wait(LATE_S)

    def _lose_once(self, sink: Deployment) -> float:
        lost = threading.Event()

        def spoil(request: Request) -> Answer | None:
            if lost.is_set() or request.method != "POST" or "uploadId=" not in request.path:
                return None
            lost.set()
            return RESETS

        self.proxy.spoil = spoil
        sink.wait_until(lost.is_set, "upload in parts to lose the answer to")
        self.proxy.pass_on()
        return time.monotonic()


@contextmanager
def store_of(kind: str, keys: VendedKeys | None = None) -> Iterator[StoreOfChaos | None]:
    """The store of the chaos; ``None`` for files on this machine."""
    if kind == "local":
        yield None
        return
    with ObjectStore() as store, StoreProxy(store.port) as proxy:
        yield StoreOfChaos(store, proxy, keys)
