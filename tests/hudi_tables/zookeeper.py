"""A ZooKeeper from the jars that PySpark brings: a lock provider that knows its owner."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

START_S_MAX = 120
JARS = Path(pyspark.__file__).parent / "jars"


@contextmanager
def zookeeper(folder: Path) -> Iterator[int]:
    """Its port on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    settings = folder / "zoo.cfg"
    settings.write_text(
        f"tickTime=1000\ndataDir={folder}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\nmaxClientCnxns=0\n"
    )
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", f"{JARS}/*", main, str(settings)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _await_port(port, server)
            yield port
        finally:
            server.kill()
            server.wait()


def _await_port(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(START_S_MAX * 10):
        assert server.poll() is None, "ZooKeeper ended by itself"
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        try:
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"no ZooKeeper after {START_S_MAX} s")
