"""Measures what sinks without records cost in a worker: processor, wake-ups, memory of their own.

    python benchmarks/idle_sinks.py [--sinks 5] [--seconds 120] [--beside PYTHON]

An embedded broker in a temporary folder; sinks of one topic of six partitions each, with a control
topic and a SQLite catalog of their own and a transaction each ten seconds, under ``headgate worker
--folder``. With ``--beside``, the interpreter of another checkout runs as many more in a worker of
its own, at the same time: both meet the same load. Printed per sink are means over the sinks; of
the threads of a name, how many a sink has, what they took, and how often they woke.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars
from headgate.runtime.fleet.linux_process_calls import private_bytes, process_tree

PARTITIONS = 6
STARTS_S, SETTLES_S = 600.0, 30.0
MIB = 1024 * 1024
FILE = """
name = "{name}"
[source]
topics = ["{name}"]
[kafka]
"bootstrap.servers" = "{bootstrap}"
"session.timeout.ms" = 10_000
[control]
topic = "headgate-control-{name}"
[catalog.properties]
type = "sql"
uri = "sqlite:///{home}/{name}.db"
warehouse = "file://{home}/{name}"
[table]
identifier = "city.trips"
create = true
columns = [{{ name = "trip_id", type = "long" }}]
[coordinator]
commit_interval_ms = 10_000
[spark]
writer = "in-process"
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a thread has taken of the processor so far, and how often it has waited."""

    name: str
    cpu_ns: int
    waits: int


def threads_of(pid: int) -> Mapping[int, Taken]:
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            cpu_ns = int((task / "schedstat").read_text().split()[0])
            lines = (task / "status").read_text().splitlines()
            waits = next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
            found[int(task.name)] = Taken((task / "comm").read_text().strip(), cpu_ns, waits)
    return found


def children_of(pid: int) -> list[int]:
    return process_tree(pid)[1:]


class Running:
    """A worker with its sinks."""

    def __init__(self, title: str, python: Path, home: Path) -> None:
        self.title, self._python, self.home = title, python, home
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        with (self.home / "log").open("wb") as log:
            command = [self._python.with_name("headgate"), "worker", "--folder", self.home]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            self._process.terminate()
            self._process.wait()

    def wait_until_coordinated(self) -> None:
        """Return some time after each sink's first START."""
        until_s = time.monotonic() + STARTS_S
        while (self.home / "log").read_text().count('"epoch.began"') < len(self.files()):
            assert time.monotonic() < until_s, (self.home / "log").read_text()
            time.sleep(1.0)
        time.sleep(SETTLES_S)

    def files(self) -> list[Path]:
        return [*self.home.glob("*.toml")]

    def processes(self) -> tuple[int, int, list[int]]:
        """Return the worker, its warm parent, and the sinks."""
        assert self._process is not None
        worker = self._process.pid
        parent = children_of(worker)[0]
        return worker, parent, children_of(parent)

    def snapshot(self) -> Mapping[int, Mapping[int, Taken]]:
        worker, parent, sinks = self.processes()
        return {pid: threads_of(pid) for pid in (worker, parent, *sinks)}


def report(one: Running, before: Mapping[int, Mapping[int, Taken]], seconds: float) -> None:
    after = one.snapshot()
    worker, parent, sinks = one.processes()
    assert after.keys() == before.keys(), (one.home / "log").read_text()
    count = len(sinks)
    cpu: dict[str, float] = defaultdict(float)
    waits: dict[str, float] = defaultdict(float)
    threads: dict[str, float] = defaultdict(float)
    nothing = Taken("", 0, 0)
    for pid in sinks:
        for task, now in after[pid].items():
            was = before[pid].get(task, nothing)
            name = now.name.rstrip("0123456789")
            cpu[name] += (now.cpu_ns - was.cpu_ns) / 1e7 / seconds / count
            waits[name] += (now.waits - was.waits) / seconds / count
            threads[name] += 1 / count

    def percent(pid: int) -> float:
        spent = sum(
            now.cpu_ns - before[pid].get(task, nothing).cpu_ns for task, now in after[pid].items()
        )
        return spent / 1e7 / seconds

    def sockets(pid: int) -> int:
        links = []
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                links.append(str(fd.readlink()))
        return sum(link.startswith("socket:") for link in links)

    own = sorted((private_bytes(pid) or 0) / MIB for pid in sinks)
    each = " ".join(f"{percent(pid):.2f}" for pid in sinks)
    print(
        f"{one.title}: {sum(cpu.values()):.3f} % of a core per sink ({each}), "
        f"{sum(waits.values()):.0f} wake-ups/s, {sum(threads.values()):.0f} threads, "
        f"{sum(map(sockets, sinks)) / count:.0f} sockets, "
        f"own memory {own[0]:.1f} to {own[-1]:.1f} MiB; "
        f"worker {percent(worker):.2f} %, {(private_bytes(worker) or 0) / MIB:.0f} MiB; "
        f"warm parent {(private_bytes(parent) or 0) / MIB:.0f} MiB"
    )
    for name in sorted(cpu, key=lambda name: -cpu[name]):
        print(
            f"    {name:16} {threads[name]:4.1f} threads  {cpu[name]:.3f} %  {waits[name]:5.1f}/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sinks", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--beside", type=Path, help="the interpreter of another checkout")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        kafka = Path(folder, "kafka")
        broker = stack.enter_context(EmbeddedKafka(kafka, ensure_broker_jars()))
        both = [("here", Path(sys.executable))]
        both += [("beside", asked.beside)] if asked.beside else []
        workers = []
        for title, python in both:
            home = Path(folder, title)
            home.mkdir()
            for number in range(asked.sinks):
                name = f"{title}{number}"
                ensure_topic(broker.bootstrap, name, partitions=PARTITIONS)
                text = FILE.format(name=name, bootstrap=broker.bootstrap, home=home)
                (home / f"{name}.toml").write_text(text)
            worker = Running(title, python, home)
            stack.enter_context(worker.running())
            workers.append(worker)
        for worker in workers:
            worker.wait_until_coordinated()
        for _ in range(asked.rounds):
            began_s, before = time.monotonic(), [each.snapshot() for each in workers]
            time.sleep(asked.seconds)
            seconds = time.monotonic() - began_s
            print(f"{seconds:.0f} s at a load of {os.getloadavg()[0]:.1f}")
            for worker, was in zip(workers, before, strict=True):
                report(worker, was, seconds)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
