"""Holds swaps of Hive tables between client and metastore, after all client checks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

SWAP = b"alter_table"
"""What the names of the calls begin with by which clients of all releases swap."""


class HeldSwaps:
    """``hold`` is called, once, before the next swap goes on to the metastore at ``uri``."""

    def __init__(self, uri: str) -> None:
        behind = urlsplit(uri)
        self._behind = (str(behind.hostname), int(behind.port or 0))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._connected: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve)]
        self.hold: Callable[[], object] | None = None

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        sockets = [self._listening, *self._connected]
        for each in sockets:
            with suppress(OSError):  # whoever waits for it wakes up; closing alone wakes nobody
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in sockets:
            each.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._behind)
                self._connected += [client, server]
                for ends in ((client, server, self._await), (server, client, _nothing)):
                    thread = threading.Thread(target=_pass_on, args=ends)
                    self._threads.append(thread)
                    thread.start()

    def _await(self, said: bytes) -> None:
        if SWAP in said and self.hold is not None:
            hold, self.hold = self.hold, None
            hold()


def _nothing(_: bytes) -> None: ...


def _pass_on(
    speaker: socket.socket, listener: socket.socket, before: Callable[[bytes], None]
) -> None:
    with suppress(OSError):
        while said := speaker.recv(1 << 16):
            before(said)
            listener.sendall(said)
        listener.shutdown(socket.SHUT_WR)
