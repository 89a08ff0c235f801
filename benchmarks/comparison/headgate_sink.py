"""Runs headgate as a process like in production, with a wait between start-up and work."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from pyiceberg.table import Table

from comparison.job import Job, PipedProcess
from comparison.target import CATALOG, IDENTIFIER
from comparison.workloads import Workload
from headgate.config.load import load
from headgate.native.malloc_settings import ENVIRONMENT
from headgate.runtime.assembly import open_sink
from headgate.tables.iceberg.type_parser import parse_columns

TURN_MS = 50


class Headgate:
    """Runs both roles in one process; writes in-process, or by Spark with ``local[cores]``.

    ``hashed``: the type of the first column of text, which is hashed.
    """

    def __init__(self, writer: str, *, hashed: str = "") -> None:
        self.name = "headgate" if writer == "in-process" else "headgate, Spark"
        self.name += f", hashed to {hashed}" if hashed else ""
        self._writer = writer
        self._hashed = hashed

    def start(self, job: Job) -> PipedProcess:
        if self._hashed:
            with job.target.table() as table:
                _retype(table, _first_text(job.workload), self._hashed)
        sink_file = job.target.home / "sink.toml"
        sink_file.write_text(self._sink_file(job))
        folders = [path for path in sys.path if path.endswith("benchmarks")]
        environment = {
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # like the command line
            **ENVIRONMENT,
            **os.environ,
            "PYTHONPATH": os.pathsep.join(folders),
        }
        command = [sys.executable, "-m", "comparison.headgate_sink", str(sink_file)]
        return PipedProcess(command, job.target.home / "headgate.log", environment)

    def _sink_file(self, job: Job) -> str:
        sections: dict[str, dict[str, object]] = {
            "source": {"topics": [job.topic]},
            "kafka": {"bootstrap.servers": job.bootstrap},
            "control": {"topic": f"{job.run}-control"},
            "catalog": {"name": CATALOG},
            "catalog.properties": dict(job.target.lake.properties),
            "table": {"identifier": IDENTIFIER},
            "format": {"type": job.workload.format},
            "format.options": dict(job.workload.options),
            "coordinator": {"commit_interval_ms": job.interval_ms},
            "spark": {"writer": self._writer},
        }
        if self._writer == "spark":
            sections["spark"]["master"] = f"local[{job.cores}]"
        if job.workload.key:
            sections["table"]["key"] = list(job.workload.key)
            sections["table.record_columns"] = {
                "partition": "kafka_partition",
                "offset": "kafka_offset",
            }
            sections["changes"] = {"envelope": "debezium"}
        if self._hashed:
            text = _first_text(job.workload)
            key = job.target.home / "hash-key"
            key.write_text("k" * 64)
            sections["shape"] = {"hash": [text], "hash_key": f"${{file:{key}}}"}
        if job.workload.derived:
            sections["transform"] = {"sql": job.workload.select("records")}
        lines = [f'name = "{job.run}"']
        for name, section in sections.items():
            lines.append(f"[{name}]")
            lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in section.items()]
        for name, kind in job.workload.columns.items() if job.workload.derived else ():
            lines += ["[[transform.columns]]", f'name = "{name}"', f'type = "{kind}"']
        return "\n".join(lines) + "\n"


def _first_text(workload: Workload) -> str:
    return next(name for name, kind in workload.columns.items() if kind == "string")


def _retype(table: Table, column: str, data_type: str) -> None:
    """Give a column of an empty table another type."""
    (field,) = parse_columns({column: data_type})
    with table.update_schema() as changed:
        changed.delete_column(column)
    with table.update_schema() as changed:
        changed.add_column(column, field.field_type)


def main() -> None:
    """Run the child: ``python -m comparison.headgate_sink SINK.toml``."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with open_sink(load(sys.argv[1])) as sink:
        print("READY", flush=True)
        sys.stdin.readline()
        while not stop.is_set():
            sink.run_once(TURN_MS)
        sink.close()


if __name__ == "__main__":
    main()
