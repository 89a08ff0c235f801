"""Runs in the tasks of a multi-stage job (read, pack, write), and settles what they report.

A record travels as a row of the columns that a transform knows or, once it is a row of a table, in
a packet (``shuffle_rows``) that names the table. Failures are values here too. Each record read
became at most one row, which is checked.

Records that a transform sends to no table (rule ROUTE-7) come out as numbers; a job of its own
reads their values again and rejects them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import ConfigurationError, WriteFailed
from headgate.control_protocol.events import Destination, WrittenFile
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWritten
from headgate.data_plane.batch.failure_classification import failed_outcome_of
from headgate.data_plane.batch.record_numbers import Integers, RecordNumbers, bitmap_of
from headgate.data_plane.batch.routed_table import RoutedTable, table_of_start, tables_of_plan
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.quarantine.rejected_records import RejectedRecords
from headgate.data_plane.quarantine.rowless_record_filter import RowlessRecordFilter
from headgate.data_plane.spark.shuffle_rows import PACKET, PLACE, TABLE, Packing
from headgate.data_plane.spark.tasks import (
    drop_zip_importers_and_freeze_gc,
    merge_outcomes,
    secondary_files_by_table,
)
from headgate.data_plane.transform.result_routing import (
    RejectionReason,
    ResultTables,
    RoutedRows,
    TableRows,
    Unmatched,
    WantedRecords,
    reject_records,
)
from headgate.data_plane.transform.result_rows import (
    RECORD,
    Numbered,
    repeated_rows_error,
    unknown_rows_error,
)
from headgate.data_plane.transform.spark_types import to_spark_types_and_unsupported
from headgate.data_plane.write.table_outlets import Decoded, FileOutlets, SecondaryFiles
from headgate.data_plane.write.write_batch import BatchRows, read_source_in_chunks

TALLY = "_headgate_tally"
OUTCOME = "outcome"

OUTCOMES = pa.schema([(OUTCOME, pa.binary())])

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class ShareRead:
    """Reports what a share's task read: ``outcome`` as if every row had been written, and which."""

    share: int
    outcome: BatchOutcome
    numbers: BitMap64


@dataclass(frozen=True, slots=True)
class PartWritten:
    """Reports what a task wrote: ``rows`` of the records ``numbers``, in ``files``.

    ``twice``: some of the records for which it got more than one row, if any. With many tables:
    ``secondary_files``, their files; ``unmatched``, records that went to none, by reason.
    """

    files: tuple[WrittenFile, ...]
    rows: int
    numbers: BitMap64
    twice: BitMap64
    secondary_files: Mapping[Destination, tuple[WrittenFile, ...]] = field(default_factory=dict)
    unmatched: Mapping[RejectionReason, BitMap64] = field(default_factory=dict)

    @property
    def all_files(self) -> tuple[WrittenFile, ...]:
        """Return the files of all tables."""
        return (*self.files, *(file for some in self.secondary_files.values() for file in some))


class Tally:
    """Counts the rows that a task gets, and the records that they came from."""

    def __init__(self) -> None:
        self._rows, self._numbers, self._twice = 0, BitMap64(), BitMap64()

    def note_record_numbers_of_rows(self, numbers: Integers) -> BitMap64:
        """Count rows; return their numbers as a set."""
        result = bitmap_of(pa.array(numbers))
        self._twice |= result & self._numbers or _find_repeated_numbers(numbers, result)
        self._numbers |= result
        self._rows += len(numbers)
        return result

    def to_part_written(
        self,
        files: tuple[WrittenFile, ...],
        secondary_files: Mapping[Destination, tuple[WrittenFile, ...]] | None = None,
        unmatched: Mapping[RejectionReason, BitMap64] | None = None,
    ) -> PartWritten:
        """Return what the task wrote."""
        return PartWritten(
            files, self._rows, self._numbers, self._twice, secondary_files or {}, unmatched or {}
        )


def transform_input_schema(plan: WriterPlan) -> pa.Schema:
    """Return the schema of the rows that a transform gets, in Spark's types.

    Raises ``ConfigurationError`` for columns that Spark has no type for.
    """
    schema, unsupported = to_spark_types_and_unsupported(plan.decoded_schema())
    if unsupported:
        raise ConfigurationError(
            f"Spark has no type for the columns {', '.join(unsupported)} (UUID, time, fixed binary "
            "or nanoseconds), which a transform would get",
            "declare transform.columns, with string or binary for them",
        )
    return schema.append(pa.field(RECORD, pa.int64()))


def with_tally_column(schema: pa.Schema) -> pa.Schema:
    """Add a column for tallies, which is null in all other rows."""
    return schema.append(pa.field(TALLY, pa.binary()))


# ----------------------------------------------------------------------------------------- reading


def share_decoding_stage(plan: WriterPlan, batch: Batch, shares: Sequence[Batch]) -> Stage:
    """Turn share numbers into rows for a transform, with a tally row after each share's rows."""
    schema = with_tally_column(transform_input_schema(plan))

    def rows_of_shares(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for share in indexes_of_shares(batches):
            reading = _Share(plan, batch, shares, share)
            for rows in reading.decode_rows_noting_outcome():
                yield _to_spark_rows(rows.numbered, schema)
            yield tally_row(schema, reading.read)
        drop_zip_importers_and_freeze_gc()

    return rows_of_shares


def share_packing_stage(plan: WriterPlan, batch: Batch, shares: Sequence[Batch]) -> Stage:
    """Turn share numbers into packets, with a tally row after each share's packets."""

    def packets_of_shares(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packing = Packing(plan, batch)
        schema = with_tally_column(packing.schema)
        for share in indexes_of_shares(batches):
            reading = _Share(plan, batch, shares, share)
            for packet in packing.pack(reading.decode_rows_noting_outcome()):
                tally = pa.nulls(packet.num_rows, pa.binary())
                yield pa.RecordBatch.from_arrays([*packet.columns, tally], schema=schema)
            yield tally_row(schema, reading.read)
        drop_zip_importers_and_freeze_gc()

    return packets_of_shares


@dataclass(slots=True)
class _Ready:
    """Implements ``Outlets`` into the next stage: rows of a table, with their records."""

    waiting: list[tuple[str, Decoded]] = field(default_factory=list)

    def get_or_open_outlet(self, routed: RoutedTable, plan: WriterPlan) -> _Outlet:  # noqa: ARG002 - the port's
        return _Outlet(routed.name, self)

    def flush_largest_until_within_limit(self) -> None:
        """Do nothing: no rows wait here."""

    def finish(self) -> SecondaryFiles:
        return {}

    def discard(self) -> None:
        self.waiting = []

    def take_decoded(self) -> list[tuple[str, Decoded]]:
        ready, self.waiting = self.waiting, []
        return ready


@dataclass(slots=True)
class _Outlet:
    table: str
    ready: _Ready

    def add_rows(self, decoded: Decoded) -> None:
        self.ready.waiting.append((self.table, decoded))


class _Share:
    """Reads one share; when ``decode_rows_noting_outcome`` has ended, ``read`` has the result."""

    def __init__(self, plan: WriterPlan, batch: Batch, shares: Sequence[Batch], share: int) -> None:
        self._plan = plan
        self._share = shares[share]
        self._numbering = RecordNumbers(batch.ranges)
        self._numbers = BitMap64()
        self.read = ShareRead(share, BatchFailed(batch.number, "not read to its end"), BitMap64())

    def decode_rows_noting_outcome(self) -> Iterator[TableRows]:
        """Yield the rows with their records' numbers.

        A failure is not raised: it ends them, and is the outcome of ``self.read``.
        """
        share, ready, outcome = self._share, _Ready(), self.read.outcome
        reading = BatchRows(self._plan, share, ready)
        try:
            with closing(read_source_in_chunks(self._plan, share)) as chunks:
                for chunk in chunks:
                    reading.add_chunk(chunk)
                    yield from map(self._rows_with_numbers, ready.take_decoded())
            reading.decode_waiting()
            yield from map(self._rows_with_numbers, ready.take_decoded())
            outcome = reading.finish()
        except Exception as error:  # noqa: BLE001 - it goes on as a value
            reading.discard()
            outcome = failed_outcome_of(share.number, error)
        self.read = ShareRead(self.read.share, outcome, self._numbers)

    def _rows_with_numbers(self, some: tuple[str, Decoded]) -> TableRows:
        table, decoded = some
        result = self._numbering.numbers_of_records(
            list(self._share.ranges), decoded.places, decoded.offsets
        )
        self._numbers |= bitmap_of(pa.array(result))
        return TableRows(table, Numbered(decoded.rows, result))


def indexes_of_shares(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _to_spark_rows(numbered: Numbered, schema: pa.Schema) -> pa.RecordBatch:
    rows = numbered.rows
    columns = [rows.column(place).cast(field.type) for place, field in enumerate(list(schema)[:-2])]
    tally = pa.nulls(rows.num_rows, pa.binary())
    return pa.RecordBatch.from_arrays([*columns, pa.array(numbered.numbers), tally], schema=schema)


def tally_row(schema: pa.Schema, read: ShareRead) -> pa.RecordBatch:
    return row_with_one_value(schema, TALLY, pa.array([pickle.dumps(read)], pa.binary()))


# ----------------------------------------------------------------------------------------- packing


def result_packing_stage(plan: WriterPlan, batch: Batch, name: str) -> Stage:
    """Turn a transform's rows into packets. A failure, and what is unmatched, have no place."""

    def packets_of_result(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packing = Packing(plan, batch)
        rejected: list[Unmatched] = []
        try:
            rows = ResultTables(plan, batch, name).route(batches)
            yield from packing.pack(_matched_rows_noting_rejected(rows, rejected))
            outcome: Any = rejected
        except Exception as error:  # noqa: BLE001 - it goes on as a value
            outcome = failed_outcome_of(batch.number, error)
        if outcome:
            yield row_with_one_value(
                packing.schema, PACKET, pa.array([pickle.dumps(outcome)], pa.binary())
            )
        drop_zip_importers_and_freeze_gc()

    return packets_of_result


def _matched_rows_noting_rejected(
    rows: Iterator[RoutedRows], rejected: list[Unmatched]
) -> Iterator[TableRows]:
    """Yield the rows that have a table; what has none goes into ``rejected``."""
    for some in rows:
        if isinstance(some, Unmatched):
            rejected.append(some)
        else:
            yield some


def row_with_one_value(schema: pa.Schema, name: str, value: pa.Array) -> pa.RecordBatch:
    """Return a row of one value."""
    columns = [value if field.name == name else pa.nulls(1, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# ----------------------------------------------------------------------------------------- writing


class _PackedFailure(Exception):
    """Says that a stage before this one failed: ``outcome`` says how."""

    def __init__(self, outcome: BatchFailed) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def result_writing_stage(plan: WriterPlan, batch: Batch, name: str) -> Stage:
    """Turn a transform's rows into one row of ``OUTCOMES``."""

    def route_result(batches: Iterator[pa.RecordBatch]) -> Iterator[RoutedRows]:
        yield from ResultTables(plan, batch, name).route(batches)

    return _writing_stage(plan, batch, route_result)


def packet_writing_stage(plan: WriterPlan, batch: Batch) -> Stage:
    """Turn packets into one row of ``OUTCOMES``."""

    def unpack_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[RoutedRows]:
        packing = Packing(plan, batch)
        for packets in batches:
            columns = (packets.column(name) for name in (PLACE, TABLE, PACKET))
            for place, table, packet in zip(*columns, strict=True):
                if place.is_valid:
                    yield packing.unpack(table.as_py(), packet)
                else:
                    yield from unpack_unmatched_or_raise(packet)

    return _writing_stage(plan, batch, unpack_rows)


def _writing_stage(
    plan: WriterPlan,
    batch: Batch,
    rows: Callable[[Iterator[pa.RecordBatch]], Iterator[RoutedRows]],
) -> Stage:
    def write_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = pickle.dumps(write_rows(plan, batch, rows(batches)))
        yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], schema=OUTCOMES)
        drop_zip_importers_and_freeze_gc()

    return write_batches


def unpack_unmatched_or_raise(packet: pa.Scalar) -> Any:
    """Return the content of a packet without a place. Raises it if it is a failure."""
    result = pickle.loads(packet.as_py())  # noqa: S301 - our own tasks'
    if isinstance(result, BatchFailed):
        raise _PackedFailure(result)
    return result


def write_rows(
    plan: WriterPlan, batch: Batch, rows: Iterable[RoutedRows]
) -> PartWritten | BatchFailed:
    """Write rows that are rows of their tables already: the other entry is
    ``write_batch.write_chunks``.

    Packets and a transform's result come in here. What ``rows`` raises is a value too; on any
    error no file is left.
    """
    files, tally = FileOutlets(batch), Tally()
    unmatched: dict[RejectionReason, BitMap64] = {}
    tables = tables_of_plan(plan, batch)
    try:
        for some in rows:
            result = tally.note_record_numbers_of_rows(some.numbers)
            if isinstance(some, Unmatched):
                unmatched[some.why] = unmatched.get(some.why, BitMap64()) | result
                continue
            routed = tables[some.table]
            assert routed.plan is not None, "its rows are of its schema"
            files.get_or_open_outlet(routed, routed.plan).rows.add_rows(some.numbered.rows)
            files.flush_largest_until_within_limit()
        secondary_files = files.finish()
        own = (
            secondary_files.pop(table_of_start(plan, batch).destination, ())
            if plan.source.routing is None
            else ()
        )
        return tally.to_part_written(own, secondary_files, unmatched)
    except Exception as error:  # noqa: BLE001 - it goes on as a value
        files.discard()
        return (
            error.outcome
            if isinstance(error, _PackedFailure)
            else failed_outcome_of(batch.number, error)
        )


def _find_repeated_numbers(numbers: Integers, distinct: BitMap64) -> BitMap64:
    if len(distinct) == len(numbers):
        return BitMap64()
    values, counts = np.unique(numbers, return_counts=True)
    return bitmap_of(pa.array(values[counts > 1]))


# ----------------------------------------------------------------------------------------- settling


def reconcile_reads_and_writes(
    batch: Batch,
    reads: Sequence[ShareRead],
    parts: Sequence[PartWritten | BatchFailed],
    transform: str,
) -> BatchOutcome:
    """Return the batch's outcome. A record read but not written was filtered: it counts as skipped.

    ``transform`` names it, and is empty if there is none: then every record must be written. Raises
    ``TransformFailed`` for a record in two rows and for one that was not read, ``WriteFailed`` for
    a lost one, ``ValueError`` if the shares do not make up the batch.
    """
    # A share's task may have run twice: one failed attempt is enough.
    by_share = {read.share: read for read in reads}
    by_share |= {read.share: read for read in reads if isinstance(read.outcome, BatchFailed)}
    failures = [part for part in parts if isinstance(part, BatchFailed)]
    read = merge_outcomes(
        batch, [*failures, *(by_share[share].outcome for share in sorted(by_share))]
    )
    if not isinstance(read, BatchWritten):
        return read
    written = [part for part in parts if isinstance(part, PartWritten)]
    numbers = _union_requiring_no_duplicates(batch, written, transform)
    known = BitMap64.union(BitMap64(), *(share.numbers for share in by_share.values()))
    numbering = RecordNumbers(batch.ranges)
    if unknown := numbers - known:
        raise unknown_rows_error(transform, len(unknown), numbering.describe_record(unknown[0]))
    if not transform and (lost := known - numbers):
        raise WriteFailed(
            f"{count_of(len(lost), 'row is', 'rows are')} missing after Spark's shuffle"
        )
    return _with_written_parts(read, numbers, numbering, written)


def _union_requiring_no_duplicates(
    batch: Batch, written: Sequence[PartWritten], transform: str
) -> BitMap64:
    numbers, twice = BitMap64(), BitMap64()
    for part in written:
        twice |= part.twice | (numbers & part.numbers)
        numbers |= part.numbers
    rows = sum(part.rows for part in written)
    if rows == len(numbers):
        return numbers
    example = f", as of {RecordNumbers(batch.ranges).describe_record(twice[0])}" if twice else ""
    if not transform:
        raise WriteFailed(
            f"{count_of(rows - len(numbers), 'row is', 'rows are')} there twice after Spark's "
            "shuffle"
        )
    raise repeated_rows_error(transform, rows - len(numbers), example)


def _with_written_parts(
    read: BatchWritten, numbers: BitMap64, numbering: RecordNumbers, written: Sequence[PartWritten]
) -> BatchWritten:
    rejected = BitMap64.union(BitMap64(), *(n for part in written for n in part.unmatched.values()))
    results = {}
    for at, result in read.partitions.items():
        given = numbering.count_in_partition(numbers, at)
        records = given - numbering.count_in_partition(rejected, at)
        left_out = result.records - given
        results[at] = replace(
            result,
            records=records,
            skipped=result.skipped + left_out,
            filtered=result.filtered + left_out,
        )
    files = tuple(file for part in written for file in part.files)
    return replace(
        read, partitions=results, files=files, secondary_files=secondary_files_by_table(written)
    )


# ---------------------------------------------------------------------------------------- rejecting


def writer_rejecting_unmatched(
    plan: WriterPlan, batch: Batch, unmatched: Mapping[RejectionReason, BitMap64]
) -> Callable[[Batch], BatchOutcome]:
    """Return a function that rejects these records of a share of ``narrow_to_unmatched``.

    Failures are values.
    """

    wanted = WantedRecords(unmatched)

    def quarantine_share(share: Batch) -> BatchOutcome:
        numbering, rejected = RecordNumbers(batch.ranges), RejectedRecords(plan, share)
        kept = RowlessRecordFilter(share, rejected)
        try:
            with closing(read_source_in_chunks(plan, share)) as chunks:
                for chunk in chunks:
                    result = numbering.numbers_of_records(
                        list(share.ranges), chunk.places, chunk.offsets
                    )
                    for why, rows in wanted.flags_by_reason(result):
                        reject_records(rejected, chunk.filter(rows), why)
            nothing = np.zeros(len(share.ranges), np.int64)
            quarantined = rejected.finish()
            return BatchWritten(share.number, kept.partition_results(nothing), (), quarantined)
        except Exception as error:  # noqa: BLE001 - it goes on as a value
            rejected.discard()
            return failed_outcome_of(share.number, error)

    return quarantine_share


def narrow_to_unmatched(batch: Batch, unmatched: Mapping[RejectionReason, BitMap64]) -> Batch:
    """Narrow the batch to the first through last unmatched record of each partition."""
    numbering = RecordNumbers(batch.ranges)
    numbers = BitMap64.union(BitMap64(), *unmatched.values())
    ranges = {}
    for at in numbering.partitions:
        some = numbering.first_and_last_offset(numbers, at)
        if some is not None:
            ranges[at] = OffsetRange(some[0], some[1] + 1)
    return replace(batch, ranges=ranges)


def with_rejected(
    batch: Batch,
    written: BatchWritten,
    rejected: BatchWritten,
    unmatched: Mapping[RejectionReason, BitMap64],
) -> BatchWritten:
    """Return the outcome with what was rejected. Raises ``WriteFailed`` if records are missing."""
    numbering = RecordNumbers(batch.ranges)
    numbers = BitMap64.union(BitMap64(), *unmatched.values())
    results = dict(written.partitions)
    for at, result in written.partitions.items():
        found = rejected.partitions.get(at)
        if found is None:
            continue
        if found.quarantined + found.skipped != numbering.count_in_partition(numbers, at):
            raise WriteFailed(f"{at}: unmatched records were not there any more when read again")
        results[at] = replace(
            result,
            quarantined=result.quarantined + found.quarantined,
            skipped=result.skipped + found.skipped,
            bad=result.bad + found.bad,
        )
    quarantined = (*written.quarantined, *rejected.quarantined)
    return replace(written, partitions=results, quarantined=quarantined)
