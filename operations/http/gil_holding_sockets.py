"""Has sockets whose calls keep the interpreter, and the selector of a loop that serves with them.

Each call of Python's sockets gives up the interpreter, however short it is. Beside a thread that
computes, getting it back takes five milliseconds: a thousand connections that are accepted, read
and closed would keep a probe waiting for seconds. None of the calls here can wait for anything.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import selectors
import socket
import struct
from typing import Any

_C = ctypes.PyDLL(None, use_errno=True)
_HAS_ACCEPT4 = hasattr(_C, "accept4")
"""Linux has it, macOS has not: there, Python accepts, which is slower beside a busy thread."""
if _HAS_ACCEPT4:
    _C.accept4.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
for _moves in (_C.recv, _C.send):
    _moves.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
    _moves.restype = ctypes.c_ssize_t
_ADDRESS_BYTES = 128
_AT_ONCE_BYTES = 16_384
_HAS_EPOLL = hasattr(select, "epoll")
_EPOLL_ADD, _EPOLL_DELETE, _EPOLL_MODIFY = 1, 2, 3
_EVENTS_AT_ONCE = 256
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)  # Python ignores SIGPIPE anyway


def _result_or_oserror(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class KeptSocket(socket.socket):
    """One accepted connection, that never blocks."""

    def __init__(self, family: int, descriptor: int, peer: tuple[Any, ...]) -> None:
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptor)
        self._peer = peer
        self._unread = b""

    @property
    def has_pushed_back_bytes(self) -> bool:
        """Return whether something is here that was read already, and put back."""
        return bool(self._unread)

    def push_back(self, received: bytes, selector: KeptSelector) -> None:
        """Let whoever reads next get this first; the loop of that selector sees that it can."""
        self._unread = received
        selector.mark_readable(self)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self._unread:
            first, self._unread = self._unread[:size], self._unread[size:]
            return first
        size = min(size, _AT_ONCE_BYTES)
        buffer = ctypes.create_string_buffer(size)
        got = _result_or_oserror(_C.recv(self.fileno(), buffer, size, flags))
        return buffer.raw[:got]

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        received = self.recv(nbytes or len(buffer), flags)
        buffer[: len(received)] = received
        return len(received)

    def send(self, data: Any, flags: int = 0) -> int:
        part = bytes(memoryview(data)[:_AT_ONCE_BYTES])
        return _result_or_oserror(_C.send(self.fileno(), part, len(part), flags | _NO_SIGNAL))

    def getpeername(self) -> Any:
        return self._peer

    def _real_close(self) -> None:
        self._unread = b""
        if (descriptor := self.detach()) >= 0:
            _C.close(descriptor)


def accept_connection(listening: socket.socket) -> KeptSocket:
    """Accept the next connection. Raises ``BlockingIOError`` if there is none."""
    if not _HAS_ACCEPT4:
        accepted, peer = listening.accept()
        accepted.settimeout(0)
        return KeptSocket(listening.family, accepted.detach(), peer)
    address = ctypes.create_string_buffer(_ADDRESS_BYTES)
    size = ctypes.c_uint32(_ADDRESS_BYTES)
    how = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    descriptor = _result_or_oserror(
        _C.accept4(listening.fileno(), address, ctypes.byref(size), how)
    )
    return KeptSocket(listening.family, descriptor, _peer_address(listening.family, address.raw))


def _peer_address(family: int, address: bytes) -> tuple[Any, ...]:
    (port,) = struct.unpack_from("!H", address, 2)
    begin, end = (8, 24) if family == socket.AF_INET6 else (4, 8)
    return socket.inet_ntop(family, address[begin:end]), port


class _EpollEvent(ctypes.Structure):
    if platform.machine() == "x86_64":
        _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("descriptor", ctypes.c_uint64))


class _KeptEpoll:
    """Is ``select.epoll`` as a selector uses it, and keeps the interpreter unless it has to wait.

    A handshake takes several turns of the loop. If each turn gave up the interpreter to look for
    what has come, a thousand handshakes would keep a probe from it for seconds.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._found = (_EpollEvent * _EVENTS_AT_ONCE)()
        self.fileno, self.close = self._epoll.fileno, self._epoll.close

    def register(self, descriptor: int, events: int) -> None:
        self._control(_EPOLL_ADD, descriptor, events)

    def modify(self, descriptor: int, events: int) -> None:
        self._control(_EPOLL_MODIFY, descriptor, events)

    def unregister(self, descriptor: int) -> None:
        self._control(_EPOLL_DELETE, descriptor, 0)

    def _control(self, operation: int, descriptor: int, events: int) -> None:
        event = _EpollEvent(events, descriptor)
        _result_or_oserror(
            _C.epoll_ctl(self._epoll.fileno(), operation, descriptor, ctypes.byref(event))
        )

    def poll(self, timeout_s: float, events_max: int) -> list[tuple[int, int]]:
        count = _result_or_oserror(
            _C.epoll_wait(self._epoll.fileno(), self._found, _EVENTS_AT_ONCE, 0)
        )
        if count or timeout_s == 0:
            return [(each.descriptor, each.events) for each in self._found[:count]]
        return self._epoll.poll(timeout_s, events_max)


class KeptSelector(getattr(selectors, "EpollSelector", selectors.DefaultSelector)):  # type: ignore[misc]
    """Looks at sockets without giving up the interpreter, and at what was pushed back to them."""

    if _HAS_EPOLL:
        _selector_cls = _KeptEpoll

    def __init__(self) -> None:
        super().__init__()
        self._unread: set[KeptSocket] = set()

    def mark_readable(self, socket: KeptSocket) -> None:
        self._unread.add(socket)

    def select(self, timeout: float | None = None) -> Any:
        self._unread = {each for each in self._unread if each.has_pushed_back_bytes}
        registered = [self.get_map().get(each.fileno()) for each in self._unread]
        read = selectors.EVENT_READ
        again = [(key, read) for key in registered if key and key.events & read]
        return [*again, *super().select(0 if again else timeout)]
