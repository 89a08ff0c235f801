"""Provides a proxy that delays and records requests, sequential or concurrent."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from urllib.parse import unquote, urlsplit

from support.store_proxy import Handler, Request, StoreProxy


@dataclass(frozen=True)
class Exchange:
    """One request with its answer. ``connection``: the how-manieth; ``expected``: the client asked
    to be told to go on before it sent the body, and waited for that as for an answer."""

    kind: str
    begun_s: float
    ended_s: float
    connection: int
    expected: bool


class _Handler(Handler):
    server: CountingProxy
    disable_nagle_algorithm = True  # headers and body are two writes
    connection_number = 0
    expected = False
    _begun_s = 0.0

    def setup(self) -> None:
        super().setup()
        self.connection_number = self.server.connection_count()

    def handle_expect_100(self) -> bool:
        self.expected = True
        time.sleep(self.server.delay_s)
        return super().handle_expect_100()

    def _any(self) -> None:
        self._begun_s = time.monotonic()
        time.sleep(self.server.delay_s)
        super()._any()

    def _say(
        self, status: int, headers: Mapping[str, str], body: bytes, length: str | None = None
    ) -> None:
        """Count first: who has the answer may look at once."""
        request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
        told = (kind_of(request), self._begun_s, time.monotonic(), self.connection_number)
        self.server.exchanges.append(Exchange(*told, self.expected))
        self.expected = False
        super()._say(status, headers, body, length)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _any  # noqa: N815 - http.server's names


class CountingProxy(StoreProxy):
    """``delay_s`` is added to each request, and to each wait for leave to send a body."""

    handler = _Handler

    def __init__(self, port_behind: int) -> None:
        super().__init__(port_behind)
        self.delay_s = 0.0
        self.exchanges: list[Exchange] = []
        self._connections = 0
        self._counting = Lock()

    def connection_count(self) -> int:
        with self._counting:
            self._connections += 1
            return self._connections

    def forget(self) -> None:
        self.seen.clear()
        self.exchanges.clear()


def kind_of(request: Request) -> str:
    """S3's operation and what it is about, or the service's own name of the operation."""
    if target := request.headers.get("x-amz-target"):
        return target.rpartition(".")[2]
    url = urlsplit(request.path)
    if "/v1/" in url.path:
        return f"{request.method} catalog"
    operation = request.method
    if "list-type" in url.query:
        return "LIST"
    if request.method == "POST":
        deletes = url.query.startswith("delete")
        starts = url.query.startswith("uploads")
        operation = "DELETE many" if deletes else "CreateMPU" if starts else "CompleteMPU"
    elif "partNumber" in url.query:
        operation = "UploadPart"
    return operation if operation == "DELETE many" else f"{operation} {_object(unquote(url.path))}"


def _object(path: str) -> str:
    for pattern, name in (
        (r"metadata\.json$", "metadata"),
        (r"/snap-[^/]*\.avro$", "list"),
        (r"\.avro$", "manifest"),
        (r"\.parquet$", "data"),
        (r"/$", "folder"),
    ):
        if re.search(pattern, path):
            return name
    return "other"


def kinds(exchanges: Iterable[Exchange]) -> Counter[str]:
    return Counter(exchange.kind for exchange in exchanges)


def sequential(exchanges: Iterable[Exchange]) -> int:
    """The longest chain of waits, each begun after the one before it had ended."""
    ended: list[tuple[float, int]] = []
    for exchange in sorted(exchanges, key=lambda e: e.begun_s):
        before = max((n for end_s, n in ended if end_s <= exchange.begun_s), default=0)
        ended.append((exchange.ended_s, before + 1 + exchange.expected))
    return max((n for _, n in ended), default=0)


def waits(exchanges: Iterable[Exchange]) -> int:
    return sum(exchange.expected for exchange in exchanges)
