"""Batches of a keyed table: rows into data files, keys of what goes into key files (rule U2)."""

from __future__ import annotations

import numpy as np

from headgate.control_protocol.errors import StopBefore
from headgate.control_protocol.key_errors import SourceTruncated
from headgate.control_protocol.ports import Batch
from headgate.data.envelopes.changes import OnTruncate
from headgate.data.envelopes.operations import Operation
from headgate.data.writers.aside import Aside
from headgate.data.writers.change_reading import ChangeReading
from headgate.data.writers.data_files import file_shape
from headgate.data.writers.encodings import refuse_for_keys
from headgate.data.writers.held_values import held_values
from headgate.data.writers.many_files import TableFiles
from headgate.data.writers.numbering import firsts
from headgate.data.writers.plan import WriterPlan
from headgate.data.writers.routed_table import RoutedTable
from headgate.data.writers.sieve import Sieve, others
from headgate.data.writers.singling import read_apart
from headgate.kafka.fetch import Chunk
from headgate.native.loops import Flags, Integers


class ChangedRows:
    """The changes of one keyed table of a batch, on their way into files.

    By place of the batch's ranges: ``records`` became rows, those ``deleted`` are in key files.
    """

    def __init__(
        self,
        known: RoutedTable,
        plan: WriterPlan,
        batch: Batch,
        *,
        aside: Aside,
        outlet: TableFiles,
    ) -> None:
        changes = plan.source.changes
        assert changes is not None, "chosen for it"
        assert outlet.keys is not None, "the plan is the same"
        refuse_for_keys(known.name, plan.table_properties)
        self._changes = changes
        self._aside = aside
        self._sieve = Sieve(batch, aside)
        self._rows, self._keys = outlet.rows, outlet.keys
        self._partitions = list(batch.ranges)
        schema = file_shape(plan).arrow_schema
        self._reading = ChangeReading(plan, batch, schema, plan.watched_for(known.refused))
        self.needs, self.ignored = self._reading.needs, self._reading.ignored
        self._read = held_values(self._reading.read, plan.values)
        self.records = np.zeros(len(batch.ranges), np.int64)
        self.deleted = np.zeros(len(batch.ranges), np.int64)

    def take(self, chunk: Chunk, *, in_vain: bool) -> None:
        """Write the rows and keys of sifted records. Raises as ``aside``.

        ``in_vain``: as ``TableReading.take``.
        """
        if in_vain and self.needs is None:
            return
        if disposal := self._changes.tombstones.disposal:
            chunk = self._sieve.without_tombstones(chunk, disposal)
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
