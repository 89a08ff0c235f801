"""Provides a real table on SQLite that a real sink fills with small files, and its maintenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from integration.readers import read_with_duckdb
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed, TableView
from headgate.data_plane.batch.writer_task_plan import SourcePlan, plan_of_table
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.runtime.maintenance.table_maintenance import Round
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import (
    CREATED_MS,
    TableDeclaration,
    create_table_if_missing,
)

SINK = SinkName("trips")
COLUMNS = {"topic": "string", "partition": "int", "offset": "long", "day": "int"}
COORDINATES = ("topic", "partition", "offset")

_SINK_FILE = """
name = "trips"
[source]
topics = ["trips"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[catalog]
name = "local"
[catalog.properties]
type = "sql"
uri = "sqlite:///{home}/catalog.sqlite"
warehouse = "file://{home}/warehouse"
[table]
identifier = "db.trips"
[table.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
[spark]
writer = "in-process"
[coordinator]
commit_interval_ms = 200
commit_timeout_ms = 800
[maintenance]
files_min = 4
"""


def text(home: Path, more: str = "") -> str:
    """The sink file; ``more`` belongs to [maintenance]."""
    return _SINK_FILE.format(home=home) + more


def settings(home: Path, more: str = "") -> SinkSettings:
    return parse(text(home, more))


@dataclass
class Maintained:
    """A sink at work: each commit adds a few rows of one day as a file of its own."""

    catalog: Catalog
    settings: SinkSettings
    columns: Mapping[str, str] = field(default_factory=lambda: COLUMNS)
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    next_offset: int = 0

    def __post_init__(self) -> None:
        properties = {CREATED_MS: "0", **self.properties}  # older than any file of a test
        declaration = TableDeclaration(self.columns, self.partition_by, properties)
        create_table_if_missing(self.catalog, "db.trips", declaration)
        self.sink = IcebergTable(self.catalog, "db.trips", SINK, threads=False)
        self.view: TableView = self.sink.read()
        self._commit(())

    @property
    def table(self) -> Table:
        return self.catalog.load_table("db.trips")

    def round(self, **more: Any) -> Round:
        return Round(self.settings, self.catalog, "db.trips", **more)

    def commit(self, rows: int = 5, day: Any = 1, **columns: Any) -> None:
        """Land, on whatever head there is: as a coordinator does it (OUTCOME-2)."""
        self.number += 1
        self._commit(self.write_files(rows, day, **columns), rows)

    def commits(self, count: int, **how: Any) -> None:
        for _ in range(count):
            self.commit(**how)

    def _commit(self, files: tuple[WrittenFile, ...], rows: int = 0) -> None:
        for _ in range(3):
            outcome = self.sink.commit(CommitAttempt(self.view, self._record(rows), files))
            if isinstance(outcome, Landed):
                self.view = outcome.view
                return
            self.view = self.sink.read()
        raise AssertionError(outcome)

    def _record(self, rows: int) -> CommitRecord:
        return CommitRecord(
            sink=SINK,
            group_id="headgate-trips",
            transaction=TransactionId(Epoch(1), TransactionNumber(self.number)),
            coordinator=Sender("member", "life"),
            offsets=Offsets({TopicPartition("trips", 0): self.next_offset}),
            topic_ids={},
            records=rows,
        )

    def write_files(self, rows: int, day: Any = 1, **columns: Any) -> tuple[WrittenFile, ...]:
        """Files of the sink's folder that nobody has committed yet."""
        table = self.table
        first, self.next_offset = self.next_offset, self.next_offset + rows
        values: dict[str, Any] = {
            "topic": ["trips"] * rows,
            "partition": [0] * rows,
            "offset": list(range(first, first + rows)),
            "day": [day] * rows,
            **columns,
        }
        metadata = table.metadata
        start = TableStart("db.trips", "", metadata.current_schema_id, metadata.default_spec_id, "")
        shape = file_shape_of(plan_of_table(table, start, SourcePlan(kafka={})))
        prefix = f"{metadata.location}/data/headgate/{SINK}/1-life/{self.number}"
        files = DataFiles(shape, prefix, 2**27)
        given = pa.table({name: values[name] for name in shape.arrow_schema.names})
        for key, some in shape.partitioner.split(given.cast(shape.arrow_schema)):
            files.write(key, some)
        return files.finish()

    # ---------------------------------------------------------------------------- what is there

    def offsets(self) -> list[int]:
        return sorted(self.table.scan().to_arrow()["offset"].to_pylist())

    def snapshots(self) -> list[str]:
        """The operations of the branch, the newest first."""
        return [
            snapshot.summary.operation.value
            for snapshot in reversed(self.table.metadata.snapshots)
            if snapshot.summary
        ]

    def assert_whole(self) -> None:
        """Every row once, by two readers; and the record is where it was."""
        expected = list(range(self.next_offset))
        assert self.offsets() == expected
        found = read_with_duckdb(self.table.metadata_location)["offset"].to_pylist()
        assert sorted(found) == expected
        record = self.sink.read().record
        assert record is not None
        assert record.offsets == Offsets({TopicPartition("trips", 0): self.next_offset})

    def live(self) -> list[Path]:
        tasks = self.table.scan().plan_files()
        return [Path(task.file.file_path.removeprefix("file://")) for task in tasks]

    def paths(self) -> list[str]:
        return sorted(task.file.file_path for task in self.table.scan().plan_files())

    def nobody_asks_for_retention(self) -> None:
        asked = [name for name in self.table.properties if name.startswith("history.expire.")]
        with self.table.transaction() as transaction:
            transaction.remove_properties(*asked)
        self.view = self.sink.read()

    def stored_files(self) -> set[Path]:
        folder = Path(self.table.metadata.location.removeprefix("file://")) / "data"
        return set(folder.rglob("*.parquet"))

    def rows_in(self, path: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
        return found
