"""A Spark Connect server, as a process that a test may kill; its clients are ``Programs``."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
from spark_query.spark_programs import (
    PATIENCE_S,
    Running,
    environment_of,
    run_apart,
    submit_options,
)

from headgate.operations.local_kafka.broker import find_free_port

_STARTS = """
while True:  # Spark's Python process has 10 s to come, which is little where all cores are busy
    try:
        query = writer.start()
        break
    except Exception as error:
        if "waiting for the Python worker to connect back" not in str(error):
            raise
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    running: Running
    address: str


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[Server]:
    """Give a server; it is killed in the end, with its Python processes.

    These read this environment's compiled modules: its home has no archive with their sources.
    They have but 10 s to start.
    """
    port = find_free_port()
    home = folder / "spark-home"
    if not home.exists():
        home.mkdir()
        for part in ("bin", "jars"):
            home.joinpath(part).symlink_to(Path(pyspark.__file__).with_name(part))
    own = {"spark.connect.grpc.binding.port": str(port)}
    command = [home / "bin/spark-submit", "--master", "local[2]", *submit_options("4.1", own)]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    environment = {**environment_of("4.1"), "SPARK_HOME": str(home)}
    log = folder / f"server-{port}.log"
    with run_apart([*command, "spark-internal"], log, environment, cwd=folder) as running:
        _wait_for_port(running, port)
        yield Server(running, f"sc://127.0.0.1:{port}")


def _wait_for_port(running: Running, port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while running.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(running.output[-4000:])


def in_worker(code: str) -> str:
    """Code of a client that lets the server's Python process run this before its first batch."""
    return f"""
from headgate.spark import batches as of_client
def rebuilt(build, given):
    exec({code!r}, {{}})
    return build(*given)
def reduced(self, kept=of_client.Batches.__reduce__):
    return rebuilt, kept(self)
of_client.Batches.__reduce__ = reduced
"""


def with_patient_start(query: str) -> str:
    """Code of a client that starts its query again where the server's process came too late."""
    before, start, after = query.partition(".start()\n")
    assert start and after.startswith("query.processAllAvailable()"), query
    return before.replace("\nquery = headgate", "\nwriter = headgate") + "\n" + _STARTS + after
