"""Somebody else who writes to a sink's Hudi table, eagerly and by Hudi's Spark datasource.

Each write cleans and archives as much as Hudi lets it; by chance it compacts or clusters as well.
A process of its own: ``python -m hudi_tables.foreign``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hudi_tables.world import ARCHIVED_SOON, session

from headgate.tables.hudi.jvm import error_text
from headgate.tables.hudi.write_configuration import TYPE

WRITES_MAX = 60
"""So many at the end archive whatever was there before them, or something holds it up."""

_TESTS = Path(__file__).parent.parent
_ROWS_MAX = 40
_COLUMNS = "id long, zone string, kafka_topic string, kafka_partition int, kafka_offset long"


@dataclass(frozen=True, slots=True)
class Job:
    """What the process is told. ``properties``: the table's, with its lock; ``key``: or nothing."""

    home: str
    location: str
    jar: str
    properties: Mapping[str, str]
    key: str
    seed: int


class Foreign:
    """The process from outside; its rows have ids below 0."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._home = Path(job.home)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Go on behind whatever it has written before."""
        with (self._home / "foreign.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hudi_tables.foreign", json.dumps(asdict(self._job))],
                env={**os.environ, "PYTHONPATH": str(_TESTS)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "started"
        return self._process.pid

    def kill(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def archive_all(self, bound_s: float) -> None:
        """Let it write until all is archived that is there now, and end."""
        (self._home / "enough").touch()
        if self._process is None or self._process.poll() is not None:
            self.start()
        assert self._process is not None
        assert self._process.wait(bound_s) == 0, self.error_text()[-4000:]

    def error_text(self) -> str:
        return (self._home / "foreign.log").read_text()

    def refuse_other_rows(self, found: Counter[tuple[int, str]]) -> None:
        """Fail unless each write is there once, or (when nobody knows its end) not at all."""
        known: set[tuple[int, str]] = set()
        for rows, ends in _writes(_journal(self._job)):
            there = {found[row] for row in rows}
            assert there == {1} or (there == {0} and not ends), (rows[:3], there, ends)
            known.update(rows)
        assert set(found) <= known, set(found) - known


def _journal(job: Job) -> Path:
    return Path(job.home) / "foreign.jsonl"


def _writes(journal: Path) -> Iterator[tuple[list[tuple[int, str]], bool]]:
    """The rows of each write, and whether Hudi said that it was made."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    told = [json.loads(line) for line in lines]
    ended = {each["ended"] for each in told if "ended" in each}
    for each in told:
        if "began" in each:
            yield [(number, zone) for number, zone in each["rows"]], each["began"] in ended


# -------------------------------------------------------------------------------------- the process


class Writer:
    """One process' part of the job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._spark = session(job.jar)
        self._began = sum(1 for _ in _writes(_journal(job)))
        self._chance = random.Random(job.seed + 1_000 * self._began)

    def work(self) -> None:
        enough = Path(self._job.home) / "enough"
        while not enough.exists():
            self._try_to_write(self._services())
        newest = max(_instants(self._job.location))
        for _ in range(WRITES_MAX):
            self._try_to_write(self._all_services)
            if min(_instants(self._job.location)) > newest:
                return
        raise SystemExit(f"not archived: {sorted(_instants(self._job.location))}")

    def _services(self) -> Mapping[str, str]:
        return self._chance.choice(({}, self._compacted, _CLUSTERED, self._all_services))

    @property
    def _compacted(self) -> Mapping[str, str]:
        """Nothing of a table that has no logs: Hudi refuses it there."""
        return _COMPACTED if self._job.properties[TYPE] == "MERGE_ON_READ" else {}

    @property
    def _all_services(self) -> Mapping[str, str]:
        return {**self._compacted, **_CLUSTERED}

    def _try_to_write(self, services: Mapping[str, str]) -> None:
        """Somebody was quicker, or the lock was not to be had: then the next write is another."""
        operations = ("insert", "upsert") if self._job.key else ("insert", "bulk_insert")
        operation = self._chance.choice(operations)
        number, count = self._began, self._chance.randrange(1, _ROWS_MAX)
        self._began += 1
        rows = [(-(number * _ROWS_MAX + n + 1), self._chance.choice("abc")) for n in range(count)]
        self._note({"began": number, "operation": operation, "rows": rows})
        try:
            self._write(operation, rows, services)
        except Exception as error:  # noqa: BLE001 - whatever it is, the rows may be there
            print(f"{number}: {error_text(error)}", flush=True)
        else:
            self._note({"ended": number})

    def _write(
        self, operation: str, rows: Sequence[tuple[int, str]], services: Mapping[str, str]
    ) -> None:
        options = {
            **self._job.properties,
            **_AMONG_OTHERS,
            **ARCHIVED_SOON,
            **services,
            **(_by_key(self._job.key) if self._job.key else _BY_ZONE),
            "hoodie.table.name": "trips",
            "hoodie.datasource.write.operation": operation,
            "hoodie.insert.shuffle.parallelism": "1",
            "hoodie.upsert.shuffle.parallelism": "1",
        }
        told = [(number, zone, None, None, None) for number, zone in rows]
        frame = self._spark.createDataFrame(told, _COLUMNS)
        frame.write.format("hudi").options(**options).mode("append").save(self._job.location)

    def _note(self, line: Mapping[str, Any]) -> None:
        with _journal(self._job).open("a") as journal:
            journal.write(json.dumps(line) + "\n")


_AMONG_OTHERS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
}
"""What docs/table-formats/hudi.md asks of others beside the lock; the rest is Hudi's default."""
_COMPACTED = {
    "hoodie.compact.inline": "true",
    "hoodie.compact.inline.max.delta.commits": "2",
}
_CLUSTERED = {
    "hoodie.clustering.inline": "true",
    "hoodie.clustering.inline.max.commits": "2",
    "hoodie.clustering.plan.strategy.sort.columns": "id",
}
_BY_ZONE = {
    "hoodie.datasource.write.partitionpath.field": "zone",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.partitionpath.urlencode": "true",
}


def _by_key(key: str) -> Mapping[str, str]:
    generator = "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
    return {
        "hoodie.datasource.write.recordkey.field": key,
        "hoodie.datasource.write.keygenerator.class": generator,
    }


def _instants(location: str) -> list[str]:
    """Of the active timeline, by when they were requested."""
    timeline = Path(location) / ".hoodie" / "timeline"
    return [path.name[:17] for path in timeline.iterdir() if path.name[:17].isdigit()]


if __name__ == "__main__":
    Writer(Job(**json.loads(sys.argv[1]))).work()
