"""A fleet for tests: workers' processes, commands, and what its topics say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from support.topics import delete_topics

from headgate.config.load import load_worker_file
from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.errors import HeadgateError
from headgate.runtime.fleet.fleet_topics import FleetReader
from headgate.runtime.fleet.fleet_view import FleetView, SinkView
from headgate.runtime.fleet.sink_life import LifeState

HEADGATE = Path(sys.executable).with_name("headgate")
PATIENCE_S = 240.0
KEY = "0123456789abcdef0123456789abcdef"


class Fleet:
    """Workers of one fleet. As a context manager it leaves no process and no topic behind."""

    def __init__(
        self,
        home: Path,
        bootstrap: str,
        name: str,
        *,
        slots: int = 12,
        key: str = "",
        worker: str = "session_timeout_ms = 6000",
    ) -> None:
        self._home, self._bootstrap, self._name = home, bootstrap, name
        self._slots, self._key, self._worker = slots, key, worker
        self.folder = home / "fleet"
        self.folder.mkdir()
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.file = self._worker_file("operator")
        self._reader: FleetReader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.workers.values():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(process.pid).resume()
            process.kill()
            process.wait()
        if self._reader:
            self._reader.close()
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        delete_topics(admin, self._name, f"{self._name}-state")

    def _worker_file(self, worker: str) -> Path:
        path = self._home / f"{worker}.worker.toml"
        key = 'key = "${env:FLEET_KEY}"' if self._key else ""
        path.write_text(f"""
[fleet]
name = "{self._name}"
slots = {self._slots}
{key}
[worker]
name = "{worker}"
{self._worker}
[kafka]
"bootstrap.servers" = "{self._bootstrap}"
""")
        return path

    @property
    def settings(self) -> WorkerSettings:
        os.environ["FLEET_KEY"] = self._key or KEY
        return load_worker_file(self.file)

    def start(self, *names: str, command: Sequence[str | Path] = (HEADGATE, "worker")) -> None:
        for name in names:
            with (self._home / f"{name}.log").open("ab") as log:
                self.workers[name] = subprocess.Popen(
                    [*command, self._worker_file(name)],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "FLEET_KEY": self._key},
                )

    def kill(self, name: str) -> None:
        process = self.workers.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def ask_to_end(self, name: str) -> int:
        process = self.workers.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE_S)

    def command(self, *words: str | Path, code: int = 0) -> str:
        """What ``headgate fleet`` prints, on both streams."""
        ran = subprocess.run(
            [HEADGATE, "fleet", "--fleet", self.file, *words],
            capture_output=True,
            text=True,
            env={**os.environ, "FLEET_KEY": self._key},
            timeout=PATIENCE_S,
        )
        said = ran.stdout + ran.stderr
        assert ran.returncode == code, said + self.logs()
        return said

    def view(self) -> FleetView:
        if self._reader is None:
            self._reader = FleetReader(self.settings)
            self._reader.read_to_end()
        while self._reader.poll_and_took_records(0.05):
            pass
        return self._reader.current_view()

    def read_anew(self) -> None:
        """Follow topics that were created anew."""
        if self._reader:
            self._reader.close()
            self._reader = None

    def wait_until(self, is_so: Callable[[FleetView], bool], what: str) -> FleetView:
        until_s = time.monotonic() + PATIENCE_S
        found = FleetView({}, {})
        while time.monotonic() < until_s:
            with suppress(HeadgateError):
                found = self.view()
                if is_so(found):
                    return found
            for name, process in self.workers.items():
                assert process.poll() is None, f"{name} ended: {self.logs()}"
            time.sleep(0.1)
        raise AssertionError(f"not {what}: {found}\n{self.logs()}")

    def wait_for(self, state: LifeState, *keys: str) -> dict[str, SinkView]:
        """What is seen once these sinks are in this state, where they are placed."""
        found = self.wait_until(
            lambda view: all(key in view.sinks and view.sinks[key].state is state for key in keys),
            f"{keys} {state}",
        )
        return {key: found.sinks[key] for key in keys}

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text()[-4_000:]}" for path in self._home.glob("*.log")
        )


def worker_of(sink: SinkView) -> str:
    assert sink.observed is not None
    return sink.observed.worker


def sinks_of_worker(view: FleetView, worker: str) -> set[str]:
    """The sinks that this worker says it runs, where they are placed."""
    return {key for key, sink in view.sinks.items() if sink.observed and worker_of(sink) == worker}


def process_ids(view: FleetView) -> dict[str, tuple[str, int]]:
    """Each sink's worker, and its process there."""
    return {k: (s.observed.worker, s.observed.pid) for k, s in view.sinks.items() if s.observed}


def running(view: FleetView, keys: Sequence[str]) -> bool:
    return all(key in view.sinks and view.sinks[key].state is LifeState.RUNNING for key in keys)


def produce_raw(
    settings: WorkerSettings, slot: int, key: str, value: bytes | None, *, topic: str = ""
) -> None:
    """Write a record to the fleet's topic, or to another, as somebody with a console would."""
    producer = Producer({"bootstrap.servers": settings.kafka["bootstrap.servers"]})
    producer.produce(topic or settings.fleet.name, value, key.encode(), partition=slot)
    assert producer.flush(30) == 0
