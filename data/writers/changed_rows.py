"""Batches of a keyed table: rows into data files, keys of what goes into key files (rule U2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from headgate.control_protocol.errors import HeadgateError, StopBefore
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.key_errors import SourceTruncated
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchWritten
from headgate.data.envelopes.changes import OnTruncate, Tombstones
from headgate.data.envelopes.operations import Operation
from headgate.data.writers.aside import Aside
from headgate.data.writers.change_reading import ChangeReading
from headgate.data.writers.data_files import DataFiles, FileShape, file_shape
from headgate.data.writers.deleted_keys import DeletedKeys
from headgate.data.writers.encodings import refuse_for_keys
from headgate.data.writers.failures import go_on, write_failed
from headgate.data.writers.held_values import held_values
from headgate.data.writers.needs import Evolution
from headgate.data.writers.numbering import firsts
from headgate.data.writers.partitioned_rows import PartitionedRows
from headgate.data.writers.plan import WriterPlan
from headgate.data.writers.sieve import Sieve, others
from headgate.data.writers.singling import read_apart
from headgate.kafka.fetch import Chunk
from headgate.native.loops import Flags, Integers


def write_changes(
    plan: WriterPlan, batch: Batch, chunks: Iterable[Chunk], *, abandoned: Callable[[], bool]
) -> BatchWritten | BatchNeeds:
    """Write the chunks, which hold exactly the batch's ranges. On any error no file is left.

    Raises as ``write_chunks``, and ``SourceTruncated``.
    """
    changes = plan.source.changes
    assert changes is not None, "chosen for it"
    aside = Aside(plan, batch)
    written: _Files | None = None
    try:
        shape = file_shape(plan)
        refuse_for_keys(batch.table.table, plan.table_properties)
        written = _Files(plan, shape, batch)
        delete = changes.tombstones is Tombstones.DELETE
        sieve = Sieve(batch, aside, plan.condemned, tombstones=delete)
        changed = ChangedRows(
            plan,
            batch,
            shape.arrow_schema,
            aside=aside,
            rows=written.rows,
            keys=written.keys,
            evolution=plan.watched_for(batch.table.refused),
        )
        for chunk in chunks:
            changed.take(sieve.sifted(chunk))
            go_on(batch, abandoned)
        aside.require_none()
        if changed.needs:
            aside.discard()
            written.discard()
            return changed.needs.outcome(batch.number)
        quarantined, files = aside.finish(), written.finish()
        results, ignored = sieve.results(changed.records, changed.deleted), changed.ignored()
        return BatchWritten(batch.number, results, files, quarantined, ignored=ignored)
    except BaseException as error:
        aside.discard()
        if written is not None:
            written.discard()
        if isinstance(error, HeadgateError) or not isinstance(error, Exception):
            raise
        raise write_failed(error, batch) from error


class _Files:
    """The data files and the key files of one batch."""

    def __init__(self, plan: WriterPlan, shape: FileShape, batch: Batch) -> None:
        prefix = batch.table.file_prefix
        self._files = DataFiles(shape, prefix, batch.target_file_bytes)
        self.rows = PartitionedRows(shape.partitioner, self._files)
        self.keys = DeletedKeys(plan, shape.io, prefix, list(batch.ranges))

    def finish(self) -> tuple[WrittenFile, ...]:
        self.rows.flush()
        return (*self._files.finish(), *self.keys.finish())

    def discard(self) -> None:
        self._files.discard()
        self.keys.discard()


class ChangedRows:
    """The changes of one keyed table of a batch, on their way into files.

    By place of the batch's ranges: ``records`` became rows, those ``deleted`` are in key files.
    """

    def __init__(
        self,
        plan: WriterPlan,
        batch: Batch,
        schema: pa.Schema,
        *,
        aside: Aside,
        rows: PartitionedRows,
        keys: DeletedKeys,
        evolution: Evolution | None = None,
    ) -> None:
        changes = plan.source.changes
        assert changes is not None, "chosen for it"
        self._changes = changes
        self._aside = aside
        self._rows = rows
        self._keys = keys
        self._partitions = list(batch.ranges)
        self._reading = ChangeReading(plan, batch, schema, evolution)
        self.needs, self.ignored = self._reading.needs, self._reading.ignored
        self._read = held_values(self._reading.read, plan.values)
        self.records = np.zeros(len(batch.ranges), np.int64)
        self.deleted = np.zeros(len(batch.ranges), np.int64)

    def take(self, chunk: Chunk) -> None:
        """Write the rows and keys of sifted records. Raises as ``aside``."""
        try:
            read = read_apart(chunk, self._reading.schema, self._read)
        except StopBefore as error:
            self._aside.stops(error)
            return
        if self.needs:
            return  # nothing of this attempt will count
        for bad, error_class in read.bad:
            self._aside.take(chunk, bad, error_class)
        refused = {row: reason for bad, _ in read.bad for row, reason in bad.items()}
        records = chunk.where(others(chunk, refused)) if refused else chunk
        told = self._reading.operations(read.rows)
        self._refuse_truncated(records, told == Operation.TRUNCATE)
        if self._aside.stopping:
            return  # as little of this one
        upserts, deletes = told == Operation.UPSERT, told == Operation.DELETE
        self._rows.take(self._reading.rows(read.rows, upserts))
        self._keys.take(self._reading.keys(read.rows, deletes), records.where(deletes))
        self.records += self._by_place(records, upserts)
        self.deleted += self._by_place(records, deletes)
        self._aside.passed_over(records.where(told >= Operation.SKIP))

    def _by_place(self, records: Chunk, some: Flags) -> Integers:
        return np.bincount(records.places[some], minlength=len(self._partitions))

    def _refuse_truncated(self, records: Chunk, some: Flags) -> None:
        if self._changes.on_truncate is OnTruncate.FAIL and some.any():
            row = int(np.argmax(some))
            at = self._partitions[records.places[row]]
            first = firsts(self._partitions, records.places[some], records.offsets[some])
            self._aside.stops(
                SourceTruncated(
                    f"{at} offset {records.offsets[row]} says that the source's table was emptied",
                    "empty the sink's table too, if that is wanted; then set "
                    "changes.on_truncate to skip, to continue after this record",
                    first,
                )
            )
