"""Runs Flink SQL from Kafka into Iceberg, exactly once: one JVM with Flink's mini-cluster."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from comparison.job import Job, PipedProcess
from comparison.target import NAME, NAMESPACE
from headgate.operations.java_installation import require_java
from rivals.jars import flink_jars

_MEMORY = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC")
_OPENED = (
    *(
        "java.lang",
        "java.lang.reflect",
        "java.net",
        "java.io",
        "java.nio",
        "java.text",
        "java.time",
    ),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
    *("java.util.concurrent.locks", "sun.nio.ch"),
)
_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "date": "DATE",
    "timestamp": "TIMESTAMP(6)",
    "timestamptz": "TIMESTAMP_LTZ(6)",
}
_COORDINATES = (
    ", kafka_partition INT METADATA FROM 'partition' VIRTUAL"
    ", kafka_offset BIGINT METADATA FROM 'offset' VIRTUAL"
    ", PRIMARY KEY ({key}) NOT ENFORCED"
)


class Flink:
    """Runs unbounded, as in production, where the default sink is exact."""

    name = "Flink"

    def start(self, job: Job) -> PipedProcess:
        home = job.target.home
        settings, statements = home / "flink.settings", home / "flink.statements"
        settings.write_text(lines(flink_settings(job.cores, job.interval_ms, home)))
        statements.write_text("".join(f"{line}\n" for line in _statements(job)))
        command = flink_command("FlinkJob", settings, statements, store=job.target.lake.store)
        return PipedProcess(command, home / "flink.log", os.environ)


def flink_command(
    program: str, *arguments: Path, classes: Path | None = None, store: str = ""
) -> list[str]:
    """Return the command that starts one of the programs next to this module.

    ``classes``: a folder to compile it into, if its own classes travel with the job. ``store``: the
    lake's object store.
    """
    java, source = require_java(), str(Path(__file__).with_name(f"{program}.java"))
    jars = os.pathsep.join(str(folder / "*") for folder in flink_jars(store=store))
    if classes:
        compiler = str(Path(java).with_name("javac"))
        subprocess.run([compiler, "-cp", jars, "-d", str(classes), source], check=True)
    return [
        java,
        *_MEMORY,
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        *("-cp", f"{jars}{os.pathsep}{classes}" if classes else jars),
        program if classes else source,
        *map(str, arguments),
    ]


def lines(options: Mapping[str, str]) -> str:
    """Return one key=value per line."""
    return "".join(f"{key}={value}\n" for key, value in options.items())


def flink_settings(cores: int, interval_ms: int, home: Path) -> dict[str, str]:
    """Return settings of an exact job, with so many tasks and a checkpoint so often."""
    local = ("rest.address", "rest.bind-address", "jobmanager.bind-host", "taskmanager.bind-host")
    return {
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": str(cores),
        "execution.checkpointing.interval": f"{interval_ms} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": (home / "checkpoints").as_uri(),
        **dict.fromkeys(local, "127.0.0.1"),
        "rest.port": "0",
        # Changes of a key come in order, so no state per key is needed to order them.
        "table.exec.sink.upsert-materialize": "NONE",
    }


def _statements(job: Job) -> list[str]:
    options = {"type": "iceberg", **job.target.lake.java}
    source = _changes(job) if job.workload.key else _rows(job)
    return [
        source,
        f"CREATE CATALOG lake WITH ({_options(options)})",
        f"INSERT INTO lake.{NAMESPACE}.{NAME} {job.workload.select('source')}",
    ]


def _rows(job: Job) -> str:
    return source_table(job.workload.columns, job.topic, job.bootstrap, job.run)


def _changes(job: Job) -> str:
    """Start from where the table's rows end."""
    begins = ";".join(f"partition:{number},offset:{at}" for number, at in enumerate(job.begin))
    return source_table(
        job.workload.columns,
        job.topic,
        job.bootstrap,
        job.run,
        form="debezium-json",
        beside=_COORDINATES.format(key=", ".join(job.workload.key)),
        begin={
            "scan.startup.mode": "specific-offsets",
            "scan.startup.specific-offsets": begins,
        },
    )


def source_table(
    columns: Mapping[str, str],
    topic: str,
    bootstrap: str,
    group: str,
    *,
    form: str = "json",
    beside: str = "",
    begin: Mapping[str, str] | None = None,
) -> str:
    """Return the statement that makes a topic the table ``source``.

    ``beside``: more than its columns.
    """
    typed = ", ".join(f"`{name}` {flink_type(kind)}" for name, kind in columns.items())
    source = {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": bootstrap,
        "properties.group.id": group,
        **(begin or {"scan.startup.mode": "earliest-offset"}),
        "format": form,
        f"{form}.timestamp-format.standard": "ISO-8601",
    }
    return f"CREATE TEMPORARY TABLE source ({typed}{beside}) WITH ({_options(source)})"


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in options.items())


def flink_type(kind: str) -> str:
    """Return an Iceberg type's text in Flink's SQL."""
    nested = re.fullmatch(r"(struct|list|map)<(.*)>", kind)
    if not nested:
        return _TYPES[kind]
    parts = _parts(nested[2])
    if nested[1] == "list":
        return f"ARRAY<{flink_type(parts[0])}>"
    if nested[1] == "map":
        return f"MAP<{flink_type(parts[0])}, {flink_type(parts[1])}>"
    fields = [part.split(":", 1) for part in parts]
    return f"ROW<{', '.join(f'`{name.strip()}` {flink_type(k.strip())}' for name, k in fields)}>"


def _parts(text: str) -> list[str]:
    """Split at the commas outside angle brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
