"""The classes that Spark loads at its start, in an archive which the JVMs of all tests share.

To load and verify them is nearly half of what a session's start costs, and tests start dozens. The
archive is made beside the first tests, once for each Java and each Spark; a JVM that starts before
it is there does without.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from support.hive_metastore import pyspark_jars

from headgate.operations.java_installation import java_command, user_cache_folder

SUBMITTED = "SPARK_SUBMIT_OPTS"
"""What Spark's own launcher adds to the command of a driver's JVM, and of no other."""


@cache
def archive() -> Path:
    """Where it is, or will be."""
    return archive_of("spark", pyspark_jars())


def archive_of(what: str, jars: Path) -> Path:
    """Where its classes are: a JVM would refuse those of other jars, or of another Java."""
    java = Path(shutil.which(java_command()) or "java").resolve()
    made_of = [(str(path), path.stat().st_mtime_ns) for path in (java, jars) if path.exists()]
    named = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
    return user_cache_folder() / f"{what}-classes-{named}.jsa"


def share() -> None:
    """Have each session that starts from here on use the archive, if it is there by now."""
    if SUBMITTED not in os.environ and archive().exists():
        os.environ[SUBMITTED] = f"-XX:SharedArchiveFile={archive()}"


@cache
def make_beside() -> subprocess.Popen[bytes] | None:
    """Begin to make it, if there is none, in a process of its own."""
    if archive().exists():
        return None
    nothing = subprocess.DEVNULL
    told = {"stdin": nothing, "stdout": nothing, "stderr": nothing}
    command = [sys.executable, "-m", "support.spark_classes"]
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], **told)


def make() -> None:
    archive().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive().parent) as folder:
        draft = Path(folder) / archive().name
        _start_and_end_spark(f"-XX:ArchiveClassesAtExit={draft}")
        draft.rename(archive())


def _start_and_end_spark(options: str) -> None:
    from pyspark.sql import SparkSession

    os.environ[SUBMITTED] = options
    os.environ["PYSPARK_PYTHON"] = sys.executable
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for key, value in local.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    rows = session.range(100).repartition(2).selectExpr("id", "CAST(id AS STRING) AS text")
    rows.mapInArrow(lambda batches: batches, "id long, text string").collect()
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # its JVM ends, and writes
    gateway.proc.wait()


if __name__ == "__main__":
    make()
