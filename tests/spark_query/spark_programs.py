"""A Spark program with a query, as a process that a test may kill."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from headgate.operations.java import fetch_jars, user_cache_folder

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guides/spark-query.md"
PATIENCE_S = 240
_SPARK_KAFKA = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def page_block(language: str) -> str:
    """The page's only block of this language."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return block


def kafka_source_jars() -> str:
    folder = fetch_jars(
        user_cache_folder() / "spark-sql-kafka-4.1.1", _SPARK_KAFKA, transitive=False
    )
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


class Programs:
    """The page's example in a folder, on a topic of a broker; ``run`` starts it."""

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        self.folder = folder
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

    def run(self, before: str = "", query: str = "") -> subprocess.CompletedProcess[str]:
        """Run the query until it has read everything, or ends otherwise. ``before``: code that is
        run first, in the same process."""
        program = self.folder / "trips.py"
        program.write_text(f"{before}\n{query or self.query}")
        conf = {
            "spark.jars": kafka_source_jars(),
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
            "spark.log.level": "ERROR",
        }
        options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": " ".join(["--master local[2]", *options, "pyspark-shell"]),
        }
        with subprocess.Popen(
            [sys.executable, program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=PATIENCE_S)
            finally:  # the JVM outlives a driver that was killed
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(program, process.returncode, output)


def dies(where: str, batch: int) -> str:
    """Code that kills the driver in this batch: before the write, before or after the commit."""
    return f"""
import os, signal
from headgate.spark import batches, query_table
def dying(owner, name, number, *, after=False):
    kept = getattr(owner, name)
    def instead(*given, **named):
        planned = next((each for each in given if hasattr(each, "proposed")), None)
        result = kept(*given, **named) if after else None
        if planned.proposed.number == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result if after else kept(*given, **named)
    setattr(owner, name, instead)
dying(*{{"before the write": (batches, "write_frame"),
         "before the commit": (query_table.QueryTable, "commit"),
         "after the commit": (query_table.QueryTable, "commit")}}[{json.dumps(where)}],
      {batch}, after={where == "after the commit"})
"""
