"""Flink SQL from Kafka into Iceberg, exactly once: one JVM with Flink's mini-cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path

from comparison.job import Job, PipedProcess
from comparison.target import NAME, NAMESPACE, Target
from headgate.operations.demo.java import require_java
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


class Flink:
    """Unbounded, as in production: there the default sink is exact."""

    name = "Flink"

    def start(self, job: Job) -> PipedProcess:
        home = job.target.home
        settings, statements = home / "flink.settings", home / "flink.statements"
        settings.write_text("".join(f"{line}\n" for line in _settings(job, home)))
        statements.write_text("".join(f"{line}\n" for line in _statements(job)))
        jars = [str(folder / "*") for folder in flink_jars()]
        command = [
            require_java(),
            *_MEMORY,
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            *("-cp", os.pathsep.join(jars), str(Path(__file__).with_name("FlinkJob.java"))),
            *(str(settings), str(statements)),
        ]
        return PipedProcess(command, home / "flink.log", os.environ)


def _settings(job: Job, home: Path) -> list[str]:
    local = ("rest.address", "rest.bind-address", "jobmanager.bind-host", "taskmanager.bind-host")
    return [
        "execution.runtime-mode=STREAMING",
        f"parallelism.default={job.cores}",
        f"execution.checkpointing.interval={job.interval_ms} ms",
        "execution.checkpointing.mode=EXACTLY_ONCE",
        "execution.checkpointing.storage=filesystem",
        f"execution.checkpointing.dir={(home / 'checkpoints').as_uri()}",
        *(f"{key}=127.0.0.1" for key in local),
        "rest.port=0",
    ]


def _statements(job: Job) -> list[str]:
    columns = ", ".join(
        f"`{name}` {flink_type(kind)}" for name, kind in job.workload.columns.items()
    )
    source = {
        "connector": "kafka",
        "topic": job.topic,
        "properties.bootstrap.servers": job.bootstrap,
        "properties.group.id": job.run,
        "scan.startup.mode": "earliest-offset",
        "format": "json",
        "json.timestamp-format.standard": "ISO-8601",
    }
    return [
        f"CREATE TEMPORARY TABLE source ({columns}) WITH ({_options(source)})",
        f"CREATE CATALOG lake WITH ({_options(_catalog(job.target))})",
        f"INSERT INTO lake.{NAMESPACE}.{NAME} {job.workload.select('source')}",
    ]


def _catalog(target: Target) -> dict[str, str]:
    return {
        "type": "iceberg",
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:file:{target.database}?busy_timeout=30000",
        "jdbc.schema-version": "V1",
        "warehouse": target.warehouse.as_uri(),
    }


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in options.items())


def flink_type(kind: str) -> str:
    """An Iceberg type's text in Flink's SQL."""
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
    """What commas outside of angle brackets part."""
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
