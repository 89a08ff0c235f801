"""Writes the key files of one batch: what its records delete, for the coordinator (rule U2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

import pyarrow as pa
from pyiceberg.io import FileIO

from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.data.writers.plan import WriterPlan
from headgate.kafka.fetch import Chunk
from headgate.tables.iceberg.creation import key_ids
from headgate.tables.iceberg.key_files import OFFSET, PARTITION, TOPIC, key_schema, write_keys
from headgate.tables.stores.files import delete_quietly

BUFFER_BYTES = 32 * 1024 * 1024


class DeletedKeys:
    """Keys that wait, and the files of those written. ``finish`` or ``discard`` ends it.

    Raises ``KeyUnfit`` where the table has no such key.
    """

    def __init__(
        self, plan: WriterPlan, io: FileIO, prefix: str, partitions: Sequence[TopicPartition]
    ) -> None:
        changes, schema = plan.source.changes, plan.schema()
        assert changes is not None, "only then are there keys"
        self._io = io
        self._prefix = prefix
        topics = "topic" in plan.source.record_columns
        self._schema = key_schema(schema, key_ids(schema, changes.key), topics=topics)
        self._topics = pa.array([at.topic for at in partitions], pa.string())
        self._numbers = pa.array([at.partition for at in partitions], pa.int32())
        self._waiting: list[pa.RecordBatch] = []
        self._paths: list[str] = []
        self._finished: list[WrittenFile] = []

    def take(self, keys: Mapping[str, pa.Array], records: Chunk) -> None:
        """Take the keys that these records delete, by the names of their columns."""
        if not len(records.offsets):
            return
        places = pa.array(records.places)
        found = {
            **keys,
            TOPIC: self._topics.take(places),
            PARTITION: self._numbers.take(places),
            OFFSET: pa.array(records.offsets),
        }
        columns = [found[column.name].cast(column.type) for column in self._schema]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        if self.waiting_bytes >= BUFFER_BYTES:
            self.flush()

    @property
    def waiting_bytes(self) -> int:
        return sum(batch.nbytes for batch in self._waiting)

    def finish(self) -> tuple[WrittenFile, ...]:
        """Write what waits; return all files."""
        self.flush()
        return tuple(self._finished)

    def discard(self) -> None:
        """Leave no file behind."""
        delete_quietly(self._io, self._paths)

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        path = f"{self._prefix}/{uuid4()}-keys.parquet"
        self._paths.append(path)
        rows = pa.Table.from_batches(self._waiting, self._schema)
        self._finished.append(write_keys(self._io, path, rows))
        self._waiting = []
