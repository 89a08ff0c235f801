"""Spark's own standalone cluster on the loopback device, out of the pip package."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

START_S = 120


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
    """The master's URL, with so many workers of one core; a bare ``python`` runs their tasks."""
    with ExitStack() as stack:
        port = _free_port()
        master = f"spark://127.0.0.1:{port}"
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        log = stack.enter_context(_daemon(folder, "master.Master", arguments))
        _wait_for(log, "New state: ALIVE", 1)
        for number in range(workers):
            work = folder / f"worker-{number}"
            arguments = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
            arguments += ["--webui-port", "0", "--work-dir", str(work), master]
            stack.enter_context(_daemon(folder, "worker.Worker", arguments, f"-{number}"))
        _wait_for(log, "Registering worker", workers)
        yield master


@contextmanager
def _daemon(folder: Path, name: str, arguments: list[str], suffix: str = "") -> Iterator[Path]:
    home = Path(pyspark.__file__).parent
    log = folder / f"{name}{suffix}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(log: Path, text: str, count: int) -> None:
    deadline = time.monotonic() + START_S
    while log.read_text().count(text) < count:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
