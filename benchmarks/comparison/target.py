"""Manages the table that one run fills: created before, watched from outside, read back after."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from comparison.lake import Lake
from comparison.workloads import Workload
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

CATALOG = "lake"
NAMESPACE, NAME = "bench", "records"
IDENTIFIER = f"{NAMESPACE}.{NAME}"
_POLL_S = 0.02
_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    # Every metadata file stays, to find out afterwards what was visible when.
    "write.metadata.delete-after-commit.enabled": "false",
    "history.expire.min-snapshots-to-keep": "100000",
}
_TOTALS = ("records", "data-files", "delete-files", "files-size")
_KEYED = {"format-version": "3", "write.upsert.enabled": "true"}  # the latter is Flink's


@dataclass(frozen=True, slots=True)
class Seen:
    """One change of the table's metadata, noticed at ``at_s``; rows that had been added by then."""

    at_s: float
    snapshot_id: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader finds at the end."""

    rows: int
    distinct: int
    files: int
    snapshots: int
    bytes: int


class Target:
    """One table, which every sink here can commit to; a former one of the same lake goes."""

    def __init__(self, home: Path, workload: Workload, lake: Lake) -> None:
        self.home = home
        self.lake = lake
        with self._catalog() as catalog:
            if catalog.table_exists(IDENTIFIER):
                catalog.drop_table(IDENTIFIER)
            declared = TableDeclaration(
                workload.table_columns,
                properties=_PROPERTIES | (_KEYED if workload.key else {}),
                key=workload.key,
            )
            create_table_if_missing(catalog, IDENTIFIER, declared)

    @contextmanager
    def _catalog(self) -> Iterator[Catalog]:
        with closing(load_catalog(CATALOG, self.lake.properties)) as catalog:
            yield catalog

    @contextmanager
    def table(self) -> Iterator[Table]:
        with self._catalog() as catalog:
            yield catalog.load_table(IDENTIFIER)

    def metadata_location(self) -> str:
        return metadata_location(self.lake.database, NAME)

    def found(self) -> Found:
        with self.table() as table:
            files = [task.file for task in table.scan().plan_files()]
            ids = table.scan(selected_fields=("id",)).to_arrow()["id"]
            snapshots = sum(_added(s.summary) > 0 for s in table.snapshots())
        return Found(
            rows=len(ids),
            distinct=pc.count_distinct(ids).as_py(),
            files=len(files),
            snapshots=snapshots,
            bytes=sum(file.file_size_in_bytes for file in files),
        )

    def counted(self) -> Found:
        """Do as ``found`` without reading rows, for a table whose rows may be dead."""
        with self.table() as table:
            snapshots = [s.summary for s in table.snapshots() if _added(s.summary)]
        told = {name: int(snapshots[-1].get(f"total-{name}") or 0) for name in _TOTALS}
        files = told["data-files"] + told["delete-files"]
        return Found(told["records"], 0, files, len(snapshots), told["files-size"])

    def commits(self, seen: list[Seen]) -> Iterator[tuple[float, pa.Array]]:
        """Yield, for each commit, when it was noticed, and the column ``id`` of its rows."""
        known: set[str] = set()
        with self.table() as table:
            for look in seen:
                if look.snapshot_id is None:
                    continue
                tasks = table.scan(snapshot_id=look.snapshot_id).plan_files()
                added = [t.file.file_path for t in tasks if t.file.file_path not in known]
                known.update(added)
                for path in added:
                    rows = pq.read_table(
                        self.lake.path(path), columns=["id"], filesystem=self.lake.files
                    )
                    yield look.at_s, rows["id"].combine_chunks()


def metadata_location(database: Path, table: str) -> str:
    """Ask the database itself, which is cheap enough for many times a second."""
    query = "select metadata_location from iceberg_tables where table_name = ?"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as db:
        (location,) = db.execute(query, (table,)).fetchone()
    return str(location)


def _added(summary: object) -> int:
    return int(summary.get("added-records") or 0) if summary else 0  # type: ignore[attr-defined]


class TableWatch:
    """Notes every change of the table, from a thread of its own, until closed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.seen: list[Seen] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        last = ""
        while not self._ended.wait(_POLL_S):
            location = self._target.metadata_location()
            if location != last:
                at_s, last = time.time(), location
                self.seen.append(_seen(at_s, json.loads(self._target.lake.read(location))))

    @property
    def rows(self) -> int:
        return self.seen[-1].rows if self.seen else 0

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def _seen(at_s: float, metadata: dict[str, object]) -> Seen:
    snapshots = metadata.get("snapshots") or []
    assert isinstance(snapshots, list)
    current = metadata.get("current-snapshot-id") if snapshots else None
    return Seen(at_s, current, sum(_added(snapshot["summary"]) for snapshot in snapshots))
