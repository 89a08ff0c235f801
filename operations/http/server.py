"""Listens for HTTP, in one thread with an event loop, beside whatever else the process does.

uvicorn speaks HTTP; here stands who may wait, and for how long. A connection whose request is not
whole costs some kilobytes and no thread. It has ten seconds, TLS handshake included, however often
it sends a byte; when too many wait, the oldest goes. Probes and refusals are answered by the loop
itself, so nothing that takes long stands before them.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from itertools import islice
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from headgate.config.telemetry_and_http_settings import (
    HttpSettings,
    parse_listen_address,
    require_safe_listen_address,
)
from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.operations.http.certificates import load_tls_context_if_configured
from headgate.operations.http.gil_holding_sockets import KeptSelector, KeptSocket, accept_connection
from headgate.operations.http.responses import CAREFUL, Answer, json_error_answer
from headgate.operations.http.routes import Request, Role, Site, answer_request, is_probe, role_of

_log = redacted_logger("headgate.http")

BODY_BYTES_MAX = 1_000_000
WHOLE_WITHIN_S = 10.0
"""How long a connection may take until its request is whole, and until its answer is read."""
WAITING_MAX = 2_048
"""How many connections may wait at once, if they leave half of the descriptors to the sink."""
ANSWERED_MAX = 16
QUEUED_MAX = 4_096
"""The listen queue."""
_ACCEPTED_AT_ONCE = 256
_CLOSED_AT_ONCE = 16
_CLOSED_EACH_S = 0.01
_BEGUN_AT_ONCE = 2
_READ_BYTES = 4_096
_HEAD_BYTES_MAX = 65_536
_HANDSHAKE = 0x16
_HEAD_ENDS = re.compile(rb"\n\r?\n")
_TARGET_BYTES_MAX = 8_192
_ANSWERS_END_WITHIN_S = 1.0
_NO_ROOM_S = 0.05
_SWITCH_INTERVAL_S = 0.001
"""How long a thread that computes may keep the interpreter from this one: a TLS handshake gives it
up a dozen times, whatever its sockets do, and would wait five milliseconds each time."""


class _Waiting:
    """Holds the callers whose request is not whole, by their deadlines, the nearest first.

    ``to_serve``: those of them whose head is whole, and whom nobody serves yet.
    """

    def __init__(self, most: int, serve_soon: Callable[[], object]) -> None:
        self.to_serve: dict[_Caller, None] = {}
        self._serve_soon = serve_soon
        self._most = most
        self._until: dict[_Caller, float] = {}
        self._of_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add_or_renew_caller(self, caller: _Caller) -> None:
        self.remove_caller(caller)
        self._until[caller] = asyncio.get_running_loop().time() + WHOLE_WITHIN_S
        self._of_address[caller.address] += 1
        if len(self._until) > self._most:
            self.drop_oldest()
        self._schedule_drop_overdue()

    def remove_caller(self, caller: _Caller) -> None:
        self.to_serve.pop(caller, None)
        if self._until.pop(caller, None) is None:
            return
        self._of_address[caller.address] -= 1
        if not self._of_address[caller.address]:
            del self._of_address[caller.address]

    def on_whole_head(self, caller: _Caller) -> None:
        self.to_serve[caller] = None
        self._serve_soon()

    def pop_next_to_serve(self) -> _Caller:
        """Return the newest of those from the address that waits with the fewest."""
        caller = min(reversed(self.to_serve), key=lambda each: self._of_address[each.address])
        del self.to_serve[caller]
        return caller

    def drop_oldest(self) -> None:
        if (oldest := next(iter(self._until), None)) is not None:
            self.drop_caller(oldest)

    def drop_caller(self, caller: _Caller) -> None:
        self.remove_caller(caller)
        caller.drop()

    def drop_all(self) -> None:
        while self._until:
            self.drop_oldest()

    def _schedule_drop_overdue(self, earliest: float = 0.0) -> None:
        if self._timer is None and self._until:
            nearest = max(earliest, next(iter(self._until.values())))
            self._timer = asyncio.get_running_loop().call_at(nearest, self._drop_some_overdue)

    def _drop_some_overdue(self) -> None:
        """Close some of those whose time is over, and more a little later.

        Who is closed comes again at once: a thousand would come in one moment. And while some wait
        to be served, whoever comes is served before them, so for as long again nobody is closed.
        """
        self._timer = None
        now = asyncio.get_running_loop().time()
        over = now - WHOLE_WITHIN_S if self.to_serve else now
        for until in tuple(islice(self._until.values(), _CLOSED_AT_ONCE)):
            if until <= over:
                self.drop_oldest()
        self._schedule_drop_overdue(earliest=now + _CLOSED_EACH_S)


def is_head_complete_or_invalid(received: bytes) -> bool:
    """Return whether that is all of a head; what is none, or is too long, is refused as it is."""
    is_none = received[0] <= ord(" ") or len(received) > _HEAD_BYTES_MAX
    return (
        is_none or _HEAD_ENDS.search(received, max(0, len(received) - _READ_BYTES - 2)) is not None
    )


def is_tls_hello_complete_or_absent(received: bytes) -> bool:
    """Return whether that is all of TLS's first record, or is none."""
    return received[0] != _HANDSHAKE or len(received) >= 5 + int.from_bytes(
        received[3:5].ljust(2, b"\xff")
    )


class _Caller:
    """Who has connected. Until a head is whole, this is a socket and what was said on it.

    Nothing is made for HTTP or TLS before that: a thousand clients that come at once, and say half
    of what they want, would otherwise cost a second in which no probe is answered.
    """

    def __init__(
        self, taken: KeptSocket, waiting: _Waiting, is_whole: Callable[[bytes], bool]
    ) -> None:
        self.socket = taken
        self.address = str(taken.getpeername()[0])
        self.received = b""
        self.drop: Callable[[], object] = self.close_connection
        self._waiting, self._is_whole = waiting, is_whole
        asyncio.get_running_loop().add_reader(taken.fileno(), self._on_readable)
        waiting.add_or_renew_caller(self)
        # It has mostly spoken by now, and a turn of the loop may take long.
        self._on_readable()

    def _on_readable(self) -> None:
        try:
            part = self.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            part = b""
        self.received += part
        if not part:
            self._waiting.drop_caller(self)
        elif self._is_whole(self.received):
            asyncio.get_running_loop().remove_reader(self.socket.fileno())
            self._waiting.on_whole_head(self)

    def close_connection(self) -> None:
        asyncio.get_running_loop().remove_reader(self.socket.fileno())
        self.socket.close()


class _Connection(H11Protocol):
    """One of uvicorn's connections; it waits until its request is whole, and after the answer."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, waiting: _Waiting, caller: _Caller
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._waiting, self._caller = waiting, caller

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._caller.drop = transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._waiting.remove_caller(self._caller)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle and not self.cycle.response_complete and not self.cycle.more_body:
            self._waiting.remove_caller(self._caller)

    def on_response_complete(self) -> None:
        # Before uvicorn goes on to a request that came behind this one; also where the connection
        # is being closed, because a client that does not read would keep it open for ever.
        if self in self.connections:
            self._waiting.add_or_renew_caller(self._caller)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP in our form, unless an answer was begun; echo nothing of it."""
        del msg
        answer = json_error_answer(400, "that is not a request that this server takes")
        with suppress(h11.LocalProtocolError):
            reply = h11.Response(
                status_code=answer.status,
                headers=[*_headers_of_answer(answer), (b"Connection", b"close")],
            )
            for part in (reply, h11.Data(data=answer.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


class _Application:
    """Reads a request within bounds and answers it: an ASGI application."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._answer = bound_to_current_sink(self._answer_or_500)
        self._open = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = await self._read_and_answer(scope, receive)
        start = {
            "type": "http.response.start",
            "status": answer.status,
            "headers": _headers_of_answer(answer),
        }
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})

    async def _read_and_answer(self, scope: Any, receive: Any) -> Answer:
        text = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        headers = {name.title(): value for name, value in text.items()}
        if len(scope["raw_path"]) > _TARGET_BYTES_MAX:
            return json_error_answer(414, f"a path may have {_TARGET_BYTES_MAX} bytes")
        if "Transfer-Encoding" in headers:
            return json_error_answer(411, "the length of the body must be given")
        if int(headers.get("Content-Length", "0")) > BODY_BYTES_MAX:
            return json_error_answer(413, f"a body may have {BODY_BYTES_MAX} bytes")
        role = role_of(headers.get("Authorization", ""), self._site.http)
        # Only an operator's body is ever looked at: nobody else's takes memory.
        body = await _read_body(receive) if role is Role.OPERATOR else b""
        if body is None:
            return json_error_answer(400, "the body is not whole")
        target = b"?".join(filter(None, (scope["raw_path"], scope["query_string"])))
        peer = (scope["client"] or ("",))[0]
        request = Request(scope["method"], target.decode("latin-1"), headers, body, peer)
        if is_probe(request) or role is Role.NOBODY:
            return self._answer(request)
        if self._open >= ANSWERED_MAX:
            return json_error_answer(503, "too many ask at once", "ask again")
        self._open += 1
        try:
            return await self._answer_in_thread(request)
        finally:
            self._open -= 1

    async def _answer_in_thread(self, request: Request) -> Answer:
        """Answer in a daemon: a process that ends waits for nobody's page."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()

        def hand_over(reply: Answer) -> None:
            if not answer.done():
                answer.set_result(reply)

        def work() -> None:
            reply = self._answer(request)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(hand_over, reply)

        threading.Thread(target=work, name="headgate-http-answer", daemon=True).start()
        return await answer

    def _answer_or_500(self, request: Request) -> Answer:
        looked = Request("GET", request.target, request.headers)
        try:
            return answer_request(self._site, looked if request.method == "HEAD" else request)
        except Exception:  # noqa: BLE001 - a page that fails is no reason to end the server
            _log.exception("a request to %s failed", request.target)
            return json_error_answer(500, "that went wrong here; the log of this process says how")


async def _read_body(receive: Any) -> bytes | None:
    """Return the body; ``None`` if the client went before it was whole: it asks for nothing."""
    body, more = b"", True
    while more:
        part = await receive()
        if part["type"] == "http.disconnect":
            return None
        body, more = body + part.get("body", b""), part.get("more_body", False)
    return body


def _headers_of_answer(answer: Answer) -> list[tuple[bytes, bytes]]:
    named = {
        "Server": "headgate",
        "Date": formatdate(usegmt=True),
        **CAREFUL,
        **answer.headers,
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
    }
    return [(name.encode(), value.encode("latin-1")) for name, value in named.items()]


class _Server:
    """Accepts connections until it is told to stop, and leaves none open."""

    def __init__(self, site: Site, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._listening = listening
        self._tls = tls
        self._is_whole = is_tls_hello_complete_or_absent if tls else is_head_complete_or_invalid
        self._config = uvicorn.Config(
            _Application(site),
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # a stranger writes nothing into our log
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=int(2 * WHOLE_WITHIN_S),  # ours comes first
        )
        self._state = ServerState()
        self._waiting = _Waiting(
            min(WAITING_MAX, _increase_descriptor_limit() // 2), self._schedule_next_connections
        )
        self._arriving: set[asyncio.Task[Any]] = set()
        self._stopped = asyncio.Event()
        self._begun: list[_Caller] = []
        self._serves = False
        self._selector = KeptSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._loop.set_exception_handler(_log_connection_error)

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def stop(self) -> None:
        """Ask for the end, from any thread."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def _serve(self) -> None:
        self._watch_listening_socket()
        try:
            await self._stopped.wait()
        finally:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            if self._state.tasks:
                await asyncio.wait(self._state.tasks, timeout=_ANSWERS_END_WITHIN_S)
            self._waiting.drop_all()
            for arriving in tuple(self._arriving):
                arriving.cancel()
            for connection in tuple(self._state.connections):
                connection.transport.abort()

    def _watch_listening_socket(self) -> None:
        if not self._stopped.is_set():
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept some connections in each turn of the loop, so that those accepted are read."""
        try:
            for _ in range(_ACCEPTED_AT_ONCE):
                _Caller(accept_connection(self._listening), self._waiting, self._is_whole)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.debug("a connection was not accepted: %s", error)
            self._waiting.drop_oldest()  # there may be no descriptor left
            self._loop.remove_reader(self._listening)
            self._loop.call_later(_NO_ROOM_S, self._watch_listening_socket)

    def _schedule_next_connections(self) -> None:
        if not self._serves:
            self._serves = True
            self._loop.call_soon(self._begin_next_connections)

    def _begin_next_connections(self) -> None:
        """Begin with the newest: a probe that comes last would else wait for all before it.

        But first with who asks rarely: a probe would else wait for all who come behind it.

        No more are begun while what a few have said is not read: with TLS that is a signature each.
        Who is left over waits no longer than anybody may.
        """
        self._serves = False
        self._begun = [each for each in self._begun if each.socket.has_pushed_back_bytes]
        while self._waiting.to_serve and len(self._begun) < _BEGUN_AT_ONCE:
            self._begin_connection(self._waiting.pop_next_to_serve())
        if self._waiting.to_serve:
            self._schedule_next_connections()

    def _begin_connection(self, caller: _Caller) -> None:
        """Speak HTTP with a client that has begun to, or agree on TLS first."""
        caller.socket.push_back(caller.received, self._selector)
        self._begun.append(caller)
        connection = _Connection(self._config, self._state, self._waiting, caller)
        arriving = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: connection, caller.socket, ssl=self._tls)
        )
        caller.drop = arriving.cancel
        self._arriving.add(arriving)

        def on_arrived(task: asyncio.Task[Any]) -> None:
            self._arriving.discard(task)
            if task.cancelled() or task.exception():
                self._waiting.remove_caller(caller)
                caller.socket.close()

        arriving.add_done_callback(on_arrived)


def _increase_descriptor_limit() -> int:
    """Return how many descriptors this process may have, after asking for enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 2 * WAITING_MAX if hard == resource.RLIM_INFINITY else min(2 * WAITING_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
        soft = enough
    return enough if soft == resource.RLIM_INFINITY else soft


def _log_connection_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    del loop
    _log.debug("a connection ended: %s", context["message"], exc_info=context.get("exception"))


class _SwitchInterval:
    """Shortens the time after which threads take turns, while anybody in this process serves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers = 0
        self._before_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._servers:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before_s, _SWITCH_INTERVAL_S))
            self._servers += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._servers -= 1
            if not self._servers:
                sys.setswitchinterval(self._before_s)


_switch_interval = _SwitchInterval()


@contextmanager
def serving_http(listen: str, http: HttpSettings, site: Site) -> Iterator[str]:
    """Serve until the end of the body; yield the URL. Raises ``ConfigurationError``."""
    require_safe_listen_address(listen, http)
    host, port = parse_listen_address(listen)
    tls = load_tls_context_if_configured(http)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=QUEUED_MAX)
    except OSError as error:
        raise ConfigurationError(
            f"nothing can listen on {listen}: {error.strerror or error}",
            "is another process there? choose another port",
        ) from error
    listening.settimeout(0)
    shown = f"[{host}]" if ":" in host else host
    url = f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}"
    server = _Server(site, listening, tls)
    thread = threading.Thread(target=server.run, name="headgate-http", daemon=True)
    thread.start()
    with _switch_interval:
        try:
            yield url
        finally:
            server.stop()
            thread.join(WHOLE_WITHIN_S)
