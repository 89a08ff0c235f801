"""A server with sinks whose state is made up: nothing behind it is asked."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.load import parse
from headgate.config.setting_types import Secret
from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.control_protocol.errors import HeadgateError
from headgate.operations.http.routes import Site
from headgate.operations.http.server import serving_http
from headgate.operations.http.sink_status_cache import ServedSink
from headgate.operations.status.report import (
    CommitSummary,
    ParticipantStatus,
    PartitionStatus,
    StatusReport,
)
from headgate.runtime.health import LastError

VIEWER, OPERATOR = "v" * 20, "o" * 20
GUARDED = HttpSettings(viewer_token=Secret(VIEWER), operator_token=Secret(OPERATOR))
NOW = 1_790_000_000_000


def report(name: str = "trips", **other: Any) -> StatusReport:
    """A sink at work: fifty commits, two participants, six partitions."""
    commits = tuple(
        CommitSummary(
            f"{3 + n // 30}.{n % 30}",
            10**18 + n,
            NOW - (50 - n) * 60_000,
            0 if n % 30 == 0 else 900 + 37 * n % 400,
            claim=n % 30 == 0,
            valid_through_ms=NOW - (50 - n) * 60_000 - 1_500,
        )
        for n in reversed(range(50))
    )
    values: dict[str, Any] = {
        "sink": name,
        "condition": "running",
        "table": "city.trips",
        "uuid": "5f6c",
        "branch": "main",
        "snapshot_id": 10**18,
        "epoch": 4,
        "transaction": "4.19",
        "coordinator": "host-1#abc",
        "open_transaction": "4.20",
        "paused": False,
        "pending_rows": 0,
        "last_commit_ms": NOW - 60_000,
        "valid_through_ms": NOW - 61_500,
        "partitions": tuple(
            PartitionStatus("trips", p, 1000 * p, 0, 1000 * p + 7 * p, 7 * p) for p in range(6)
        ),
        "transactions": commits,
        "participants": tuple(
            ParticipantStatus(
                f"host-{n}", "abc", "writing", tuple(f"trips/{p}" for p in range(n, 6, 2)), 17, 900
            )
            for n in range(2)
        ),
        "participants_known": True,
        "last_error": None,
        "notes": (),
        "exit_code": 0,
        "lag_seconds": {"trips": 4.2},
    }
    return StatusReport(**{**values, **other})


class MadeUp(ServedSink):
    """A sink that says what it was told to say."""

    def __init__(
        self, said: StatusReport | HeadgateError, http_settings: HttpSettings = GUARDED
    ) -> None:
        super().__init__(replace(parse(MINIMAL), http=http_settings))
        self.said = said

    def _fetch_report_or_error(self) -> StatusReport | HeadgateError:
        return self.said


@dataclass(frozen=True)
class Got:
    status: int
    body: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Client:
    """Asks by Python's own HTTP client."""

    url: str
    trust: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, token: str = "", body: str = "", **headers: str) -> Got:
        host = self.url.rpartition("//")[2]
        connection = (
            http.client.HTTPSConnection(host, timeout=30, context=self.trust)
            if self.trust
            else http.client.HTTPConnection(host, timeout=30)
        )
        given = {**({"Authorization": f"Bearer {token}"} if token else {}), **headers}
        try:
            connection.request(method, path, body or None, given)
            answer = connection.getresponse()
            return Got(answer.status, answer.read().decode(), dict(answer.getheaders()))
        finally:
            connection.close()

    def get(self, path: str, token: str = "", **headers: str) -> Got:
        return self.ask("GET", path, token, **headers)


Serve = Callable[..., AbstractContextManager[Client]]


@pytest.fixture
def serve() -> Serve:
    @contextmanager
    def opened(
        *said: StatusReport | HeadgateError, http_settings: HttpSettings = GUARDED, **site: Any
    ) -> Iterator[Client]:
        named = {getattr(s, "sink", "trips"): MadeUp(s, http_settings) for s in said}
        shown = Site(named, http_settings, **site)
        with serving_http("127.0.0.1:0", http_settings, shown) as url:
            yield Client(url)

    return opened


ERROR = LastError("HG-403", "a batch could not be written: No space left on device", "host-1", NOW)
