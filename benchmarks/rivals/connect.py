"""Runs Iceberg's sink connector in its own Kafka Connect worker, with Kafka's flags for it."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

from comparison.job import Job, LoggedProcess
from comparison.target import CATALOG, IDENTIFIER
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.java_installation import require_java
from headgate.operations.local_kafka.broker import find_free_port
from rivals.jars import connect_jars, connect_plugin_jars

_FLAGS = (
    *("-Xms256m", "-Xmx2g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-Dorg.slf4j.simpleLogger.defaultLogLevel=info",),
)
_CHECK_S = 5.0


class Connect:
    """One worker; it is ready when its REST interface answers, and starts when it gets the sink."""

    name = "Kafka Connect"

    def start(self, job: Job) -> _Worker:
        ensure_topic(job.bootstrap, f"{job.run}-control", partitions=1)
        return _Worker(job)


class _Worker(LoggedProcess):
    def __init__(self, job: Job) -> None:
        self._job = job
        self._checked_s = 0.0
        port = find_free_port()
        self._url = f"http://127.0.0.1:{port}/connectors"
        properties = job.target.home / "worker.properties"
        settings = _worker_settings(job, port)
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        classpath = str(connect_jars() / "*")
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = [require_java(), *_FLAGS, "-cp", classpath, main, str(properties)]
        super().__init__(command, job.target.home / "connect.log", stdout=subprocess.DEVNULL)
        self.await_ready(self._answers)

    def _answers(self) -> bool:
        try:
            self._call(self._url)
        except (urllib.error.URLError, OSError):
            return False
        return True

    def go(self) -> None:
        # A sink's group is named after it: a reused name would continue where the former ended.
        self._call(self._url, {"name": self._job.run, "config": _sink_settings(self._job)})

    def check(self) -> None:
        self.require_alive()
        if time.monotonic() - self._checked_s < _CHECK_S:
            return
        self._checked_s = time.monotonic()
        try:
            tasks = self._call(f"{self._url}/{self._job.run}/status")["tasks"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:  # the worker itself needs a while to hear of it
                return
            raise
        for task in tasks:
            if task["state"] == "FAILED":
                raise SystemExit(f"a task failed: {task.get('trace', '')[:3000]}")

    def _call(self, url: str, payload: object = None) -> Any:
        data = None if payload is None else json.dumps(payload).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=90) as answer:
            return json.load(answer)


def _worker_settings(job: Job, port: int) -> dict[str, object]:
    plugin = connect_plugin_jars(store=job.target.lake.store)
    storage = {
        f"{what}.storage.{key}": value
        for what in ("config", "offset", "status")
        for key, value in (("topic", f"{job.run}-{what}"), ("replication.factor", 1))
    }
    return {
        "bootstrap.servers": job.bootstrap,
        "group.id": f"{job.run}-worker",
        **storage,
        "offset.storage.partitions": 1,
        "status.storage.partitions": 1,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        # A task without records wakes up only so often, and the coordinator waits for it.
        "offset.flush.interval.ms": 1000,
        "plugin.path": plugin.parent,
        "plugin.discovery": "hybrid_warn",
        "listeners": f"http://127.0.0.1:{port}",
        "rest.advertised.host.name": "127.0.0.1",
    }


def _sink_settings(job: Job) -> dict[str, str]:
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": str(job.cores),
        "topics": job.topic,
        "iceberg.tables": IDENTIFIER,
        "iceberg.control.topic": f"{job.run}-control",
        "iceberg.control.commit.interval-ms": str(job.interval_ms),
        "iceberg.control.commit.timeout-ms": "60000",
        "consumer.override.auto.offset.reset": "earliest",
        "iceberg.kafka.auto.offset.reset": "earliest",
        "iceberg.catalog": CATALOG,
        **{f"iceberg.catalog.{key}": value for key, value in job.target.lake.java.items()},
    }
