"""Sends reports to whoever receives them: a server of HTTP, a topic, or a file.

Every call is bounded. An error names the host and what happened, and neither a token nor the URL's
path: that of a web hook is a secret.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from headgate.config.report_settings import LineageSettings, SignalSettings
from headgate.control_protocol.errors import ReceiverAway
from headgate.kafka.record_sender import OutgoingRecord, RecordSender

CONNECT_S, READ_S = 3.0, 5.0
_OK = range(200, 300)


class Receiver(Protocol):
    """Takes reports. Used from one thread."""

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        """Send one report, confirmed. Raises ``ReceiverAway``, ``Unreachable`` or ``OSError``: it
        may be there."""

    def close(self) -> None: ...


def open_receiver(
    section: str,
    given: LineageSettings | SignalSettings,
    kafka: Mapping[str, str],
    is_ending: Callable[[], bool],
) -> Receiver:
    """Return the receiver that a section of the sink file names. Raises as ``RecordSender``."""
    if given.url:
        return HttpReceiver(f"{section}.url", given.url, given.token.text)
    if given.topic:
        return TopicReceiver(RecordSender(kafka, given.topic, is_ending, what=f"{section}.topic"))
    assert isinstance(given, LineageSettings), "the only one with a file"
    return FileReceiver(Path(given.file))


class HttpReceiver:
    """Posts each report as JSON. An answer counts by its status alone; redirects are refused."""

    def __init__(self, setting: str, url: str, token: str) -> None:
        self._url = url
        found = urlsplit(url)
        self._name = f"{setting} ({found.hostname}{f':{found.port}' if found.port else ''})"
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = urllib3.PoolManager(
            num_pools=1, retries=False, timeout=urllib3.Timeout(connect=CONNECT_S, read=READ_S)
        )

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        trouble = ""
        try:
            answer = self._pool.request(
                "POST",
                self._url,
                body=json.dumps(body).encode(),
                headers={**self._headers, "Idempotency-Key": key},
                redirect=False,
                preload_content=False,  # its length is the server's choice, and nobody reads it
            )
            if answer.status not in _OK:
                trouble = f"answered {answer.status}"
            answer.close()
        except (HTTPError, OSError) as error:
            trouble = type(error).__name__
        if trouble:
            # Outside of the handler: the client's own text shows the whole URL.
            raise ReceiverAway(f"{self._name}: {trouble}", "look at the receiver's log")

    def close(self) -> None:
        self._pool.clear()


class TopicReceiver:
    """Appends each report as a record."""

    def __init__(self, sender: RecordSender) -> None:
        self._sender = sender

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        self._sender.require_topic()
        self._sender.send([OutgoingRecord(key.encode(), json.dumps(body).encode())])

    def close(self) -> None:
        self._sender.close()


class FileReceiver:
    """Adds each report as a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, key: str, body: Mapping[str, Any]) -> None:  # noqa: ARG002 - the protocol's
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(body)}\n")

    def close(self) -> None:
        """Do nothing: no file is kept open."""
