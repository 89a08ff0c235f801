"""Runs S3 on this machine for the demo: moto's server as a child process, one bucket in memory."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.operations.child_process import (
    kill_child_group_and_wait,
    start_child_killed_with_parent,
)
from headgate.operations.local_kafka.broker import HOST, find_free_port

BUCKET = "lake"
START_SECONDS_MAX = 60

_SERVER = "import sys; from moto.server import main; main(sys.argv[1:])"


class EmbeddedS3:
    """One store; it never outlives this process, and its content is gone with it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._port = find_free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        """Raises ``ConfigurationError`` without moto, ``Unreachable`` if it does not come up."""
        if find_spec("moto") is None or find_spec("flask") is None:
            raise ConfigurationError(
                "the demo's object store is moto's server, which is not installed",
                "pip install 'headgate[demo]'; make demo does it",
            )
        command = [sys.executable, "-W", "ignore", "-c", _SERVER, "-H", HOST, "-p", str(self._port)]
        with (self._home / "store.log").open("wb") as log:
            self._process = start_child_killed_with_parent(command, log, self._home)
        try:
            self._await_server_and_bucket(self._process)
        except BaseException:
            self._kill_server()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill_server()

    def _await_server_and_bucket(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _try_make_bucket(self._port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unreachable(
                    f"the demo's object store did not come up; its log is "
                    f"{self._home / 'store.log'}"
                )
            time.sleep(0.05)

    def _kill_server(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            kill_child_group_and_wait(process)


def _try_make_bucket(port: int) -> bool:
    """Return whether the server answers and has the bucket now. It needs no keys."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("PUT", f"/{BUCKET}")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
