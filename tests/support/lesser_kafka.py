"""A real broker behind a relay that lets clients know only a part of what it can."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars, find_free_port

METADATA, API_VERSIONS, ADD_PARTITIONS, END_TRANSACTION, DESCRIBE_CONFIGS = 3, 18, 24, 26, 32
_UNSUPPORTED_VERSION = 35


class LesserKafka(EmbeddedKafka):
    """``lesser`` is its second door: there requests have at most the version of ``newest``, and
    none of those that it has as ``None`` is offered."""

    def __init__(self, home: Path, newest: Mapping[int, int | None]) -> None:
        super().__init__(home, ensure_broker_jars())
        self._port_behind = find_free_port()
        self._newest = newest
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.lesser = f"127.0.0.1:{self._listening.getsockname()[1]}"

    def _write_configuration(self, log_dir: Path) -> Path:
        config = super()._write_configuration(log_dir)
        text = config.read_text()
        for key, at in (
            ("listeners", f"127.0.0.1:{self._port_behind}"),
            ("advertised.listeners", self.lesser),
        ):
            text = text.replace(f"\n{key}=PLAIN", f"\n{key}=LESSER://{at},PLAIN")
        config.write_text(text.replace(":PLAINTEXT\n", ":PLAINTEXT,LESSER:PLAINTEXT\n"))
        return config

    def __enter__(self) -> Self:
        super().__enter__()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listening.close()
        super().__exit__(kind, error, trace)

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = self._listening.accept()
                broker = socket.create_connection(("127.0.0.1", self._port_behind))
                asked: set[bytes] = set()
                for each in (self._pass_requests, self._pass_answers):
                    threading.Thread(target=each, args=(client, broker, asked), daemon=True).start()

    def _pass_requests(
        self, client: socket.socket, broker: socket.socket, asked: set[bytes]
    ) -> None:
        """Pass on all but newer questions for versions, whose answers have another form."""
        while (request := _frame(client)) is not None:
            key, version = struct.unpack(">hh", request[:4])
            if key == API_VERSIONS and version:
                known = struct.pack(">hihhh", _UNSUPPORTED_VERSION, 1, API_VERSIONS, 0, 0)
                _send(client, request[4:8] + known)
                continue
            if key == API_VERSIONS:
                asked.add(request[4:8])
            _send(broker, request)
        broker.close()

    def _pass_answers(
        self, client: socket.socket, broker: socket.socket, asked: set[bytes]
    ) -> None:
        while (answer := _frame(broker)) is not None:
            if answer[:4] in asked:
                asked.discard(answer[:4])
                answer = self._with_less(answer)
            _send(client, answer)
        client.close()

    def _with_less(self, answer: bytes) -> bytes:
        (count,) = struct.unpack(">i", answer[6:10])
        kept = []
        for number in range(count):
            at = 10 + 6 * number
            key, oldest, newest = struct.unpack(">hhh", answer[at : at + 6])
            most = self._newest.get(key, newest)
            if most is not None:
                kept.append(struct.pack(">hhh", key, oldest, min(newest, most)))
        return answer[:6] + struct.pack(">i", len(kept)) + b"".join(kept)


def _frame(of: socket.socket) -> bytes | None:
    """The next request or answer; ``None`` at the end."""
    size = _read(of, 4)
    return _read(of, struct.unpack(">i", size)[0]) if size else None


def _read(of: socket.socket, count: int) -> bytes | None:
    found = b""
    with suppress(OSError):
        while len(found) < count:
            part = of.recv(count - len(found))
            if not part:
                return None
            found += part
        return found
    return None


def _send(to: socket.socket, frame: bytes) -> None:
    with suppress(OSError):
        to.sendall(struct.pack(">i", len(frame)) + frame)
