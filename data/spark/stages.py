"""Runs in the tasks of a multi-stage job: read, pack, write.

A record travels as a row of the columns that a transform knows or, once it is a row of the table,
in a packet (``packets``). Failures are values here too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.events import Destination, WrittenFile
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWritten
from headgate.data.spark.packets import PACKET, PLACE, Packing
from headgate.data.spark.tasks import keep_worker_light
from headgate.data.transform.result_rows import RECORD, Numbered, ResultRows, rows_before
from headgate.data.transform.result_tables import Apart
from headgate.data.transform.spark_types import to_spark
from headgate.data.writers.aside import Aside
from headgate.data.writers.data_files import DataFiles, file_shape
from headgate.data.writers.decoding import Decoding
from headgate.data.writers.failures import failed
from headgate.data.writers.numbering import Integers, Numbering, bitmap
from headgate.data.writers.partitioned_rows import PartitionedRows
from headgate.data.writers.plan import WriterPlan
from headgate.data.writers.ranges import chunks_of

TALLY = "_headgate_tally"
OUTCOME = "outcome"

OUTCOMES = pa.schema([(OUTCOME, pa.binary())])

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class ShareRead:
    """What a share's task read: ``outcome`` as if every row had been written, and which records."""

    share: int
    outcome: BatchOutcome
    numbers: BitMap64


@dataclass(frozen=True, slots=True)
class PartWritten:
    """What a task wrote: ``rows`` of the records ``numbers``, in ``files``.

    ``twice``: some of the records for which it got more than one row, if any. With many tables:
    ``followed``, their files; ``unmatched``, records that went to none, by reason.
    """

    files: tuple[WrittenFile, ...]
    rows: int
    numbers: BitMap64
    twice: BitMap64
    followed: Mapping[Destination, tuple[WrittenFile, ...]] = field(default_factory=dict)
    unmatched: Mapping[Apart, BitMap64] = field(default_factory=dict)

    @property
    def every_file(self) -> tuple[WrittenFile, ...]:
        return (*self.files, *(file for some in self.followed.values() for file in some))


class Tally:
    """Counts the rows that a task gets, and the records that they came from."""

    def __init__(self) -> None:
        self._rows, self._numbers, self._twice = 0, BitMap64(), BitMap64()

    def take(self, numbers: Integers) -> BitMap64:
        """Count rows; return their numbers as a set."""
        found = bitmap(pa.array(numbers))
        self._twice |= found & self._numbers or _repeated(numbers, found)
        self._numbers |= found
        self._rows += len(numbers)
        return found

    def part(
        self,
        files: tuple[WrittenFile, ...],
        followed: Mapping[Destination, tuple[WrittenFile, ...]] | None = None,
        unmatched: Mapping[Apart, BitMap64] | None = None,
    ) -> PartWritten:
        """Return what the task wrote."""
        return PartWritten(
            files, self._rows, self._numbers, self._twice, followed or {}, unmatched or {}
        )


def row_schema(plan: WriterPlan) -> pa.Schema:
    """Return the schema of the rows that a transform gets, in Spark's types.

    Raises ``ConfigurationError`` for columns that Spark has no type for.
    """
    schema, lacking = to_spark(plan.decoded_schema())
    if lacking:
        raise ConfigurationError(
            f"Spark has no type for the columns {', '.join(lacking)} (UUID, time, fixed binary or "
            "nanoseconds), which a transform would get",
            "declare transform.columns, with string or binary for them",
        )
    return schema.append(pa.field(RECORD, pa.int64()))


def tallied(schema: pa.Schema) -> pa.Schema:
    """Add a column for tallies, which is null in all other rows."""
    return schema.append(pa.field(TALLY, pa.binary()))


# ----------------------------------------------------------------------------------------- reading


def rows_of_shares(plan: WriterPlan, batch: Batch, shares: Sequence[Batch]) -> Stage:
    """Turn share numbers into rows for a transform, with a tally row after each share's rows."""
    schema = tallied(row_schema(plan))

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for share in share_numbers(batches):
            reading = _Share(plan, batch, shares, share)
            for numbered in reading.rows():
                yield _for_spark(numbered, schema)
            yield tally_row(schema, reading.read)
        keep_worker_light()

    return stage


def packets_of_shares(plan: WriterPlan, batch: Batch, shares: Sequence[Batch]) -> Stage:
    """Turn share numbers into packets, with a tally row after each share's packets."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packing = Packing(plan)
        schema = tallied(packing.schema)
        for share in share_numbers(batches):
            reading = _Share(plan, batch, shares, share)
            for packet in packing.packed(reading.rows()):
                tally = pa.nulls(packet.num_rows, pa.binary())
                yield pa.RecordBatch.from_arrays([*packet.columns, tally], schema=schema)
            yield tally_row(schema, reading.read)
        keep_worker_light()

    return stage


class _Share:
    """One share on its way; when ``rows`` has ended, ``read`` has the result."""

    def __init__(self, plan: WriterPlan, batch: Batch, shares: Sequence[Batch], share: int) -> None:
        self._plan = plan
        self._share = shares[share]
        self._numbering = Numbering(batch.ranges)
        self.read = ShareRead(share, BatchFailed(batch.number, "not read to its end"), BitMap64())

    def rows(self) -> Iterator[Numbered]:
        plan, share = self._plan, self._share
        numbers = BitMap64()
        outcome: BatchOutcome
        aside = Aside(plan, share)
        try:
            decoding = Decoding(
                *(plan.source, share, plan.decoded_schema(), plan.name_mapping()),
                aside=aside,
                condemned=plan.condemned,
                evolution=plan.watched_for(share.table.refused),
                values=plan.values,
            )
            with closing(chunks_of(plan, share)) as chunks:
                for chunk in chunks:
                    decoded = decoding.decoded(chunk)
                    records = decoded.records
                    found = self._numbering.numbers(
                        list(share.ranges), records.places, records.offsets
                    )
                    numbers |= bitmap(pa.array(found))
                    yield Numbered(decoded.rows, found)
            aside.require_none()
            if decoding.needs:
                aside.discard()
                outcome = decoding.needs.outcome(share.number)
            else:
                quarantined, ignored = aside.finish(), decoding.ignored()
                results = decoding.results()
                outcome = BatchWritten(share.number, results, (), quarantined, ignored=ignored)
        except Exception as error:  # noqa: BLE001 - it goes on as a value
            aside.discard()
            outcome = failed(share.number, error)
        self.read = ShareRead(self.read.share, outcome, numbers)


def share_numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _for_spark(numbered: Numbered, schema: pa.Schema) -> pa.RecordBatch:
    rows = numbered.rows
    columns = [rows.column(place).cast(field.type) for place, field in enumerate(list(schema)[:-2])]
    tally = pa.nulls(rows.num_rows, pa.binary())
    return pa.RecordBatch.from_arrays([*columns, pa.array(numbered.numbers), tally], schema=schema)


def tally_row(schema: pa.Schema, read: ShareRead) -> pa.RecordBatch:
    return lonely(schema, TALLY, pa.array([pickle.dumps(read)], pa.binary()))


# ----------------------------------------------------------------------------------------- packing


def packets_of_result(plan: WriterPlan, batch: Batch, name: str) -> Stage:
    """Turn a transform's rows into packets. A failure is a packet without a place."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packing = Packing(plan)
        try:
            result = ResultRows(plan, Numbering(batch.ranges), name)
            yield from packing.packed(rows_before(batches, lambda rows: (result.of(rows),)))
        except Exception as error:  # noqa: BLE001 - it goes on as a value
            failure = pa.array([pickle.dumps(failed(batch.number, error))], pa.binary())
            yield lonely(packing.schema, PACKET, failure)
        keep_worker_light()

    return stage


def lonely(schema: pa.Schema, name: str, value: pa.Array) -> pa.RecordBatch:
    """Return a row of one value."""
    columns = [value if field.name == name else pa.nulls(1, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# ----------------------------------------------------------------------------------------- writing


class _PackedFailure(Exception):
    """A stage before this one failed: ``outcome`` says how."""

    def __init__(self, outcome: BatchFailed) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def write_result(plan: WriterPlan, batch: Batch, name: str) -> Stage:
    """Turn a transform's rows into one row of ``OUTCOMES``."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Numbered]:
        result = ResultRows(plan, Numbering(batch.ranges), name)
        return rows_before(batches, lambda rows: (result.of(rows),))

    return _writing(plan, batch, rows)


def write_packets(plan: WriterPlan, batch: Batch) -> Stage:
    """Turn packets into one row of ``OUTCOMES``."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Numbered]:
        packing = Packing(plan)
        for packets in batches:
            columns = zip(packets.column(PLACE), packets.column(PACKET), strict=True)
            for place, packet in columns:
                if not place.is_valid:
                    carried(packet)
                yield packing.unpacked(packet)

    return _writing(plan, batch, rows)


def _writing(
    plan: WriterPlan,
    batch: Batch,
    rows: Callable[[Iterator[pa.RecordBatch]], Iterator[Numbered]],
) -> Stage:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield outcome_row(_written(plan, batch, rows(batches)))
        keep_worker_light()

    return stage


def outcome_row(outcome: PartWritten | BatchFailed) -> pa.RecordBatch:
    """Return the row of ``OUTCOMES``."""
    return pa.RecordBatch.from_arrays(
        [pa.array([pickle.dumps(outcome)], pa.binary())], schema=OUTCOMES
    )


def carried(packet: pa.Scalar) -> Any:
    """Return the content of a packet without a place. Raises it if it is a failure."""
    found = pickle.loads(packet.as_py())  # noqa: S301 - our own tasks'
    if isinstance(found, BatchFailed):
        raise _PackedFailure(found)
    return found


def failure(batch: Batch, error: Exception) -> BatchFailed:
    """Return the outcome of a task that ended in ``error``."""
    return error.outcome if isinstance(error, _PackedFailure) else failed(batch.number, error)


def _written(plan: WriterPlan, batch: Batch, rows: Iterator[Numbered]) -> PartWritten | BatchFailed:
    files: DataFiles | None = None
    tally = Tally()
    try:
        shape = file_shape(plan)
        files = DataFiles(shape, batch.table.file_prefix, batch.target_file_bytes)
        partitioned = PartitionedRows(shape.partitioner, files)
        for numbered in rows:
            partitioned.take(numbered.rows)
            tally.take(numbered.numbers)
        partitioned.flush()
        return tally.part(files.finish())
    except Exception as error:  # noqa: BLE001 - it goes on as a value
        if files is not None:
            files.discard()
        return failure(batch, error)


def _repeated(numbers: Integers, found: BitMap64) -> BitMap64:
    if len(found) == len(numbers):
        return BitMap64()
    values, counts = np.unique(numbers, return_counts=True)
    return bitmap(pa.array(values[counts > 1]))
