"""Takes decoded rows through the sink's own function, and its result to one table or to many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from headgate.control_protocol.errors import StopBefore
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.record_numbers import RecordNumbers, bitmap_of
from headgate.data_plane.batch.routed_table import tables_of_plan
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.quarantine.poison_search import BAD_EXCEPTION
from headgate.data_plane.quarantine.rejected_records import RejectedRecords
from headgate.data_plane.transform.result_routing import (
    RejectionReason,
    ResultTables,
    RoutedRows,
    Unmatched,
    WantedRecords,
    reject_records,
)
from headgate.data_plane.transform.user_function import UserFunction
from headgate.data_plane.write.table_outlets import Decoded, Outlets
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import Integers


class TransformedRows:
    """Implements ``TableOutlet`` for decoded rows of a batch, and fills ``outlets`` with others.

    ``left_out`` counts, by place of the batch's ranges, the decoded rows that became none.
    """

    def __init__(
        self, plan: WriterPlan, batch: Batch, *, rejected: RejectedRecords, outlets: Outlets
    ) -> None:
        transform = plan.shaping.transform
        assert transform is not None, "asked only when there is one"
        self._partitions = list(batch.ranges)
        self._numbering = RecordNumbers(batch.ranges)
        of_batch = {at: place for place, at in enumerate(self._partitions)}
        self._places = np.array([of_batch[at] for at in self._numbering.partitions], np.int64)
        self._function = UserFunction(plan, self._numbering)
        self._results = ResultTables(plan, batch, transform.name)
        self._tables = tables_of_plan(plan, batch)
        self._rejected = rejected
        self._outlets = outlets
        self.left_out = np.zeros(len(batch.ranges), np.int64)

    def add_rows(self, decoded: Decoded) -> None:
        """Take rows of a chunk. Raises as ``UserFunction.apply`` and ``rejected``."""
        if not len(decoded.places):
            return
        numbers = self._record_numbers_of(decoded.places, decoded.offsets)
        given = self._function.apply(decoded.rows, numbers)
        self._reject_where_function_raised(decoded, numbers, given.bad)
        filtered = ~given.kept
        filtered[list(given.bad)] = False
        self._rejected.count_filtered(decoded.places[filtered])
        self._count_left_out(decoded.places[~given.kept])
        self._route_and_write_rows(decoded.chunk, given.batches)

    def require_every_table_planned(self) -> None:
        """Raises ``TablesNotPlanned``."""
        self._results.require_every_table_planned()

    def _record_numbers_of(self, places: Integers, offsets: Integers) -> Integers:
        return self._numbering.numbers_of_records(self._partitions, places, offsets)

    def _count_left_out(self, places: Integers) -> None:
        self.left_out += np.bincount(places, minlength=len(self._partitions))

    def _reject_where_function_raised(
        self, decoded: Decoded, numbers: Integers, bad: Mapping[int, str]
    ) -> None:
        if not bad:
            return
        chunk = decoded.chunk
        rows = {int(numbers[row]): reason for row, reason in bad.items()}
        found = self._record_numbers_of(chunk.places, chunk.offsets)
        there = np.flatnonzero(np.isin(found, list(rows))).tolist()
        reasons = {row: rows[int(found[row])] for row in there}
        self._rejected.reject_bad(chunk, reasons, BAD_EXCEPTION)

    def _route_and_write_rows(self, chunk: Chunk, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows to their tables; once a record stops the sink, look for others (BATCH-2)."""
        unmatched: dict[RejectionReason, BitMap64] = {}
        for some in self._route_batches_noting_stops(batches):
            if isinstance(some, Unmatched):
                found = bitmap_of(pa.array(some.numbers))
                unmatched[some.why] = unmatched.get(some.why, BitMap64()) | found
            elif not self._rejected.has_stopping_record:
                routed = self._tables[some.table]
                assert routed.plan is not None, "its rows are of its schema"
                outlet = self._outlets.get_or_open_outlet(routed, routed.plan)
                places, offsets = self._places_and_offsets_of(some.numbers)
                outlet.add_rows(Decoded(some.numbered.rows, places, offsets, chunk))
                self._outlets.flush_largest_until_within_limit()
        if unmatched:
            self._reject_unmatched(chunk, unmatched)

    def _places_and_offsets_of(self, numbers: Integers) -> tuple[Integers, Integers]:
        sorted_places, offsets = self._numbering.locate_records(numbers)
        return self._places[sorted_places], offsets

    def _route_batches_noting_stops(
        self, batches: Sequence[pa.RecordBatch]
    ) -> Iterator[RoutedRows]:
        for batch in batches:
            try:
                yield from self._results.route_batch(batch)
            except StopBefore as error:
                self._rejected.note_stop(error)

    def _reject_unmatched(
        self, chunk: Chunk, unmatched: Mapping[RejectionReason, BitMap64]
    ) -> None:
        wanted = WantedRecords(unmatched)
        found = self._record_numbers_of(chunk.places, chunk.offsets)
        for why, rows in wanted.flags_by_reason(found):
            self._count_left_out(chunk.places[rows])
            reject_records(self._rejected, chunk.filter(rows), why)
