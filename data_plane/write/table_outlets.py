"""Keeps the rows of all tables of a batch for their files, in bounded memory (rule ROUTE-6).

There is one bound for open files, one for waiting rows. When a table's buffer is full, its
partitions with the most rows are written, until half of it is free: however many table partitions
there are, those with few rows do not get a small file each time. A keyed table has key files, too:
what its records delete, for the coordinator (rule KEY-2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import pyarrow as pa
from pyiceberg.io import FileIO

from headgate.control_protocol.events import Destination, WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.routed_table import RoutedTable
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.files.data_files import DataFiles, OpenFiles, file_shape_of
from headgate.data_plane.files.partitioning import Partitioner
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import Integers
from headgate.tables.iceberg.table_creation import require_key_field_ids
from headgate.tables.iceberg.upsert.key_files import (
    OFFSET,
    PARTITION,
    TOPIC,
    key_file_schema,
    write_key_file,
)
from headgate.tables.storage.file_io import delete_quietly

BUFFER_BYTES = 96 * 1024 * 1024


class PartitionedRows:
    """Takes rows of the table's schema, and writes them to ``files`` by table partition."""

    def __init__(
        self, partitioner: Partitioner, files: DataFiles, buffer_bytes: int | None = None
    ) -> None:
        self._files = files
        self._buffer_bytes_max = buffer_bytes or BUFFER_BYTES
        self._partitioner = partitioner
        self._buffer: list[pa.RecordBatch] = []
        self._buffer_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        return self._buffer_bytes

    def add_rows(self, rows: pa.RecordBatch) -> None:
        self._buffer.append(rows)
        self._buffer_bytes += rows.nbytes
        if self._buffer_bytes >= self._buffer_bytes_max:
            crowded, rest = self._partitioner.split_off_largest_partitions(self._take_buffer())
            self._write(crowded)
            self._buffer = rest.to_batches()
            self._buffer_bytes = rest.nbytes

    def flush(self) -> None:
        if self._buffer:
            self._write(self._take_buffer())

    def _take_buffer(self) -> pa.Table:
        table = pa.Table.from_batches(self._buffer)
        self._buffer, self._buffer_bytes = [], 0
        return table

    def _write(self, table: pa.Table) -> None:
        for key, rows in self._partitioner.split(table):
            self._files.write(key, rows)


KEYS_BUFFER_BYTES = 32 * 1024 * 1024


class DeletedKeys:
    """Keys that wait, and the files of those written. ``finish`` or ``discard`` ends it.

    Raises ``KeyUnfit`` where the table has no such key.
    """

    def __init__(
        self, plan: WriterPlan, io: FileIO, prefix: str, partitions: Sequence[TopicPartition]
    ) -> None:
        changes, schema = plan.source.changes, plan.shape.schema()
        assert changes is not None, "only then are there keys"
        self._io = io
        self._prefix = prefix
        topics = "topic" in plan.source.record_columns
        self._schema = key_file_schema(
            schema, require_key_field_ids(schema, changes.key), with_topic=topics
        )
        self._topics = pa.array([at.topic for at in partitions], pa.string())
        self._numbers = pa.array([at.partition for at in partitions], pa.int32())
        self._waiting: list[pa.RecordBatch] = []
        self._paths: list[str] = []
        self._finished: list[WrittenFile] = []

    def add_keys(self, keys: Mapping[str, pa.Array], records: Chunk) -> None:
        """Take the keys that these records delete, by the names of their columns."""
        if not len(records.offsets):
            return
        places = pa.array(records.places)
        self.add_keys_with_places(
            {
                **keys,
                TOPIC: self._topics.take(places),
                PARTITION: self._numbers.take(places),
                OFFSET: pa.array(records.offsets),
            }
        )

    def add_keys_with_places(self, key_file_columns: Mapping[str, pa.Array]) -> None:
        """Take keys with the places of their records, by the names of a key file's columns."""
        columns = [key_file_columns[column.name].cast(column.type) for column in self._schema]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        if self.waiting_bytes >= KEYS_BUFFER_BYTES:
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
        self._paths.append(path)  # before it exists: ``discard`` must know of half a file, too
        rows = pa.Table.from_batches(self._waiting, self._schema)
        self._finished.append(write_key_file(self._io, path, rows))
        self._waiting = []


# ------------------------------------------------------------------------------------------- tables


SecondaryFiles = dict[Destination, tuple[WrittenFile, ...]]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Holds ``rows`` of the schema, and where their records come from, in the same order.

    ``chunk``: the records among which theirs were, as they came.
    """

    rows: pa.RecordBatch
    places: Integers
    offsets: Integers
    chunk: Chunk


class TableOutlet(Protocol):
    """Takes the rows of one table."""

    def add_rows(self, decoded: Decoded) -> None:
        """Take rows, with where their records come from."""


class Outlets(Protocol):
    """Takes the rows of all tables of a batch."""

    def get_or_open_outlet(self, routed: RoutedTable, plan: WriterPlan) -> TableOutlet:
        """Return the table's outlet, opened on first use."""

    def flush_largest_until_within_limit(self) -> None:
        """Write the largest outlets until the waiting rows are within their bound."""

    def finish(self) -> SecondaryFiles:
        """Write what waits; return the files, table by table."""

    def discard(self) -> None:
        """Leave no file behind."""


class TableFiles:
    """Writes the files of one table, of a keyed one also key files; until then rows wait here."""

    def __init__(
        self, routed: RoutedTable, plan: WriterPlan, batch: Batch, pool: OpenFiles
    ) -> None:
        shape = file_shape_of(plan)
        prefix = routed.prefix or f"{plan.shape.data_location}/{batch.folder}"
        self.at = routed.destination
        self._files = DataFiles(shape, prefix, batch.target_file_bytes, pool=pool)
        self.rows = PartitionedRows(shape.partitioner, self._files)
        self.keys: DeletedKeys | None = None
        if plan.source.changes is not None:
            self.keys = DeletedKeys(plan, shape.io, prefix, list(batch.ranges))

    def add_rows(self, decoded: Decoded) -> None:
        self.rows.add_rows(decoded.rows)

    @property
    def waiting_bytes(self) -> int:
        return self.rows.waiting_bytes + (self.keys.waiting_bytes if self.keys else 0)

    def flush(self) -> None:
        """Write what waits."""
        self.rows.flush()
        if self.keys:
            self.keys.flush()

    def finish(self) -> tuple[WrittenFile, ...]:
        """Write what waits; return all files."""
        self.rows.flush()
        return (*self._files.finish(), *(self.keys.finish() if self.keys else ()))

    def discard(self) -> None:
        """Leave no file behind."""
        self._files.discard()
        if self.keys:
            self.keys.discard()


class FileOutlets:
    """Implements ``Outlets`` with files."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._pool = OpenFiles()
        self._open: dict[str, TableFiles] = {}

    def get_or_open_outlet(self, routed: RoutedTable, plan: WriterPlan) -> TableFiles:
        table = self._open.get(routed.name)
        if table is None:
            table = self._open[routed.name] = TableFiles(routed, plan, self._batch, self._pool)
        return table

    def flush_largest_until_within_limit(self) -> None:
        tables = self._open.values()
        while len(tables) > 1 and sum(table.waiting_bytes for table in tables) > BUFFER_BYTES:
            max(tables, key=lambda table: table.waiting_bytes).flush()

    def finish(self) -> SecondaryFiles:
        written: SecondaryFiles = {}
        for _, table in sorted(self._open.items()):
            if files := table.finish():
                written[table.at] = files
        return written

    def discard(self) -> None:
        for table in self._open.values():
            table.discard()
