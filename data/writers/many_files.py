"""Files of all tables of one batch: one bound for open files, one for waiting rows (rule R6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headgate.control_protocol.events import Destination, WrittenFile
from headgate.control_protocol.ports import Batch
from headgate.data.writers.data_files import DataFiles, file_shape
from headgate.data.writers.deleted_keys import DeletedKeys
from headgate.data.writers.partitioned_rows import BUFFER_BYTES, PartitionedRows
from headgate.data.writers.plan import WriterPlan
from headgate.data.writers.pools import OpenFiles
from headgate.data.writers.routed_table import RoutedTable
from headgate.kafka.fetch import Chunk

Followed = dict[Destination, tuple[WrittenFile, ...]]


@dataclass(frozen=True, slots=True)
class Decoded:
    """``rows`` of the schema, and the records that they came from, in the same order."""

    rows: pa.RecordBatch
    records: Chunk


class TableOutlet(Protocol):
    """Where the rows of one table go."""

    def take(self, decoded: Decoded) -> None:
        """Take rows, with the records that they came from."""


class Outlets(Protocol):
    """Where the rows of all tables of a batch go."""

    def of(self, known: RoutedTable, plan: WriterPlan) -> TableOutlet:
        """Return the table's outlet, opened on first use."""

    def flush_largest(self) -> None:
        """Write the largest outlets until the waiting rows are within their bound."""

    def finish(self) -> Followed:
        """Write what waits; return the files, table by table."""

    def discard(self) -> None:
        """Leave no file behind."""


class TableFiles:
    """The files of one table, and the rows that wait for them; of a keyed table also keys."""

    def __init__(self, known: RoutedTable, plan: WriterPlan, batch: Batch, pool: OpenFiles) -> None:
        shape = file_shape(plan)
        prefix = known.prefix or f"{plan.data_location}/{batch.folder}"
        self.at = known.at
        self._files = DataFiles(shape, prefix, batch.target_file_bytes, pool=pool)
        self.rows = PartitionedRows(shape.partitioner, self._files)
        self.keys: DeletedKeys | None = None
        if plan.source.changes is not None:
            self.keys = DeletedKeys(plan, shape.io, prefix, list(batch.ranges))

    def take(self, decoded: Decoded) -> None:
        self.rows.take(decoded.rows)

    def take_rows(self, rows: pa.RecordBatch) -> None:
        """Do as ``take``, for rows whose records are noted elsewhere."""
        self.rows.take(rows)

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


class ManyFiles:
    """Implements ``Outlets`` with files."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._pool = OpenFiles()
        self._open: dict[str, TableFiles] = {}

    def of(self, known: RoutedTable, plan: WriterPlan) -> TableFiles:
        table = self._open.get(known.name)
        if table is None:
            table = self._open[known.name] = TableFiles(known, plan, self._batch, self._pool)
        return table

    def flush_largest(self) -> None:
        tables = self._open.values()
        while len(tables) > 1 and sum(table.waiting_bytes for table in tables) > BUFFER_BYTES:
            max(tables, key=lambda table: table.waiting_bytes).flush()

    def finish(self) -> Followed:
        written: Followed = {}
        for _, table in sorted(self._open.items()):
            if files := table.finish():
                written[table.at] = files
        return written

    def discard(self) -> None:
        for table in self._open.values():
            table.discard()
