"""Swaps of Hive tables, held between client and metastore: behind all that the client checks."""

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
        self.hold: Callable[[], object] | None = None

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._behind)
                for ends in ((client, server, self._await), (server, client, _nothing)):
                    threading.Thread(target=_pass_on, args=ends, daemon=True).start()

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
