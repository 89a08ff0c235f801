"""Writes the rows of a query's batch in Spark's tasks, with the writers of any other sink.

What a task finds wrong with its rows is a value: Spark would repeat a task that raises.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.errors import HeadgateError, RowsUnfit
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.failure_classification import translate_write_error
from headgate.data_plane.batch.routed_table import table_of_start
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.transform.result_rows import fit_rows
from headgate.data_plane.write.table_outlets import FileOutlets

OUTCOME = "outcome"
OUTCOMES = pa.schema([(OUTCOME, pa.binary())])


@dataclass(frozen=True, slots=True)
class PartWritten:
    """Holds what one task wrote."""

    files: tuple[WrittenFile, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class RowsWriter:
    """Writes a task's rows into files of the table; picklable.

    ``trim``: rows below these offsets are left out (QUERY-6), by the columns of ``places``, which
    are by part of a record.
    """

    plan: WriterPlan
    batch: Batch
    trim: Offsets = field(default_factory=Offsets)
    places: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn rows into one row of ``OUTCOMES``."""
        try:
            outcome: PartWritten | HeadgateError = self.write(batches)
        except RowsUnfit as error:
            outcome = error
        result = pa.array([pickle.dumps(outcome)], pa.binary())
        yield pa.RecordBatch.from_arrays([result], schema=OUTCOMES)

    def write(self, batches: Iterable[pa.RecordBatch]) -> PartWritten:
        """Write the rows. Raises ``RowsUnfit``, ``WriteFailed``; then no file is left."""
        files, rows = FileOutlets(self.batch), 0
        table = files.outlet_of(table_of_start(self.plan, self.batch), self.plan)
        schema = self.plan.shape.arrow_schema()
        try:
            for batch in batches:
                fit = fit_table_rows(self._trim_rows(batch), schema)
                table.rows.add_rows(fit)
                rows += fit.num_rows
            finished = files.finish()
        except BaseException as error:
            files.discard()
            if isinstance(error, HeadgateError) or not isinstance(error, Exception):
                raise
            raise translate_write_error(error, self.batch) from error
        return PartWritten(tuple(f for each in finished.values() for f in each), rows)

    def _trim_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.trim:
            return batch
        partitions, offsets = (batch.column(self.places[part]) for part in ("partition", "offset"))
        if partitions.null_count or offsets.null_count:
            raise RowsUnfit(
                "some rows do not say of which record they are, and the batch begins below the "
                "table's offsets",
                "fill the columns of table.record_columns in the query",
            )
        here = pa.array([False] * batch.num_rows, pa.bool_())
        for at, begin in self.trim.items():
            there = pc.and_(pc.equal(partitions, at.partition), pc.less(offsets, begin))
            if "topic" in self.places:
                there = pc.and_(there, pc.equal(batch.column(self.places["topic"]), at.topic))
            here = pc.or_(here, there)
        return batch.filter(pc.invert(here))


def fit_table_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """QUERY-17: return the rows with the table's columns and types. Raises ``RowsUnfit``."""
    faults = Faults()
    rows = fit_rows(batch, schema, faults)
    if faults.reasons:
        (_, reason), count = min(faults.reasons.items()), len(faults.reasons)
        raise RowsUnfit(
            f"column {reason}" + (f" ({count} rows do not fit)" if count > 1 else ""),
            "cast or fill it in the query, so that it also says what happens to misfits",
        )
    return rows
