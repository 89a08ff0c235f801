"""Sockets whose calls keep the interpreter: no other thread runs between, however busy it is."""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from headgate.operations.http import gil_holding_sockets
from headgate.operations.http.gil_holding_sockets import KeptSelector, KeptSocket, accept_connection

TURNS = 20_000_000
"""After so many the busy thread gives up: a call that lets it in returns only then."""


class Busy:
    def __init__(self) -> None:
        self.turns = 0
        self.begins = threading.Lock()

    def turn(self) -> None:
        self.begins.acquire()
        while self.turns < TURNS:
            self.turns += 1


@contextmanager
def nobody_else_runs() -> Iterator[None]:
    """Fail if another thread, which would run on and on, gets the interpreter in the body."""
    busy = Busy()
    thread = threading.Thread(target=busy.turn)
    before = sys.getswitchinterval()
    # Before the thread waits for the interpreter: it asks for it after the interval of that moment.
    sys.setswitchinterval(1_000)
    time.sleep(0.02)  # whoever waits already asks after the former interval, and is served here
    busy.begins.acquire()
    thread.start()
    try:
        busy.begins.release()
        yield
        assert busy.turns == 0
    finally:
        sys.setswitchinterval(before)
        busy.turns = TURNS
        thread.join()


@contextmanager
def pair(host: str = "127.0.0.1") -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket that listens, and one that has connected to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        listening.settimeout(0)
        with socket.create_connection(listening.getsockname()[:2]) as client:
            yield listening, client


def test_a_connection_is_accepted_read_answered_and_closed_without_letting_others_in() -> None:
    with pair() as (listening, client):
        client.sendall(b"one")
        with nobody_else_runs():
            taken = accept_connection(listening)
            said = taken.recv(100)
            for _ in range(1_000):  # who waits for the interpreter does not get it each time
                with pytest.raises(BlockingIOError):
                    taken.recv(100)
            sent = taken.send(b"two")
            peer = taken.getpeername()
            taken.close()
        assert (said, sent, peer) == (b"one", 3, client.getsockname())
        assert client.recv(100) == b"two"
        assert client.recv(100) == b""
        with pytest.raises(BlockingIOError):
            accept_connection(listening)


def test_the_guard_of_this_test_sees_a_call_that_lets_others_in() -> None:
    with pytest.raises(AssertionError), nobody_else_runs():
        select.select([], [], [], 0.05)


def test_a_caller_over_ipv6_is_named() -> None:
    with ExitStack() as closing:
        try:
            listening, client = closing.enter_context(pair("::1"))
        except OSError:
            pytest.skip("there is no IPv6")
        taken = closing.enter_context(accept_connection(listening))
        assert taken.getpeername() == client.getsockname()[:2]


def test_who_has_gone_is_an_error_and_no_signal() -> None:
    with pair() as (listening, client), accept_connection(listening) as taken:
        client.close()
        with pytest.raises(ConnectionError):
            for _ in range(1_000):
                taken.send(b"x")


def test_a_closed_socket_is_closed_once() -> None:
    with pair() as (listening, _):
        taken = accept_connection(listening)
        taken.close()
        with next_caller_of(listening) as another:  # it has the number of the first
            taken.close()
            assert another.send(b"x") == 1
        with pytest.raises(OSError, match="Bad file descriptor"):
            taken.recv(1)


@contextmanager
def next_caller_of(listening: socket.socket) -> Iterator[KeptSocket]:
    with socket.create_connection(listening.getsockname()), accept_connection(listening) as taken:
        yield taken


def by_recv(taken: KeptSocket) -> bytes:
    return taken.recv(65_536)


def by_recv_into(taken: KeptSocket) -> bytes:
    buffer = bytearray(65_536)
    return bytes(buffer[: taken.recv_into(memoryview(buffer))])


@pytest.mark.parametrize("read", [by_recv, by_recv_into])
def test_what_was_put_back_is_read_first_and_the_loop_is_told(
    read: Callable[[KeptSocket], bytes],
) -> None:
    selector = KeptSelector()
    with pair() as (listening, client), accept_connection(listening) as taken:
        taken.push_back(b"one", selector)
        assert selector.select(0) == []  # nobody waits for it yet
        key = selector.register(taken.fileno(), 1)
        assert selector.select(60) == [(key, 1)]
        assert read(taken) == b"one"
        client.sendall(b"two")
        assert selector.select(60) == [(key, 1)]
        assert read(taken) == b"two"
        selector.close()


def test_who_waits_to_write_is_not_told_of_what_was_put_back() -> None:
    """Else a loop would run without a pause, with nothing to read for anybody."""
    selector = KeptSelector()
    with pair() as (listening, _), accept_connection(listening) as taken:
        taken.push_back(b"one", selector)
        writable = selector.register(taken.fileno(), 2)
        assert selector.select(0) == [(writable, 2)]
        readable = selector.modify(taken.fileno(), 1)
        assert selector.select(60) == [(readable, 1)]
        selector.close()


def test_a_loop_that_has_something_to_do_looks_at_its_sockets_without_letting_others_in() -> None:
    selector = KeptSelector()
    with pair() as (listening, client), accept_connection(listening) as taken:
        client.sendall(b"one")
        with nobody_else_runs():
            selector.register(listening, 1)
            for _ in range(1_000):  # who waits for the interpreter does not get it each time
                assert selector.select(0) == []
            readable = selector.register(taken.fileno(), 1)
            said = selector.select(0)
            writable = selector.modify(taken.fileno(), 2)
            can_say = selector.select(0)
            selector.unregister(taken.fileno())
            gone = selector.select(0)
        assert (said, can_say, gone) == ([(readable, 1)], [(writable, 2)], [])
        selector.close()


def test_where_the_c_library_accepts_in_another_way_python_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS, whose C library has no ``accept4``."""
    monkeypatch.setattr(gil_holding_sockets, "_HAS_ACCEPT4", False)
    with pair() as (listening, client):
        client.sendall(b"one")
        with accept_connection(listening) as taken:
            assert taken.getpeername() == client.getsockname()
            select.select([taken], [], [], 10)
            assert taken.recv(10) == b"one"
        with pytest.raises(BlockingIOError):
            accept_connection(listening)
