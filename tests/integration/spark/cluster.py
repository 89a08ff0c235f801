"""Spark's own standalone cluster on the loopback device, out of the pip package."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from headgate.operations.local_kafka.broker import find_free_port

START_S = 600


class StandaloneCluster:
    """A master, at ``master``, and workers of one core; a bare ``python`` runs their tasks."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._workers: list[subprocess.Popen[bytes]] = []
        port = find_free_port()
        self.master = f"spark://127.0.0.1:{port}"
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        _, self._log = stack.enter_context(_daemon(folder, "master.Master", arguments))
        _wait_for(self._log, "New state: ALIVE", 1)

    def add_workers(self, count: int) -> None:
        """Start so many, and wait until the master knows them."""
        known = len(self._workers)
        for number in range(known, known + count):
            work = self._folder / f"worker-{number}"
            arguments = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
            arguments += ["--webui-port", "0", "--work-dir", str(work), self.master]
            daemon = _daemon(self._folder, "worker.Worker", arguments, f"-{number}")
            self._workers.append(self._stack.enter_context(daemon)[0])
        _wait_for(self._log, "Registering worker", known + count)

    def executors(self) -> list[int]:
        """Return the processes of executors that run now."""
        above = ",".join(str(each.pid) for each in self._workers)
        command = ["pgrep", "-P", above, "-f", "CoarseGrainedExecutorBackend"]
        return [int(pid) for pid in subprocess.run(command, capture_output=True).stdout.split()]

    def replace_worker(self, number: int) -> None:
        """Kill one that runs, which ends its executors, too, and start another one."""
        running = [each for each in self._workers if each.poll() is None]
        killed = running[number % len(running)]
        killed.kill()
        killed.wait()
        self.add_workers(1)


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
    """Give the master's URL of a cluster with so many workers."""
    with ExitStack() as stack:
        cluster = StandaloneCluster(folder, stack)
        cluster.add_workers(workers)
        yield cluster.master


@contextmanager
def _daemon(
    folder: Path, name: str, arguments: list[str], suffix: str = ""
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
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
            yield process, log
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(log: Path, text: str, count: int) -> None:
    deadline = time.monotonic() + START_S
    while log.read_text().count(text) < count:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
