"""A real Iceberg table on SQLite, filled by a sink that may be told to do wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import claim_marker_property, encode_record
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
    tag_name,
)
from headgate.control_protocol.offsets import Offsets

SINK = SinkName("trips")
TOPIC = "trips"
SCHEMA = Schema(
    NestedField(1, "topic", StringType(), required=False),
    NestedField(2, "partition", IntegerType(), required=False),
    NestedField(3, "offset", LongType(), required=False),
)
ARROW = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])

SINK_FILE = """
name = "trips"
[source]
topics = ["{topic}"]
group_id = "headgate-trips"
[control]
topic = "{control}"
[kafka]
"bootstrap.servers" = "{bootstrap}"
[catalog.properties]
type = "sql"
uri = "sqlite:///{home}/catalog.db"
warehouse = "file://{home}/warehouse"
[table]
identifier = "db.trips"
[table.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
[spark]
writer = "in-process"
"""


def sink_file_text(
    home: Path, topic: str = TOPIC, bootstrap: str = "127.0.0.1:1", control: str = "control"
) -> str:
    """By default one whose brokers do not exist."""
    return SINK_FILE.format(home=home, topic=topic, bootstrap=bootstrap, control=control)


def catalog_properties(home: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{home}/catalog.db",
        "warehouse": f"file://{home}/warehouse",
    }


Row = tuple[int, int]
"""A row by its source partition and offset."""


class FilledTable:
    """Commits as a coordinator makes them: data, record and tag. ``offsets``: by partition."""

    def __init__(self, catalog: Catalog, topic: str = TOPIC, topic_id: str = "topic-id-1") -> None:
        catalog.create_namespace("db")
        self.topic = topic
        self.topic_id = TopicId(topic_id)
        self.table: Table = catalog.create_table("db.trips", SCHEMA)
        with self.table.transaction() as transaction:
            transaction.set_properties({claim_marker_property(SINK): "true"})

    def record(
        self, epoch: int, number: int, offsets: Mapping[int, int], records: int = 0, **other: Any
    ) -> CommitRecord:
        values: dict[str, Any] = {
            "group_id": "headgate-trips",
            "coordinator": Sender(f"member-{epoch}", f"life-{epoch}"),
            "topic_ids": {self.topic: self.topic_id},
            **other,
        }
        return CommitRecord(
            sink=SINK,
            transaction=TransactionId(Epoch(epoch), TransactionNumber(number)),
            offsets=Offsets(
                {TopicPartition(self.topic, p): offset for p, offset in offsets.items()}
            ),
            records=records,
            **values,
        )

    def files(self, rows: Sequence[Row]) -> list[Any]:
        if not rows:
            return []
        arrow = pa.Table.from_pylist(
            [{"topic": self.topic, "partition": p, "offset": o} for p, o in rows], schema=ARROW
        )
        return list(_dataframe_to_data_files(self.table.metadata, arrow, self.table.io))

    def append(
        self, files: Sequence[Any], summary: Mapping[str, str] | None = None, branch: str = "main"
    ) -> int:
        """One snapshot with these files; nothing is checked. Returns its id."""
        with self.table.transaction() as transaction:
            update = transaction.update_snapshot(dict(summary or {}), branch=branch)
            with update.fast_append() as snapshot:
                for file in files:
                    snapshot.append_data_file(file)
        head = self.table.metadata.refs[branch].snapshot_id
        assert self.table.metadata.snapshot_by_id(head) is not None
        return head

    def commit(self, record: CommitRecord, files: Sequence[Any] = (), *, tag: bool = True) -> int:
        snapshot_id = self.append(files, encode_record(record))
        if tag:
            self.move_tag(snapshot_id)
        return snapshot_id

    def move_tag(self, snapshot_id: int) -> None:
        name = tag_name(SINK)
        if name in self.table.metadata.refs:
            self.table.manage_snapshots().remove_tag(name).commit()
        self.table.manage_snapshots().create_tag(snapshot_id, name).commit()

    def good_start(self) -> None:
        """A claim and two transactions: ten records of each of two partitions."""
        self.commit(self.record(1, 0, {0: 0, 1: 0}))
        self.write(1, 1, {0: 5, 1: 5}, [(p, o) for p in (0, 1) for o in range(5)])
        self.write(1, 2, {0: 10, 1: 10}, [(p, o) for p in (0, 1) for o in range(5, 10)])

    def write(
        self, epoch: int, number: int, offsets: Mapping[int, int], rows: Sequence[Row], **other: Any
    ) -> int:
        record = self.record(epoch, number, offsets, other.pop("records", len(rows)), **other)
        return self.commit(record, self.files(rows))

    def head_files(self) -> list[Path]:
        return [
            Path(task.file.file_path.removeprefix("file://"))
            for task in self.table.scan().plan_files()
        ]
