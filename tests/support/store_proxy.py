"""A proxy in front of an object store or a catalog that answers as it is told."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Self

TRICKLE_S = 0.02
HOP_BY_HOP = {"transfer-encoding", "connection", "content-length", "keep-alive", "expect"}


@dataclass(frozen=True)
class Request:
    """What a client asks; its headers by their names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """An answer of the proxy's own; without a status there is none, until ``StoreProxy.let_go``."""

    status: int
    body: bytes = b""


HANGS = Answer(0)
RESETS = Answer(-1)
"""The connection is reset instead of an answer."""
CUTS = Answer(-2)
"""Half of the body comes, then the connection ends. Only for what was passed on."""
STOPS = Answer(-4)
"""Half of the body comes, and no more until ``StoreProxy.let_go``. As above."""
TRICKLES = Answer(-3)
"""Half of the body comes at once, the rest a byte now and then. Only for what was passed on."""


def s3_error(status: int, code: str) -> Answer:
    """As S3 says it."""
    text = f"<Error><Code>{code}</Code><Message>said by a test</Message></Error>"
    return Answer(status, b'<?xml version="1.0" encoding="UTF-8"?>' + text.encode())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StoreProxy

    def _any(self) -> None:
        asked = self._body()
        request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
        self.server.seen.append(request)
        own = self.server.first(request) or self.server.judge(request)
        if own is not None:
            self._answer(own)
            return
        with suppress(OSError, HTTPException):
            self._pass_on(request, asked)

    def _answer(self, own: Answer) -> None:
        if own.status > 0:
            self._say(own.status, {"Content-Type": "application/xml"}, own.body)
            return
        if own is HANGS:
            self.server.released.wait()
        else:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _any  # noqa: N815 - http.server's names

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        whole = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def _pass_on(self, request: Request, asked: bytes) -> None:
        behind = HTTPConnection("127.0.0.1", self.server.port_behind, timeout=60)
        dropped = HOP_BY_HOP | self.server.dropped
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        headers["Content-Length"] = str(len(asked))
        headers["Accept-Encoding"] = "identity"
        behind.request(self.command, self.path, asked, headers)
        response = behind.getresponse()
        body = self.server.after(request, response.read())
        kept = {k: v for k, v in response.headers.items() if k.lower() not in HOP_BY_HOP}
        length = response.headers.get("Content-Length") if self.command == "HEAD" else None
        behind.close()
        own = self.server.spoil(request)
        if own is None:
            self._say(response.status, kept, body, length)
        elif own in (CUTS, STOPS, TRICKLES):
            self._say(response.status, kept, body[: len(body) // 2], str(len(body)))
            self.wfile.flush()
            for byte in body[len(body) // 2 :] if own is not CUTS else ():
                self.server.released.wait(TRICKLE_S if own is TRICKLES else None)
                self.wfile.write(bytes([byte]))
            self.close_connection = True
        else:
            self._answer(own)

    def _say(
        self, status: int, headers: Mapping[str, str], body: bytes, length: str | None = None
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", length or str(len(body)))
        with suppress(OSError):  # its client may have given up
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _so_often(
    methods: str, answer: Answer, times: int, path: str
) -> Callable[[Request], Answer | None]:
    left, counting = [times], Lock()

    def judge(request: Request) -> Answer | None:
        hit = re.fullmatch(methods, request.method) and re.search(path, request.path)
        with counting:
            if not hit or not left[0]:
                return None
            left[0] -= 1
            return answer

    return judge


class StoreProxy(ThreadingHTTPServer):
    """``judge`` decides for each request: an answer, or ``None`` to pass it on.

    ``first`` is asked before it, and stays whatever else changes.
    ``spoil`` decides what its client hears when a request was passed on, and did what it asks.
    """

    daemon_threads = True
    request_queue_size = 64
    handler = Handler

    def __init__(self, port_behind: int) -> None:
        super().__init__(("127.0.0.1", 0), self.handler)
        self.port_behind = port_behind
        self.first: Callable[[Request], Answer | None] = lambda _: None
        self.judge: Callable[[Request], Answer | None] = lambda _: None
        self.spoil: Callable[[Request], Answer | None] = lambda _: None
        self.after: Callable[[Request, bytes], bytes] = lambda _, body: body
        self.seen: list[Request] = []
        self.dropped: set[str] = set()
        """Headers of requests, in lower case, that do not reach the store."""
        self.released = Event()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def refuse(self, methods: str, answer: Answer, times: int = 10**9, path: str = "") -> None:
        """Answer requests of these methods (a regular expression) so, this often."""
        self.judge = _so_often(methods, answer, times, path)

    def spoils(self, methods: str, answer: Answer, times: int = 10**9, path: str = "") -> None:
        """The same, for requests that the store behind has done."""
        self.spoil = _so_often(methods, answer, times, path)

    def pass_on(self) -> None:
        """Answer nothing any more by itself, and forget what was seen."""
        self.judge = self.spoil = lambda _: None
        self.seen.clear()

    def let_go(self) -> None:
        self.released.set()

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()
