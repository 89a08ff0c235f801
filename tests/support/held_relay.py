"""A TCP relay that can hold back what either side says, while both connections stay open."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_BYTES = 65_536


class HeldRelay:
    """Passes bytes between its clients and one port behind it.

    While ``asking`` is not set, nothing of the clients gets through; while ``answering`` is not,
    nothing of the server. It is only late: all of it gets through once the event is set again.
    """

    def __init__(self, port_behind: int) -> None:
        self._port_behind = port_behind
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self.asking, self.answering = threading.Event(), threading.Event()

    @property
    def host(self) -> str:
        """As ``PostgresServer.host``."""
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        self.asking.set()
        self.answering.set()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self.asking.set()
        self.answering.set()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._port_behind))
                self._sockets += [client, server]
                for told in ((client, server, self.asking), (server, client, self.answering)):
                    threading.Thread(target=_pass_on, args=told, daemon=True).start()


def _pass_on(of: socket.socket, to: socket.socket, open_: threading.Event) -> None:
    with suppress(OSError):
        while said := of.recv(_BYTES):
            open_.wait()
            to.sendall(said)
        open_.wait()
        to.shutdown(socket.SHUT_WR)
