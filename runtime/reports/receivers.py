"""Sends reports to whoever receives them: a server of HTTP, a topic, or a file.

Every call is bounded. An error names the host and what happened, and neither a token nor the URL's
path: that of a web hook is a secret.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from headgate.config.report_settings import LineageSettings, SignalSettings
from headgate.control_protocol.errors import HeadgateError, ReceiverAway
from headgate.kafka.record_sender import OutgoingRecord, RecordSender

ANSWER_S = 5.0
DEADLINE_S = 15.0
"""Of a request as a whole."""

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


def describe_trouble(error: Exception) -> str:
    """Return why a report was not sent, as the log says it: what is no plain sentence by its
    type."""
    return str(error) if isinstance(error, (HeadgateError, OSError)) else repr(error)


class HttpReceiver:
    """Posts each report as JSON. An answer counts by its status alone; redirects are refused."""

    def __init__(self, setting: str, url: str, token: str) -> None:
        self._url = urlsplit(url)
        host, port = self._url.hostname, self._url.port
        self._name = f"{setting} ({host}{f':{port}' if port else ''})"
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        trouble = ""
        connection, is_late = self._new_connection(), threading.Event()
        # A time-out counts from byte to byte: one that answers a byte now and then would hold the
        # thread for ever.
        cut = threading.Timer(DEADLINE_S, _cut_off_connection, [connection, is_late])
        cut.daemon = True
        cut.start()
        try:
            status = self._post(connection, key, json.dumps(body).encode())
            if status not in _OK:
                trouble = f"answered {status}"
        except (HTTPException, OSError, ValueError) as error:
            trouble = type(error).__name__
        finally:
            cut.cancel()
            connection.close()
        if is_late.is_set():  # what was cut off reads like the end of an answer
            trouble = f"no whole answer in {DEADLINE_S:g} s"
        if trouble:
            # Outside of the handler: what a client says may show the URL.
            raise ReceiverAway(f"{self._name}: {trouble}", "look at the receiver's log")

    def _new_connection(self) -> HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            return HTTPSConnection(
                host, port, timeout=ANSWER_S, context=ssl.create_default_context()
            )
        return HTTPConnection(host, port, timeout=ANSWER_S)

    def _post(self, connection: HTTPConnection, key: str, body: bytes) -> int:
        """Return the status; what else an answer holds is the server's choice, and not read."""
        target = urlunsplit(("", "", self._url.path or "/", self._url.query, ""))
        connection.request("POST", target, body, {**self._headers, "Idempotency-Key": key})
        return connection.getresponse().status

    def close(self) -> None:
        """Do nothing: no connection is kept open."""


def _cut_off_connection(connection: HTTPConnection, is_late: threading.Event) -> None:
    is_late.set()  # first: the other thread goes on as soon as its socket ends
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


class TopicReceiver:
    """Appends each report as a record."""

    def __init__(self, sender: RecordSender) -> None:
        self._sender = sender

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        self._sender.require_topic_id()
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
