"""Clients that send too slowly, too much, or read nothing: the others are answered, and they go."""

from __future__ import annotations

import asyncio
import gc
import re
import resource
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from unit.operations.http.conftest import GUARDED, OPERATOR, VIEWER, Client, Serve, report
from unit.operations.http.test_server import certified

from headgate.config.telemetry_and_http_settings import HttpSettings
from headgate.operations.http import server

HEAD = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
PATIENCE_S = 60.0
"""Only how long a test waits before it says that something never came."""


def connect(url: str, sent: bytes = b"", from_host: str = "127.0.0.1") -> socket.socket:
    host, port = url.rpartition("//")[2].split(":")
    client = socket.create_connection((host, int(port)), PATIENCE_S, source_address=(from_host, 0))
    client.sendall(sent)
    return client


def ended(client: socket.socket) -> bool:
    """Wait until the server has closed the connection."""
    try:
        while client.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True


def still_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@contextmanager
def busy() -> Iterator[None]:
    """Hold the interpreter in a loop of Python's, as decoding of records may."""
    done = threading.Event()

    def turn() -> None:
        while not done.is_set():
            sum(range(1_000))

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let deadlines pass soon, for tests that wait for their end."""
    monkeypatch.setattr(server, "WHOLE_WITHIN_S", 0.5)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fewer connections wait than a test opens."""
    monkeypatch.setattr(server, "WAITING_MAX", 100)


@pytest.mark.parametrize("hosts", [1, 200])
@pytest.mark.parametrize("sent", [b"", b"G", HEAD], ids=["silent", "byte", "head"])
def test_probes_are_answered_while_slow_clients_hold_on(
    serve: Serve, hosts: int, sent: bytes
) -> None:
    with serve(report()) as client, ExitStack() as closing, busy():
        slow = [
            closing.enter_context(connect(client.url, sent, f"127.0.0.{1 + n % hosts}"))
            for n in range(300)
        ]
        for _ in range(5):
            assert client.get("/livez").status == 200
            assert client.get("/readyz").status == 200
        assert client.get("/metrics", VIEWER).status == 404
        assert still_open(slow[-1])


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("hosts", [1, 200])
def test_of_too_many_slow_clients_the_oldest_goes(serve: Serve, hosts: int) -> None:
    with serve(report()) as client, ExitStack() as closing, busy():
        slow = [
            closing.enter_context(connect(client.url, HEAD, f"127.0.0.{1 + n % hosts}"))
            for n in range(300)
        ]
        assert client.get("/livez").status == 200
        # the newest hold on all the while, and the oldest have gone
        assert still_open(slow[-1])
        assert ended(slow[0])
        assert sum(still_open(each) for each in slow) <= server.WAITING_MAX


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("sent", [b"GET ", HEAD, b""], ids=["method", "head", "silent"])
def test_a_byte_now_and_then_renews_no_deadline(serve: Serve, sent: bytes) -> None:
    with serve(report()) as client, connect(client.url, sent) as slow:
        slow.settimeout(0.05)
        for _ in range(int(PATIENCE_S / 0.05)):
            try:
                slow.sendall(b"x")
                if not slow.recv(65_536):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("a slow client was never closed")


@pytest.mark.usefixtures("soon")
def test_a_body_that_never_comes_is_not_waited_for_and_moves_nothing(serve: Serve) -> None:
    asked = (
        f"PUT /api/v1/sinks/trips/pause HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {OPERATOR}\r\nContent-Length: 100\r\n\r\n{{"
    )
    with serve(report()) as client, connect(client.url, asked.encode()) as slow:
        assert ended(slow)
        assert client.get("/livez").status == 200


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_who_does_not_read_the_answer_goes(serve: Serve, connection: str) -> None:
    huge = b"x" * 20_000_000
    asked = (
        f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: {connection}\r\n"
        f"Authorization: Bearer {VIEWER}\r\n\r\n"
    )
    with (
        serve(report(), metrics=lambda: (huge, "text/plain")) as client,
        connect(client.url, asked.encode()) as deaf,
    ):
        read = len(deaf.recv(1))  # the answer is on its way, and its reader's time has begun
        with connect(client.url) as later:
            assert ended(later)
        while said := deaf.recv(1_000_000):
            read += len(said)
        assert read < len(huge)
        assert client.get("/livez").status == 200


@pytest.mark.usefixtures("soon")
def test_a_stranger_is_refused_before_the_body_is_sent(serve: Serve) -> None:
    asked = b"PUT /api/v1/sinks/trips/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n"
    with serve(report()) as client, connect(client.url, asked) as slow:
        assert slow.recv(65_536).startswith(b"HTTP/1.1 401 ")
        assert ended(slow)


def test_requests_in_one_piece_are_answered_in_their_order(serve: Serve) -> None:
    with serve(report(), not_ready=lambda: "no") as client:
        one = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /readyz HTTP/1.1\r\nHost: x\r\n"
        with connect(client.url, one + b"Connection: close\r\n\r\n") as both:
            said = b"".join(iter(lambda: both.recv(65_536), b""))
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"503"]


def test_strangers_do_not_take_the_room_of_those_who_may_ask(serve: Serve) -> None:
    """Sixteen visitors wait for a page that takes long: probes and refusals are told at once."""
    asked, go_on = threading.Semaphore(0), threading.Event()

    def slow_page() -> tuple[bytes, str]:
        asked.release()
        assert go_on.wait(PATIENCE_S)
        return b"x 1\n", "text/plain"

    told: list[int] = []
    with serve(report(), metrics=slow_page) as client:
        visitors = [
            threading.Thread(target=lambda: told.append(client.get("/metrics", VIEWER).status))
            for _ in range(server.ANSWERED_MAX)
        ]
        for visitor in visitors:
            visitor.start()
        for _ in visitors:
            assert asked.acquire(timeout=PATIENCE_S)
        assert client.get("/livez").status == 200
        assert client.get("/metrics").status == 401
        assert client.get("/metrics", VIEWER).status == 503
        go_on.set()
        for visitor in visitors:
            visitor.join()
    assert told == [200] * server.ANSWERED_MAX


def connections() -> int:
    """Return for how many callers something was made that speaks HTTP."""
    return sum(isinstance(each, server._Connection) for each in gc.get_objects())


@pytest.mark.parametrize("sent", [b"G", HEAD], ids=["byte", "head"])
def test_nothing_speaks_http_with_who_has_not_asked_for_anything_yet(
    serve: Serve, sent: bytes
) -> None:
    with serve(report()) as client, ExitStack() as closing:
        for _ in range(50):
            closing.enter_context(connect(client.url, sent))
        assert client.get("/livez").status == 200
        gc.collect()
        assert connections() <= 1


def test_a_request_that_comes_in_pieces_is_answered(serve: Serve) -> None:
    with serve(report()) as client, connect(client.url) as slow:
        for byte in HEAD + b"\r\n":
            slow.sendall(bytes([byte]))
        assert slow.recv(65_536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", HEAD], ids=["silent", "head"])
def test_who_goes_is_not_waited_for(serve: Serve, sent: bytes) -> None:
    with serve(report()) as client, connect(client.url, sent) as gone:
        gone.shutdown(socket.SHUT_WR)
        assert gone.recv(65_536) == b""


def asked_while_busy(serve: Serve, callers: Sequence[tuple[bytes, str]]) -> list[str]:
    """What was served, in order, when all of these (head, address) came during the first."""
    asked: list[str] = []
    is_busy, go_on = threading.Event(), threading.Event()

    def not_live() -> None:
        asked.append("live")
        is_busy.set()
        assert go_on.wait(PATIENCE_S)

    with (
        serve(report(), not_live=not_live, not_ready=lambda: asked.append("ready")) as client,
        ExitStack() as closing,
    ):
        many = []
        for head, host in callers:
            many.append(closing.enter_context(connect(client.url, head + b"\r\n", host)))
            assert is_busy.wait(PATIENCE_S)  # with the first
        go_on.set()
        for each in many:
            assert each.recv(65_536).startswith(b"HTTP/1.1 200 ")
    return asked


READY = HEAD.replace(b"livez", b"readyz")


def test_of_many_who_ask_at_once_the_newest_is_answered_first(serve: Serve) -> None:
    """A probe that comes last would wait for all of them."""
    asked = asked_while_busy(serve, [*[(HEAD, "127.0.0.1")] * 21, (READY, "127.0.0.1")])
    assert len(asked) == 22
    assert "ready" in asked[1 : 2 + server._BEGUN_AT_ONCE]


def test_who_asks_rarely_is_served_before_the_many_of_one_address(serve: Serve) -> None:
    """A probe that comes before many others would wait for all of them."""
    many = (HEAD, "127.0.0.2")
    asked = asked_while_busy(serve, [many, (READY, "127.0.0.9"), *[many] * 20])
    assert len(asked) == 22
    assert "ready" in asked[1 : 2 + server._BEGUN_AT_ONCE]


def test_a_turn_of_the_loop_closes_only_some_of_those_whose_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "WHOLE_WITHIN_S", 0.0)
    monkeypatch.setattr(server, "_CLOSED_AT_ONCE", 3)
    turn, closed = 0, []

    class Caller:
        address = "127.0.0.1"

        def drop(self) -> None:
            closed.append(turn)

    async def turns() -> None:
        nonlocal turn
        waiting = server._Waiting(100, lambda: None)
        for _ in range(10):
            waiting.add_or_renew_caller(Caller())  # type: ignore[arg-type]
        while len(closed) < 10:
            turn += 1
            await asyncio.sleep(0)

    asyncio.run(turns())
    assert max(Counter(closed).values()) == 3


def test_nobody_is_closed_while_some_wait_to_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is closed would come again, and be served before those who wait."""
    monkeypatch.setattr(server, "WHOLE_WITHIN_S", 10.0)
    closed: list[object] = []
    now_s = 0.0

    class Caller:
        address = "127.0.0.1"

        def drop(self) -> None:
            closed.append(self)

    class Loop(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return now_s

    async def turns() -> None:
        nonlocal now_s
        waiting = server._Waiting(100, lambda: None)
        late, asks = Caller(), Caller()
        waiting.add_or_renew_caller(late)  # type: ignore[arg-type]
        now_s = 1.0
        waiting.add_or_renew_caller(asks)  # type: ignore[arg-type]
        waiting.on_whole_head(asks)  # type: ignore[arg-type]
        for moment_s, expected in ((10.5, []), (20.5, [late])):
            now_s = moment_s
            for _ in range(5):
                await asyncio.sleep(0)
            assert closed == expected
        waiting.remove_caller(asks)  # type: ignore[arg-type]

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(turns())


def test_threads_take_turns_sooner_while_anybody_serves(serve: Serve) -> None:
    """A TLS handshake gives up the interpreter a dozen times."""
    before_s = sys.getswitchinterval()
    with serve(report()):
        with serve(report()):
            assert sys.getswitchinterval() == pytest.approx(server._SWITCH_INTERVAL_S)
        assert sys.getswitchinterval() == pytest.approx(server._SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == before_s


@pytest.fixture
def tls(tmp_path: Path) -> tuple[HttpSettings, ssl.SSLContext]:
    certificate, key = certified(tmp_path)
    http = HttpSettings(
        certificate=str(certificate), key=str(key), viewer_token=GUARDED.viewer_token
    )
    return http, ssl.create_default_context(cafile=str(certificate))


@pytest.mark.usefixtures("few")
def test_who_never_shakes_hands_keeps_nobody_out(
    serve: Serve, tls: tuple[HttpSettings, ssl.SSLContext]
) -> None:
    http, trust = tls
    with serve(report(), http_settings=http) as plain, ExitStack() as closing, busy():
        silent = [closing.enter_context(connect(plain.url)) for _ in range(300)]
        client = Client(plain.url, trust)
        assert [client.get("/livez").status for _ in range(5)] == [200] * 5
        assert still_open(silent[-1])
        assert ended(silent[0])
        assert sum(still_open(each) for each in silent) <= server.WAITING_MAX


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_handshake_has_the_same_deadline(
    serve: Serve, tls: tuple[HttpSettings, ssl.SSLContext], sent: bytes
) -> None:
    http, trust = tls
    with serve(report(), http_settings=http) as plain, connect(plain.url, sent) as slow:
        assert ended(slow)
        assert Client(plain.url, trust).get("/livez").status == 200


@pytest.mark.parametrize("piece", [1, 100, 10_000])
def test_a_handshake_in_pieces_is_one(
    serve: Serve, tls: tuple[HttpSettings, ssl.SSLContext], piece: int
) -> None:
    http, trust = tls
    hears, says = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(hears, says, server_hostname="127.0.0.1")
    with serve(report(), http_settings=http) as plain, connect(plain.url) as slow:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                while part := says.read(piece):
                    slow.sendall(part)
                assert hears.write(slow.recv(65_536))
        client.write(HEAD + b"\r\n")
        slow.sendall(says.read())
        answer = b""
        while not answer:
            assert hears.write(slow.recv(65_536))
            with suppress(ssl.SSLWantReadError):
                answer = client.read()
        assert answer.startswith(b"HTTP/1.1 200 ")


def test_half_a_handshake_costs_none(
    serve: Serve, tls: tuple[HttpSettings, ssl.SSLContext]
) -> None:
    http, trust = tls
    says = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        trust.wrap_bio(ssl.MemoryBIO(), says, server_hostname="x").do_handshake()
    hello = says.read()
    with serve(report(), http_settings=http) as plain, ExitStack() as closing:
        for size in range(1, len(hello) - 1, len(hello) // 20):
            closing.enter_context(connect(plain.url, hello[:size]))
        assert Client(plain.url, trust).get("/livez").status == 200
        gc.collect()
        assert connections() <= 1


def test_a_process_without_descriptors_answers_again(serve: Serve) -> None:
    """Nothing can be accepted: who waits longest makes room, and the server goes on."""
    with serve(report()) as client, ExitStack() as closing:
        slow = [closing.enter_context(connect(client.url, HEAD)) for _ in range(20)]
        assert client.get("/livez").status == 200
        probe = closing.enter_context(socket.socket())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        top = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
        while closing.enter_context(Path("/dev/null").open()).fileno() < top:
            pass  # fill the gaps
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, hard))
        try:
            host, port = client.url.rpartition("//")[2].split(":")
            probe.settimeout(PATIENCE_S)
            probe.connect((host, int(port)))
            probe.sendall(HEAD + b"\r\n")
            assert probe.recv(65_536).startswith(b"HTTP/1.1 200 ")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert ended(slow[0])
        assert still_open(slow[-1])


@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.parametrize("error", [None, RuntimeError("the sink stopped")])
def test_no_connection_and_no_descriptor_outlives_the_server(
    serve: Serve,
    tls: tuple[HttpSettings, ssl.SSLContext],
    over_tls: bool,
    error: Exception | None,
) -> None:
    def here() -> int:
        gc.collect()
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    before, threads = here(), threading.active_count()
    with ExitStack() as closing:
        try:
            with serve(report(), http_settings=tls[0] if over_tls else GUARDED) as client:
                held = [
                    closing.enter_context(connect(client.url, sent))
                    for sent in (b"", b"G", HEAD, HEAD + b"\r\n") * 10
                ]
                assert Client(client.url, tls[1] if over_tls else None).get("/livez").status == 200
                if error:
                    raise error
        except RuntimeError as raised:
            assert raised is error
        assert all(ended(each) for each in held)
    # Clients of earlier tests, in threads of their own, open a connection now and then, too.
    due_s = time.monotonic() + PATIENCE_S
    while here() > before or threading.active_count() > threads:
        assert time.monotonic() < due_s, (here(), before, threading.active_count(), threads)
        time.sleep(0.1)
