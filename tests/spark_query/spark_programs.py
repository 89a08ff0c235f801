"""A Spark program with a query, as a process that a test may kill."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from headgate.operations.java_installation import ensure_jars, user_cache_folder

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guides/spark-query.md"
PATIENCE_S = 240
_KAFKA_SOURCES = {
    "3.5": ("2.12", "3.5.7", "3.4.1", "2.11.1"),
    "4.1": ("2.13", "4.1.1", "3.9.1", "2.12.1"),
}
"""By Spark: of Scala, of its Kafka source, and what that needs of Kafka's client and its pool."""
_OLDER = {"3.5": ("pyspark==3.5.8", "py4j==0.10.9.7")}


def page_block(language: str) -> str:
    """The page's only block of this language."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return block


def kafka_source_jars(spark: str = "4.1") -> str:
    scala, source, client, pool = _KAFKA_SOURCES[spark]
    jars = (
        f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{source}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_{scala}:{source}",
        f"org.apache.kafka:kafka-clients:{client}",
        f"org.apache.commons:commons-pool2:{pool}",
    )
    folder = ensure_jars(user_cache_folder() / f"spark-sql-kafka-{source}", jars, transitive=False)
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def pyspark_of(spark: str) -> list[str]:
    """Where Python finds an older PySpark than that of this environment, installed once."""
    if spark not in _OLDER:
        return []
    folder = user_cache_folder() / _OLDER[spark][0].replace("==", "-")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            subprocess.run([*command, "--target", f"{draft}/made", *_OLDER[spark]], check=True)
            Path(draft, "made").rename(folder)
    return [str(folder)]


def submit_options(spark: str, conf: Mapping[str, str]) -> list[str]:
    """What spark-submit is told, here and there."""
    every = {
        "spark.jars": kafka_source_jars(spark),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        **conf,
    }
    return [word for key, value in every.items() for word in ("--conf", f"{key}={value}")]


def environment_of(spark: str) -> dict[str, str]:
    """The environment of a process that is to find this PySpark."""
    known = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join([*pyspark_of(spark), *known])
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}


class Programs:
    """The page's example in a folder, on a topic of a broker; ``run`` starts it."""

    def __init__(self, folder: Path, bootstrap: str, topic: str, *, spark: str = "4.1") -> None:
        self.folder, self._spark = folder, spark
        self.master = "local[2]"
        self.remote = ""
        self.conf: Mapping[str, str] = {}
        self._changes = {
            "localhost:9092": bootstrap,
            "/tmp/lake": str(folder),
            'topics = ["trips"]': f'topics = ["{topic}"]',
            '"subscribe", "trips"': f'"subscribe", "{topic}"',
            '"trips.toml"': f'"{folder / "trips.toml"}"',
            "200_000": "500",
            "query.awaitTermination()": "query.processAllAvailable()\nquery.stop()",
        }
        self.sink_file = folder / "trips.toml"
        self.sink_file.write_text(self._here(page_block("toml")))
        self.query = self._here(page_block("python"))
        self.checkpoint = folder / "checkpoint"

    def _here(self, text: str) -> str:
        for there, here in self._changes.items():
            text = text.replace(there, here)
        return text

    def run(
        self, before: str = "", query: str = "", *, name: str = "trips.py"
    ) -> subprocess.CompletedProcess[str]:
        """Run the query until it has read everything, or ends otherwise. ``before``: code that is
        run first, in the same process. ``name``: of the program, where two run at once."""
        with self.start(before, query, name=name) as running:
            running.process.wait(PATIENCE_S)
            # A thread of Spark's own may say the last words after the driver has gone.
            return subprocess.CompletedProcess(name, running.process.returncode, running.output)

    @contextlib.contextmanager
    def start(
        self, before: str = "", query: str = "", *, name: str = "trips.py"
    ) -> Iterator[Running]:
        """Start the query; it is killed in the end, with all that it started."""
        program = self.folder / name
        program.write_text(f"{before}\n{query or self.query}")
        environment = environment_of(self._spark)
        if self.remote:
            environment["SPARK_REMOTE"] = self.remote
        else:
            words = [f"--master {self.master}", *submit_options(self._spark, self.conf)]
            environment["PYSPARK_SUBMIT_ARGS"] = " ".join([*words, "pyspark-shell"])
        command = [sys.executable, "-u", str(program)]
        with run_apart(command, program.with_suffix(".log"), environment) as running:
            yield running


@dataclass(frozen=True, slots=True)
class Running:
    """A query's driver, with the JVM and the workers that it started."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, patience_s: float = PATIENCE_S) -> bool:
        """Wait until the driver has said this; return False where it did not, or ended before."""
        deadline = time.monotonic() + patience_s
        while text not in self.output:
            if self.process.poll() is not None or time.monotonic() > deadline:
                return text in self.output
            time.sleep(0.05)
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send it to the driver, and to all that it started: the JVM outlives a driver."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def run_apart(
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str],
    cwd: Path | None = None,
) -> Iterator[Running]:
    """Run it in a session of its own; it is killed in the end, with all that it started."""
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        running = Running(process, log)
        try:
            yield running
        finally:
            running.kill()


def locate_table(folder: Path, name: str) -> str:
    """Return where the table's metadata is now; empty before anybody has made it."""
    with contextlib.closing(sqlite3.connect(folder / "catalog.db")) as catalog:
        try:
            found = catalog.execute(
                "select metadata_location from iceberg_tables"
                " where table_namespace || '.' || table_name = ?",
                (name,),
            ).fetchone()
        except sqlite3.OperationalError:  # nobody has come so far
            return ""
    return str(found[0]) if found else ""


def running_below(pid: int, text: str) -> list[psutil.Process]:
    """The processes that this one started, and those, with such a command."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # some end while they are asked
            if text in " ".join(each.cmdline()):
                found.append(each)
    return found


def dies(where: str, batch: int, victims: str = "os.getpid(),") -> str:
    """Code that kills the driver in this batch: before the write, before or after the commit.

    ``victims``: what is killed instead, in the order given.
    """
    return f"""
import os, signal
from headgate.spark import batches, query_batch_commits
def dying(owner, name, number, *, after=False):
    kept = getattr(owner, name)
    def instead(*given, **named):
        planned = next((each for each in given if hasattr(each, "proposed")), None)
        result = kept(*given, **named) if after else None
        if planned.proposed.number == number:
            for victim in ({victims}):
                os.kill(victim, signal.SIGKILL)
        return result if after else kept(*given, **named)
    setattr(owner, name, instead)
dying(*{{"before the write": (batches, "write_frame"),
         "before the commit": (query_batch_commits.QueryTable, "commit"),
         "after the commit": (query_batch_commits.QueryTable, "commit")}}[{json.dumps(where)}],
      {batch}, after={where == "after the commit"})
"""


def waits_for(done: Path, waits: Path, batch: int) -> str:
    """Code with which the driver stands still before the commit of a batch until ``done`` exists;
    then ``waits`` does."""
    return f"""
import pathlib, time
from headgate.spark import query_batch_commits
def patient(*given, kept=query_batch_commits.QueryTable.commit, **named):
    if given[1].proposed.number >= {batch}:
        pathlib.Path({str(waits)!r}).touch()
        while not pathlib.Path({str(done)!r}).exists():
            time.sleep(0.1)
    return kept(*given, **named)
query_batch_commits.QueryTable.commit = patient
"""
