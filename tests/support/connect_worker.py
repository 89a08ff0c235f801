"""Runs Iceberg's real Kafka Connect sink: a worker in a JVM, which tests kill, stop and wake."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.maven import maven_jars

from headgate.operations.java_installation import java_command
from headgate.operations.local_kafka.broker import find_free_port

RUNTIME, RELEASES = "3.9.2", ("1.11.0", "1.12.0")
_HERE = Path(__file__).parent


class ConnectWorker:
    """One worker with room for one connector, in a folder of its own."""

    def __init__(self, home: Path, bootstrap: str, name: str, release: str = RELEASES[0]) -> None:
        runtime = _HERE / "connect-runtime-pom.xml"
        plugin = _HERE / "connect-iceberg-pom.xml"
        self._jars = maven_jars(f"connect-{RUNTIME}", runtime, **{"kafka.version": RUNTIME})
        sink = maven_jars(f"connect-iceberg-{release}", plugin, **{"iceberg.version": release})
        self.name = name
        self._home = home
        home.mkdir(parents=True, exist_ok=True)
        plugins = home / "plugins"
        plugins.mkdir(exist_ok=True)
        if not (plugins / "iceberg").exists():
            (plugins / "iceberg").symlink_to(sink)
        self._bootstrap = bootstrap
        self.log = home / "connect.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        port = find_free_port()
        self._url = f"http://127.0.0.1:{port}/connectors"
        stored = {
            f"{what}.storage.{key}": value
            for what in ("config", "offset", "status")
            for key, value in (("topic", f"{self.name}-{what}"), ("replication.factor", 1))
        }
        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": f"{self.name}-worker",
            **stored,
            "offset.storage.partitions": 1,
            "status.storage.partitions": 1,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "offset.flush.interval.ms": 500,
            "plugin.path": self._home / "plugins",
            "plugin.discovery": "service_load",
            "listeners": f"http://127.0.0.1:{port}",
            "rest.advertised.host.name": "127.0.0.1",
            "connector.client.config.override.policy": "All",
        }
        self.properties = self._home / "worker.properties"
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = [java_command(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-cp", f"{self._jars}/*"]
        main = ["org.apache.kafka.connect.cli.ConnectDistributed", str(self.properties)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*java, *main], stdout=log, stderr=subprocess.STDOUT, cwd=self._home
            )
        self._await(lambda: self._call(self._url) is not None, "it does not answer")

    def create(self, config: Mapping[str, str]) -> None:
        # PUT may be asked again: a worker that joins its group can answer 409 to what it then does.
        self._call(f"{self._url}/{self.name}/config", config, method="PUT")

    def stop_connector(self) -> None:
        """Ask for a stop in order, and wait until no task is left."""
        self._call(f"{self._url}/{self.name}/stop", method="PUT")
        at = f"{self._url}/{self.name}/status"
        self._await(lambda: not self._call(at)["tasks"], "its tasks do not end")

    def resume_connector(self) -> None:
        self._call(f"{self._url}/{self.name}/resume", method="PUT")

    def pause_process(self) -> None:
        """Stop the JVM where it stands: it wakes with all that it had under way."""
        self._signal(signal.SIGSTOP)

    def wake_process(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _await(self, done: Any, what: str, timeout_s: float = 180) -> None:
        until = time.monotonic() + timeout_s
        while True:
            try:
                if done():
                    return
            except (urllib.error.URLError, OSError):
                pass
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: {self.read_log()[-2000:]}")
            time.sleep(0.2)

    def _call(self, url: str, body: object = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            url, data, {"Content-Type": "application/json"}, method=method
        )
        until_s = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    text = answer.read()
                    return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                # A worker that joins its group answers so, and a busy machine makes that long.
                if error.code != HTTPStatus.CONFLICT or time.monotonic() > until_s:
                    raise
            time.sleep(0.2)


def connector_config(
    topic: str, control: str, catalog: Path, tables: str = "lake.trips"
) -> dict[str, str]:
    """A connector that makes its tables, in a catalog of SQLite with a warehouse beside it."""
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": "2",
        "topics": topic,
        "iceberg.tables": tables,
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.control.topic": control,
        "iceberg.control.commit.interval-ms": "2000",
        "iceberg.control.commit.timeout-ms": "20000",
        "iceberg.control.commit.threads": "1",
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.session.timeout.ms": "10000",
        "iceberg.tables.default-partition-by": "zone",
        "iceberg.kafka.auto.offset.reset": "earliest",
        "iceberg.catalog": "lake",
        "iceberg.catalog.type": "jdbc",
        "iceberg.catalog.uri": f"jdbc:sqlite:file:{catalog}?busy_timeout=60000",
        "iceberg.catalog.jdbc.schema-version": "V1",
        "iceberg.catalog.warehouse": f"file://{catalog.parent}/warehouse",
    }
