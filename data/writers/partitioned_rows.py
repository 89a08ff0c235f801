"""Buffers rows for the files of their table partitions, in bounded memory.

At most ``buffer_bytes`` of rows wait, twice that while some of them are written. When the buffer is
full the partitions with the most rows are written, until half of it is free: however many table
partitions there are, those with few rows do not get a small file each time.
"""

from __future__ import annotations

import pyarrow as pa

from headgate.data.writers.data_files import DataFiles
from headgate.data.writers.partitioning import Partitioner

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

    def take(self, rows: pa.RecordBatch) -> None:
        self._buffer.append(rows)
        self._buffer_bytes += rows.nbytes
        if self._buffer_bytes >= self._buffer_bytes_max:
            crowded, rest = self._partitioner.crowded(self._taken())
            self._write(crowded)
            self._buffer = rest.to_batches()
            self._buffer_bytes = rest.nbytes

    def flush(self) -> None:
        if self._buffer:
            self._write(self._taken())

    def _taken(self) -> pa.Table:
        table = pa.Table.from_batches(self._buffer)
        self._buffer, self._buffer_bytes = [], 0
        return table

    def _write(self, table: pa.Table) -> None:
        for key, rows in self._partitioner.split(table):
            self._files.write(key, rows)
