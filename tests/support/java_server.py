"""Runs a server in a separate JVM, on a given port."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headgate.operations.java_installation import java_command

START_S_MAX = 300


@contextmanager
def java_server(
    folder: Path,
    class_path: str,
    main: Sequence[str],
    port: int,
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """The port, once somebody listens there; it works in the folder, and has its log there.

    ``main``: the class and its arguments. ``environment``: what it is told beside this process's.
    """
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [java_command(), "-Xmx256m", "-cp", class_path, *main],
            env={**os.environ, **(environment or {})},
            stdout=log,
            stderr=log,
            cwd=folder,
        )
        try:
            _await_port(port, server)
            yield port
        finally:
            server.kill()
            server.wait()


def _await_port(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(START_S_MAX * 10):
        assert server.poll() is None, f"{server.args} ended by itself"
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        try:
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"nobody listens after {START_S_MAX} s: {server.args}")
