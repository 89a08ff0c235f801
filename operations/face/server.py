"""Listens for HTTP, in threads beside whatever else the process does.

This is the standard library's server: a scrape every ten seconds and an occasional person need no
more, and a participant should not carry a second event loop. Everything that a stranger sends is
bounded: the number of connections served at once, their duration, and the size of a request.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.redacted_log import redacted_logger
from headgate.control_protocol.whose_thread import for_the_same_sink
from headgate.operations.face.answers import CAREFUL, Answer, refusal
from headgate.operations.face.routes import Face, Request, answer
from headgate.sink.face_settings import HttpSettings, address, check_listening

_log = redacted_logger("headgate.http")

BODY_BYTES_MAX = 1_000_000
_IDLE_S = 10.0
_AT_ONCE = 16
_ENDS_WITHIN_S = 0.05


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "headgate"
    sys_version = ""
    timeout = _IDLE_S
    server: _Server

    def _serve(self) -> None:
        body, refused = self._body()
        if refused is None:
            headers = {name.title(): value for name, value in self.headers.items()}
            refused = self._answered(
                Request(self.command, self.path, headers, body, self.client_address[0])
            )
        self._send(refused)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _answered(self, request: Request) -> Answer:
        looked = Request("GET", request.target, request.headers)
        try:
            return answer(self.server.face, looked if request.method == "HEAD" else request)
        except Exception:  # noqa: BLE001 - a page that fails is no reason to end the server
            _log.exception("a request to %s failed", request.target)
            return refusal(500, "that went wrong here; the log of this process says how")

    def _body(self) -> tuple[bytes, Answer | None]:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            self.close_connection = True
            return b"", refusal(411, "the length of the body must be given")
        if int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            return b"", refusal(413, f"a body may have {BODY_BYTES_MAX} bytes")
        return self.rfile.read(int(length)), None

    def _send(self, told: Answer) -> None:
        self.send_response(told.status)
        headers = {**CAREFUL, **told.headers, "Content-Type": told.kind}
        for name, value in {**headers, "Content-Length": str(len(told.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(told.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send what http.server itself refuses in our form, without echoing the request."""
        del message, explain
        self.close_connection = True
        if not hasattr(self, "command") or self.command is None:
            self.command = ""
        self._send(refusal(int(code), "that is not a request that this server takes"))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        _log.debug("%s %s", self.address_string(), format % args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, where: tuple[str, int], face: Face, tls: ssl.SSLContext | None) -> None:
        self.face = face
        self._tls = tls
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._serve_one = for_the_same_sink(super().process_request_thread)
        self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        super().__init__(where, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)  # newcomers are refused instead of queued forever
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(_IDLE_S)  # the handshake is done here: a slow one blocks nobody else
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            self._serve_one(request, client_address)
        except OSError as error:
            _log.debug("%s: %s", client_address, error)
            self.shutdown_request(request)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a connection of %s ended", client_address, exc_info=True)


@contextmanager
def serving(listen: str, http: HttpSettings, face: Face) -> Iterator[str]:
    """Serve until the end of the body; yield the URL. Raises ``ConfigurationError``."""
    check_listening(listen, http)
    host, port = address(listen)
    tls = tls_of(http)
    try:
        server = _Server((host, port), face, tls)
    except OSError as error:
        raise ConfigurationError(
            f"nothing can listen on {listen}: {error.strerror or error}",
            "is another process there? choose another port",
        ) from error
    thread = threading.Thread(
        target=server.serve_forever, args=[_ENDS_WITHIN_S], name="headgate-http", daemon=True
    )
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"{'https' if tls else 'http'}://{shown}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_IDLE_S)


def tls_of(http: HttpSettings) -> ssl.SSLContext | None:
    """Return how the server speaks TLS, if it does. Raises ``ConfigurationError``."""
    if not http.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(http.certificate, http.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"http.certificate {http.certificate} with http.key {http.key} cannot be used: {error}",
            "name a PEM file with the chain, and one with its key, without a password",
        ) from error
    return context
