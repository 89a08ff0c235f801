"""Runs a real Apache Kafka on this machine: one KRaft node as a child process, from jars alone."""

from __future__ import annotations

import base64
import os
import random
import shutil
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.operations.child_process import (
    kill_child_group_and_wait,
    start_child_killed_with_parent,
)
from headgate.operations.java_installation import (
    NAME_ANOTHER,
    Progress,
    ensure_jars,
    java_version,
    require_java,
    translating_folder_errors,
    user_cache_folder,
)
from headgate.runtime.early_signals import stop_set_by_signals

__all__ = [
    "KAFKA_VERSION",
    "EmbeddedKafka",
    "ensure_broker_jars",
    "find_free_port",
    "java_version",
    "node_properties",
    "require_java",
]

KAFKA_VERSION = "4.3.1"
HOST = "127.0.0.1"
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 30

# These ports are below the range that Linux uses for the local end of outgoing connections.
# Otherwise a client that keeps reconnecting while the broker is down could one day connect to
# itself and hold the port.
PORTS = range(20_000, 32_000)


def ensure_broker_jars(cache_dir: Path | None = None, on_progress: Progress | None = None) -> Path:
    """Return the folder with the broker's jars (44 MB), downloaded once per user."""
    return ensure_jars(
        (cache_dir or user_cache_folder()) / f"kafka-{KAFKA_VERSION}",
        # Without a binding for slf4j a failing broker prints nothing.
        [f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36"],
        on_progress=on_progress,
    )


class EmbeddedKafka:
    """One broker with its data under ``home``; it never outlives this process.

    As a context manager it starts and stops. ``kill`` and ``restart`` keep data and port, to
    simulate an outage. ``port`` 0 picks a free one.
    """

    def __init__(self, home: Path, jars: Path, *, port: int = 0, heap: str = "512m") -> None:
        self._home = home.resolve()
        self._jars = jars.resolve()
        self._port = port or find_free_port()
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def log_file(self) -> Path:
        return self._home / "broker.log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Format the storage if needed, start, and wait until requests are answered.

        Raises ``ConfigurationError`` without a suitable Java or a folder that can be written,
        ``Unreachable`` with the end of the broker's log if it does not come up.
        """
        require_java()
        with translating_folder_errors(self._home, NAME_ANOTHER):
            self._home.mkdir(parents=True, exist_ok=True)
            data = self._home / "data"
            if not data.exists():
                self._format_storage()
            config = self._write_configuration(data)
            with self.log_file.open("ab") as log:
                self._process = start_child_killed_with_parent(
                    self._java_command("kafka.Kafka", str(config)), log, self._home
                )
        try:
            self._await_answer(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop in order; has no effect if the broker is not running."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the process like a power cut; has no effect if the broker is not running."""
        process, self._process = self._process, None
        if process is not None:
            kill_child_group_and_wait(process)

    def restart(self) -> None:
        """Stop if running, and start again with the same data on the same port."""
        self.stop()
        self.start()

    def _java_command(self, main: str, *arguments: str) -> list[str]:
        classpath = os.pathsep.join(str(jar) for jar in sorted(self._jars.glob("*.jar")))
        return [
            require_java(),
            *(f"-Xmx{self._heap}", "-XX:+UseSerialGC", "-Djava.awt.headless=true"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",),
            *("-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", classpath, main, *arguments),
        ]

    def _write_configuration(self, log_dir: Path) -> Path:
        properties = node_properties(self.bootstrap, controller_port=find_free_port())
        properties["log.dirs"] = log_dir
        config = self._home / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return config

    def _format_storage(self) -> None:
        """Create the storage that Kafka expects; it appears whole or not at all."""
        draft = self._home / "data.draft"
        shutil.rmtree(draft, ignore_errors=True)
        config = self._write_configuration(draft)
        tool = ("kafka.tools.StorageTool", "format", "-t", _random_cluster_id(), "-c", str(config))
        with self.log_file.open("ab") as log:
            formatted = subprocess.run(
                self._java_command(*tool), stdout=log, stderr=subprocess.STDOUT, check=False
            )
        if formatted.returncode:
            raise Unreachable(
                f"the embedded Kafka's storage was not formatted:\n{self._tail_of_log()}"
            )
        draft.rename(self._home / "data")

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _answers_requests(self._port):
            if process.poll() is not None or time.monotonic() > deadline:
                why = "did not answer in time" if process.poll() is None else "ended at once"
                raise Unreachable(f"the embedded Kafka {why}; its log ends:\n{self._tail_of_log()}")
            time.sleep(0.05)

    def _tail_of_log(self, lines: int = 15) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])


def node_properties(address: str, controller_port: int) -> dict[str, object]:
    """Return the settings of a node that is broker and controller; ``log.dirs`` must be added."""
    controller = f"{HOST}:{controller_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "auto.create.topics.enable": "false",
        "log.retention.ms": -1,
        "log.cleaner.dedupe.buffer.size": 8_388_608,
        "controlled.shutdown.enable": "false",
        **_NO_REPLICAS,
        **_QUICK,
    }


_NO_REPLICAS = {
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
}

# Nobody wants to wait for these: a killed member is noticed, a killed broker's successor is let in,
# and a log is compacted within seconds.
_QUICK = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 1_000,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "log.initial.task.delay.ms": 1_000,
    "log.cleaner.backoff.ms": 500,
    # A lone node need not tell itself twice a second that it is there.
    "metadata.max.idle.interval.ms": 10_000,
}


def _random_cluster_id() -> str:
    """Return a random id in Kafka's spelling; a leading dash would be read as an option."""
    return "h" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


def find_free_port() -> int:
    """Return a port that nobody listens on now; see ``PORTS``."""
    for port in random.sample(PORTS, k=100):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise Unreachable(f"none of 100 ports from {PORTS.start} to {PORTS.stop} is free on {HOST}")


def _answers_requests(port: int) -> bool:
    """Return whether an ApiVersions request is answered: the port accepts long before that."""
    body = struct.pack(">hhih", 18, 0, 1, -1)  # key, version, correlation id, no client id
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


# Runs the embedded broker for people who try headgate out; it is not for production.


def run_until_stopped(
    folder: Path, port: int, say: Callable[[str], None], stop: threading.Event | None = None
) -> None:
    """Run until ``stop``, SIGINT or SIGTERM; a later start finds its data again.

    Raises ``ConfigurationError`` for a folder with other content or that cannot be made, and for a
    port in use, ``Unreachable`` if it fails.
    """
    with translating_folder_errors(folder, NAME_ANOTHER):
        if (
            folder.exists()
            and any(folder.iterdir())
            and not (folder / "server.properties").exists()
        ):
            raise ConfigurationError(
                f"{folder} holds something else", "name a folder that is empty, or not there yet"
            )
        _require_free_port(port)
        folder.mkdir(parents=True, exist_ok=True)
    stop = stop or threading.Event()
    with stop_set_by_signals(stop):
        jars = ensure_broker_jars()
        with EmbeddedKafka(folder, jars, port=port) as broker:
            text = "Kafka answers at {}; its data and log are in {}; Ctrl-C ends it"
            say(text.format(broker.bootstrap, folder))
            stop.wait()
    say("ended; the data stay")


def _require_free_port(port: int) -> None:
    """Refuse a port in use: another broker there would answer in this one's place."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not one that just ended
        try:
            trial.bind((HOST, port))
        except OSError as error:
            raise ConfigurationError(
                f"Kafka cannot listen on {HOST}:{port}: {error.strerror}",
                "end what listens there, or name another port with --port",
            ) from error
