"""Kills real queries at random moments, from a seed: the table against its source after each.

On the way checkpoints are deleted, restored and copied, two queries run at once, one is stalled,
and `headgate run` takes over and gives back. The same driver runs a second query with what most
people write, a `foreachBatch` that appends: of its checkpoint nothing is ever lost, it is only
killed. Each of both is also killed at its worst moment: its table has a batch that its checkpoint
does not have yet. As a script, ``kills.py --kills 20 --seed 1``; with ``--cluster``, the queries
run on a standalone cluster of three workers, and its executors, their Python workers and its
worker daemons are killed, too; with ``--minutes 30``, seed after seed until so long has passed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from integration.readers import read_with_duckdb
from integration.sink_file import toml
from integration.spark.cluster import StandaloneCluster
from spark_query.spark_programs import (
    PATIENCE_S,
    Programs,
    Running,
    locate_table,
    running_below,
)

from headgate.config.load import load
from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.spark_batch_decision import is_record_of_query
from headgate.operations.audit.audit import audit
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars
from headgate.operations.status.status import read_offsets
from headgate.runtime.sink_tables import open_tables_creating_nothing

PARTITIONS = 2
RECORDS = 3_000
"""So many come in before each kill."""
PER_BATCH = 300
WHILE_IT_RUNS_S = 8.0
_ENDS = ("CONCURRENT_STREAM_LOG_UPDATE", "Python worker exited unexpectedly", "Connection reset")
"""How Spark ends a query whose checkpoint another one has, or whose Python process was killed."""
_STARTED_AGAIN = ("IterableOps.map", "Error while sending a command")
"""How Spark ends a query for nothing: its Kafka source after a repeated batch; Py4J, which now and
then loses the JVM's call to a function in Python (py4j/py4j#313)."""
FILLED, APPENDED = "db.trips", "db.appended"
BETWEEN, BETWEEN_OF_APPEND = "between table and checkpoint", "so for the append"
DRIVER, WORKER, EXECUTOR, DAEMON = "a driver", "a Python worker", "an executor", "a worker daemon"
RUN, TWO, STALLED = "headgate run", "two at once", "two, one stalled"
EVERYWHERE = (DRIVER, DRIVER, WORKER, RUN, BETWEEN, BETWEEN_OF_APPEND, TWO, STALLED)
ON_A_CLUSTER = (*EVERYWHERE, WORKER, EXECUTOR, EXECUTOR, DAEMON, DAEMON)
WORKERS = 3
"""Of a cluster: a driver takes two of them, so that a second one has the third."""
CONF = {"spark.cores.max": "2", "spark.executor.memory": "512m"}

_READY, _MOVES = "the queries run", "a batch is done"
_PROGRAM = f"""
import time
from pyiceberg.catalog.sql import SqlCatalog

lake = SqlCatalog("lake", uri="sqlite:///HERE/catalog.db", warehouse="file://HERE/warehouse")
lake.create_namespace_if_not_exists("db")

def append(frame, number):
    rows = frame.toArrow()
    lake.create_table_if_not_exists("{APPENDED}", schema=rows.schema).append(rows)

def starts_appends():
    writer = trips.writeStream.option("checkpointLocation", "HERE/appends")
    return writer.foreachBatch(append).start()

def starts_query():
    return QUERY

starts = [starts_query, starts_appends][:COUNT]
running = [start() for start in starts]
print({_READY!r}, flush=True)
moves = False

def again(number):
    error = running[number].exception()
    if error is None or not any(each in str(error) for each in {_STARTED_AGAIN!r}):
        raise SystemExit(str(error))
    running[number] = starts[number]()

while not ENDS:
    for number, query in enumerate(running):
        if not query.isActive:
            again(number)
        elif not moves and query.lastProgress and query.lastProgress["numInputRows"]:
            moves = True
            print({_MOVES!r}, flush=True)
    time.sleep(0.1)
for number in range(len(running)):
    while True:
        try:
            running[number].processAllAvailable()
            break
        except Exception:
            again(number)
"""
"""The queries, each started again where Spark ends it."""


class Kills:
    """One sequence of kills. ``told`` counts what happened, ``doubled`` the append's rows.

    ``cluster``: where the queries run, instead of within their drivers.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        bootstrap: str,
        topic: str,
        *,
        cluster: StandaloneCluster | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.programs = Programs(folder, bootstrap, topic)
        self._cluster = cluster
        if cluster:
            self.programs.master, self.programs.conf = cluster.master, CONF
        self.told: Counter[str] = Counter()
        self.rows = self.doubled = 0
        self.doubled_after: list[int] = []
        self._folder, self._bootstrap, self._topic = folder, bootstrap, topic
        self._produced = 0
        self._older = folder / "older"

    def play(self, kills: int, until_s: float = math.inf) -> None:
        """Kill so often, at random, but not beyond this moment; see ``play_each``."""
        kinds = ON_A_CLUSTER if self._cluster else EVERYWHERE
        numbers = takewhile(lambda _: time.monotonic() < until_s, range(kills))
        self.play_each(self.random.choice(kinds) for _ in numbers)

    def play_each(self, kinds: Iterable[str]) -> None:
        """Kill in these ways, then let the query end; judge after each. Raises
        ``AssertionError``."""
        for number, kind in enumerate(kinds):
            self._produce()
            what = self._strike(kind)
            rows, doubled = self.judge()
            if doubled > self.doubled:
                self.doubled, self.doubled_after = doubled, [*self.doubled_after, number + 1]
            print(f"kill {number + 1}: {what}; {rows} rows, {doubled} appended twice", flush=True)
        ended = self.programs.run(query=self._query(ends=True))
        assert ended.returncode == 0, ended.stdout[-4000:]
        self.rows, self.doubled = self.judge()
        assert self.rows == self._produced, f"{self.rows} rows of {self._produced} records"
        self._audit()
        # Else those moments were not the worst, and what is proved of the query is nothing.
        assert self.doubled or not self.told[BETWEEN_OF_APPEND], "the append should have doubled"

    # ----------------------------------------------------------------------------------- trouble

    def _strike(self, kind: str) -> str:
        before = self._trouble_checkpoint()
        self._kill_one(kind)
        if kind == RUN:
            self._run_headgate()
        return f"{before}, {kind}"

    def _kill_one(self, kind: str) -> None:
        """Start the queries and kill them."""
        with self.programs.start(query=self._query()) as first:
            if kind in (BETWEEN, BETWEEN_OF_APPEND):
                if self._stop_between(first, kind):
                    self.told[kind] += 1
                self._kill(first)
                return
            self.told[kind] += 1
            if not first.wait_for(_READY if self.random.random() < 0.2 else _MOVES):
                self.told["ended by itself"] += 1
            elif kind in (TWO, STALLED):
                self._run_second(first, stalled=kind == STALLED)
            elif kind in (WORKER, EXECUTOR, DAEMON):
                self._wait_a_while()
                self._kill_below(first, kind)
            self._wait_a_while()
            self._kill(first)

    def _kill(self, running: Running) -> None:
        """Kill a driver. Raises ``AssertionError`` for one that has ended by a fault of ours."""
        self.told["kills"] += running.process.poll() is None
        running.kill()
        self._require_own_end(running)

    def _trouble_checkpoint(self) -> str:
        """Delete, restore or keep the checkpoint; keep a copy of it for later."""
        checkpoint = self.programs.checkpoint
        kinds = ("kept", "kept", "kept", "deleted", "restored")
        what = self.random.choice(kinds) if checkpoint.exists() else "new"
        if what == "restored" and not self._older.exists():
            what = "deleted"
        if what in ("deleted", "restored"):
            shutil.rmtree(checkpoint)
        if what == "restored":
            shutil.copytree(self._older, checkpoint)
        elif what == "kept" and self.random.random() < 0.5:
            shutil.rmtree(self._older, ignore_errors=True)
            shutil.copytree(checkpoint, self._older)
        self.told[f"checkpoint {what}"] += 1
        return f"checkpoint {what}"

    def _run_second(self, first: Running, *, stalled: bool) -> None:
        """Run a second query beside the first one, and kill it; ``stalled``: the first one sleeps
        meanwhile, and wakes up behind it."""
        kind = self.random.choice(("the same", "copied", "its own"))
        self.told[f"second with {kind} checkpoint"] += 1
        checkpoint, other = self.programs.checkpoint, self._folder / "other"
        if stalled:
            self._wait_a_while()
            first.signal(signal.SIGSTOP)
        shutil.rmtree(other, ignore_errors=True)
        if kind == "copied" and checkpoint.exists():
            shutil.copytree(checkpoint, other, ignore_dangling_symlinks=True)
        query = self._query(appends=False)
        if kind != "the same":
            query = query.replace(f'"{checkpoint}"', f'"{other}"')
        with self.programs.start(query=query, name="second.py") as second:
            # One that sleeps may hold the catalog's lock.
            if second.wait_for(_MOVES, patience_s=40 if stalled else PATIENCE_S):
                self._wait_a_while()
            if self.random.random() < 0.5:
                first.signal(signal.SIGCONT)
                self._wait_a_while()
            self._kill(second)
        first.signal(signal.SIGCONT)

    def _stop_between(self, running: Running, which: str) -> bool:
        """Stop the driver where the table has a batch that the checkpoint does not have, and return
        True; False where the driver ended, or has done all without being caught there."""
        appends = which == BETWEEN_OF_APPEND
        name = APPENDED if appends else FILLED
        checkpoint = self._folder / "appends" if appends else self.programs.checkpoint
        if not running.wait_for(_READY):
            return False
        known = _done_batches(checkpoint), locate_table(self._folder, name)
        deadline_s = time.monotonic() + PATIENCE_S / 4
        while running.process.poll() is None and time.monotonic() < deadline_s:
            done = _done_batches(checkpoint)
            here = locate_table(self._folder, name)
            if done == known[0] and here != known[1] and _has_new_rows(here):
                running.signal(signal.SIGSTOP)
                if _done_batches(checkpoint) == done:
                    return True
                self.told["not caught in between"] += 1
                running.signal(signal.SIGCONT)
            known = done, here
            time.sleep(0.001)
        return False

    def _kill_below(self, running: Running, kind: str) -> None:
        """Kill a process that writes rows, or what it runs in: Spark has its tasks again elsewhere,
        and without a cluster fails the batch."""
        if kind == DAEMON:
            assert self._cluster, "a worker daemon is one of a cluster"
            self._cluster.replace_worker(self.random.randrange(WORKERS))
            self.told["kills"] += 1
            return
        above = os.getpid() if self._cluster else running.process.pid
        name = "CoarseGrainedExecutorBackend" if kind == EXECUTOR else "pyspark.daemon"
        if found := running_below(above, name):
            self.random.choice(found).kill()
            self.told["kills"] += 1

    def _run_headgate(self) -> None:
        """Let ``headgate run`` take over, and in half of the cases be killed itself; on a cluster
        its rows are in half of the cases written there."""
        run = self._folder / "run.toml"
        writer: Mapping[str, Any] = {"writer": "in-process"}
        if self._cluster and self.random.random() < 0.5:
            self.told["headgate run on the cluster"] += 1
            conf = {**CONF, "spark.driver.host": "127.0.0.1"}
            writer = {"writer": "spark", "master": self._cluster.master, "conf": conf}
        run.write_text(self.programs.sink_file.read_text() + toml({"spark": writer}))
        program = "from headgate.operations.cli.main import main; main()"
        command = [sys.executable, "-c", program, "run", str(run), "--until-latest"]
        log = self._folder / "run.log"
        with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            if self.random.random() < 0.5:
                time.sleep(self.random.uniform(2, WHILE_IT_RUNS_S))
                if process.poll() is None:
                    self.told["headgate run killed"] += 1
                    self.told["kills"] += 1
                process.kill()
            else:
                assert process.wait(PATIENCE_S) == 0, log.read_text()[-4000:]

    def _wait_a_while(self) -> None:
        time.sleep(self.random.uniform(0, WHILE_IT_RUNS_S))

    def _require_own_end(self, running: Running) -> None:
        """Raise ``AssertionError`` for a query that ended by a fault of ours."""
        output = running.output
        for name in ("HG-270", "HG-271", "HG-272"):
            self.told[name] += name in output
        ends = (*_ENDS, "HG-270", "HG-271", "HG-272")
        began, code = _READY in output, running.process.returncode
        assert code == -signal.SIGKILL or (began and any(end in output for end in ends)), (
            code,
            output[-6000:],
        )

    # ------------------------------------------------------------------------------ the programs

    def _query(self, *, appends: bool = True, ends: bool = False) -> str:
        query = self.programs.query.replace("500)", f"{RECORDS if ends else PER_BATCH})")
        if self._cluster and self.random.random() < 0.5:
            # Then rows go from one executor to another, and are computed again if it was killed.
            self.told["driver with a shuffle"] += 1
            query = query.replace("write(trips, ", "write(trips.repartition(3), ")
        text, _, start = query.partition("query = ")
        program = _PROGRAM.replace("HERE", str(self._folder)).replace("ENDS", str(ends))
        program = program.replace("COUNT", "2" if appends else "1")
        return text + program.replace("QUERY", start.partition("\n")[0])

    def _produce(self) -> None:
        # With its retries in order: each record is in the topic once.
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True})
        for number in range(self._produced, self._produced + RECORDS):
            value = json.dumps({"id": number, "city": f"c{number % 7}"})
            producer.produce(self._topic, value, partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        self._produced += RECORDS

    # ---------------------------------------------------------------------------------- judgement

    def _audit(self) -> None:
        """Ask the product's own audit as well, and count who took over from whom."""
        settings = load(self.programs.sink_file)
        assert audit(settings).findings == ()
        with open_tables_creating_nothing(settings) as tables:
            commits = tables.reader.history().commits
        for before, after in pairwise(each.record for each in commits):
            if before.coordinator != after.coordinator:
                ways = tuple(
                    "query" if is_record_of_query(each) else "run" for each in (before, after)
                )
                self.told["takeovers: {} by {}".format(*ways)] += 1

    def judge(self) -> tuple[int, int]:
        """By a reader that is not ours: each record up to the stored offsets is there once.

        Return how many, and how many rows the append has twice.
        """
        appended = self._read(APPENDED)
        doubled = len(appended) - len(set(appended))
        try:
            stored = read_offsets(load(self.programs.sink_file)).partitions
        except TableMissing:
            return 0, doubled
        ends = {at.partition: at.next_offset or 0 for at in stored if at.topic == self._topic}
        rows = self._read(FILLED)
        twice = [row for row, times in Counter(rows).items() if times > 1]
        assert not twice, f"{len(twice)} rows are there twice, as {twice[:3]}"
        wanted = {row for row in self._read_source() if row[2] < ends.get(row[1], 0)}
        lost = sorted(wanted - set(rows))
        assert not lost, f"{len(lost)} records are lost, as {lost[:3]}"
        assert set(rows) == wanted, "rows beyond the stored offsets"
        return len(rows), doubled

    def _read_source(self) -> set[tuple[int, int, int]]:
        """The rows that the topic's records are to become."""
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "judge"}
        rows: set[tuple[int, int, int]] = set()
        with closing(Consumer(settings)) as consumer:
            consumer.assign(
                [TopicPartition(self._topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)]
            )
            while len(rows) < self._produced:
                each = consumer.poll(60)
                assert each, f"{len(rows)} of {self._produced} records can be read"
                assert not each.error(), each.error()
                rows.add((json.loads(each.value())["id"], each.partition(), each.offset()))
        return rows

    def _read(self, name: str) -> list[tuple[Any, ...]]:
        found = locate_table(self._folder, name)
        if not found:
            return []
        table = read_with_duckdb(found)
        columns = ("id", "kafka_partition", "kafka_offset")
        return list(zip(*(table.column(each).to_pylist() for each in columns), strict=True))


def _done_batches(checkpoint: Path) -> set[str]:
    """Return which batches the checkpoint has as done."""
    commits = checkpoint / "commits"
    found = (each.name for each in commits.iterdir()) if commits.exists() else ()
    return {name for name in found if name.isdigit()}


def _has_new_rows(location: str) -> bool:
    """Return whether the newest commit to the table brought rows: a claim brings none."""
    metadata = json.loads(Path(location.removeprefix("file://")).read_text())
    newest = {each["snapshot-id"]: each for each in metadata["snapshots"]}.get(
        metadata.get("current-snapshot-id")
    )
    return bool(newest) and newest["summary"].get("added-records", "0") != "0"


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    with EmbeddedKafka(folder / "kafka", ensure_broker_jars()) as kafka:
        yield kafka.bootstrap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--minutes", type=float, default=0)
    asked = parser.parse_args()
    told: Counter[str] = Counter()
    begun_s = time.monotonic()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="headgate-kills-"))  # stays, where something is wrong
        print(f"in {folder}", flush=True)
        bootstrap = stack.enter_context(_broker(folder))
        cluster = StandaloneCluster(folder, stack) if asked.cluster else None
        if cluster:
            cluster.add_workers(WORKERS)
        for seed in count(asked.seed):
            ensure_topic(bootstrap, f"trips-{seed}", partitions=PARTITIONS)
            (home := folder / str(seed)).mkdir()
            kills = Kills(seed, home, bootstrap, f"trips-{seed}", cluster=cluster)
            print(f"seed {seed}, load {os.getloadavg()[0]:.0f}", flush=True)
            try:
                kills.play(asked.kills, begun_s + 60 * asked.minutes if asked.minutes else math.inf)
            finally:
                told += kills.told + Counter(rows=kills.rows, appended_twice=kills.doubled)
                print(f"{time.monotonic() - begun_s:.0f} s: {dict(sorted(told.items()))}")
                print(f"an append has new rows twice after the kills {kills.doubled_after}")
            shutil.rmtree(home)
            if time.monotonic() - begun_s > 60 * asked.minutes:
                break
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
