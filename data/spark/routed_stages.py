"""Runs in the tasks of a multi-stage job that writes many tables (R7), still as one job.

It works like ``stages``, except that rows know their table. Records that a transform sends to no
table come out as numbers, and another job puts them aside (``set_aside``): their values are read
again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from headgate.control_protocol.errors import WriteFailed
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWritten
from headgate.data.spark import stages
from headgate.data.spark.packets import PACKET, PLACE
from headgate.data.spark.routed_packets import TABLE, RoutedPacking
from headgate.data.spark.stages import PartWritten, ShareRead, Stage, Tally
from headgate.data.spark.tasks import keep_worker_light
from headgate.data.transform.result_rows import Numbered, rows_before
from headgate.data.transform.result_tables import Apart, ResultTables, Routed, TableRows, Unmatched
from headgate.data.writers.aside import OWN_TABLE, Aside
from headgate.data.writers.decoding import Decoded
from headgate.data.writers.failures import failed
from headgate.data.writers.many_files import Followed, ManyFiles
from headgate.data.writers.numbering import Integers, Numbering, bitmap
from headgate.data.writers.plan import WriterPlan
from headgate.data.writers.ranges import chunks_of
from headgate.data.writers.routed import RoutedBatch
from headgate.data.writers.routed_table import RoutedTable
from headgate.data.writers.sieve import Sieve
from headgate.kafka.fetch import Chunk
from headgate.native.loops import Flags

# ----------------------------------------------------------------------------------------- reading


@dataclass(slots=True)
class _Outlet:
    """Rows of one table, with the records that they came from."""

    table: str
    ready: list[tuple[str, Decoded]]

    def take(self, decoded: Decoded) -> None:
        self.ready.append((self.table, decoded))


class _Ready:
    """Implements ``Outlets`` into the next stage."""

    def __init__(self) -> None:
        self._ready: list[tuple[str, Decoded]] = []

    def of(self, known: RoutedTable, plan: WriterPlan) -> _Outlet:  # noqa: ARG002 - the port's
        return _Outlet(known.name, self._ready)

    def flush_largest(self) -> None:
        """Do nothing: no rows wait here."""

    def finish(self) -> Followed:
        return {}

    def discard(self) -> None:
        self._ready.clear()

    def drained(self) -> list[tuple[str, Decoded]]:
        ready = list(self._ready)
        self._ready.clear()
        return ready


class _Share:
    """One share on its way; when ``rows`` has ended, ``read`` has the result."""

    def __init__(self, plan: WriterPlan, batch: Batch, shares: Sequence[Batch], share: int) -> None:
        self._plan = plan
        self._share = shares[share]
        self._numbering = Numbering(batch.ranges)
        self._numbers = BitMap64()
        self.read = ShareRead(share, BatchFailed(batch.number, "not read to its end"), BitMap64())

    def rows(self) -> Iterator[TableRows]:
        share, ready, outcome = self._share, _Ready(), self.read.outcome
        routed = RoutedBatch(self._plan, share, ready)
        try:
            with closing(chunks_of(self._plan, share)) as chunks:
                for chunk in chunks:
                    routed.take(chunk)
                    yield from map(self._numbered, ready.drained())
            routed.end()
            yield from map(self._numbered, ready.drained())
            outcome = routed.finish()
        except Exception as error:  # noqa: BLE001 - it goes on as a value
            routed.discard()
            outcome = failed(share.number, error)
        self.read = ShareRead(self.read.share, outcome, self._numbers)

    def _numbered(self, some: tuple[str, Decoded]) -> TableRows:
        table, decoded = some
        records = decoded.records
        found = self._numbering.numbers(list(self._share.ranges), records.places, records.offsets)
        self._numbers |= bitmap(pa.array(found))
        return TableRows(table, Numbered(decoded.rows, found))


def packets_of_shares(plan: WriterPlan, batch: Batch, shares: Sequence[Batch]) -> Stage:
    """Turn share numbers into packets, with a tally row after each share's packets."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packing = RoutedPacking(plan)
        schema = stages.tallied(packing.schema)
        for share in stages.share_numbers(batches):
            reading = _Share(plan, batch, shares, share)
            for packet in packing.packed(reading.rows()):
                tally = pa.nulls(packet.num_rows, pa.binary())
                yield pa.RecordBatch.from_arrays([*packet.columns, tally], schema=schema)
            yield stages.tally_row(schema, reading.read)
        keep_worker_light()

    return stage


# ----------------------------------------------------------------------------------------- packing


def packets_of_result(plan: WriterPlan, batch: Batch, name: str) -> Stage:
    """Turn a transform's rows into packets. A failure, and what is unmatched, have no place."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packing = RoutedPacking(plan)
        aside: list[Unmatched] = []
        try:
            yield from packing.packed(
                _without_unmatched(_routed(plan, batch, name)(batches), aside)
            )
            outcome: Any = aside
        except Exception as error:  # noqa: BLE001 - it goes on as a value
            outcome = failed(batch.number, error)
        if outcome:
            value = pa.array([pickle.dumps(outcome)], pa.binary())
            yield stages.lonely(packing.schema, PACKET, value)
        keep_worker_light()

    return stage


def _without_unmatched(rows: Iterator[Routed], aside: list[Unmatched]) -> Iterator[TableRows]:
    for some in rows:
        if isinstance(some, Unmatched):
            aside.append(some)
        else:
            yield some


def _routed(
    plan: WriterPlan, batch: Batch, name: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Routed]]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Routed]:
        result = ResultTables(plan, batch, name)
        yield from rows_before(batches, result.of)
        result.end()

    return rows


# ----------------------------------------------------------------------------------------- writing


def write_result(plan: WriterPlan, batch: Batch, name: str) -> Stage:
    """Turn a transform's rows into one row of ``OUTCOMES``."""
    return _writing(plan, batch, _routed(plan, batch, name))


def write_packets(plan: WriterPlan, batch: Batch) -> Stage:
    """Turn packets into one row of ``OUTCOMES``."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Routed]:
        packing = RoutedPacking(plan)
        for packets in batches:
            columns = (packets.column(name) for name in (PLACE, TABLE, PACKET))
            for place, table, packet in zip(*columns, strict=True):
                if place.is_valid:
                    yield packing.unpacked(table.as_py(), packet)
                else:
                    yield from stages.carried(packet)

    return _writing(plan, batch, rows)


def _writing(
    plan: WriterPlan,
    batch: Batch,
    rows: Callable[[Iterator[pa.RecordBatch]], Iterator[Routed]],
) -> Stage:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield stages.outcome_row(_written(plan, batch, rows(batches)))
        keep_worker_light()

    return stage


def _written(plan: WriterPlan, batch: Batch, rows: Iterator[Routed]) -> PartWritten | BatchFailed:
    files, tally = ManyFiles(batch), Tally()
    unmatched: dict[Apart, BitMap64] = {}
    try:
        for some in rows:
            found = tally.take(some.numbers)
            if isinstance(some, Unmatched):
                unmatched[some.why] = unmatched.get(some.why, BitMap64()) | found
                continue
            known = plan.tables[some.table]
            assert known.plan is not None, "its rows are of its schema"
            files.of(known, known.plan).take_rows(some.numbered.rows)
            files.flush_largest()
        return tally.part((), files.finish(), unmatched)
    except Exception as error:  # noqa: BLE001 - it goes on as a value
        files.discard()
        return stages.failure(batch, error)


# ------------------------------------------------------------------------------------ set aside


def set_aside(
    plan: WriterPlan, batch: Batch, unmatched: Mapping[Apart, BitMap64]
) -> Callable[[Batch], BatchOutcome]:
    """Return a function that puts these records of a share of ``spans`` aside.

    Failures are values.
    """

    wanted = _Wanted(unmatched)

    def write(share: Batch) -> BatchOutcome:
        numbering, aside = Numbering(batch.ranges), Aside(plan, share)
        sieve = Sieve(share, aside)
        try:
            with closing(chunks_of(plan, share)) as chunks:
                for chunk in chunks:
                    found = numbering.numbers(list(share.ranges), chunk.places, chunk.offsets)
                    for why, rows in wanted.among(found):
                        _put_aside(aside, chunk.where(rows), why)
            nothing = np.zeros(len(share.ranges), np.int64)
            quarantined = aside.finish()
            return BatchWritten(share.number, sieve.results(nothing), (), quarantined)
        except Exception as error:  # noqa: BLE001 - it goes on as a value
            aside.discard()
            return failed(share.number, error)

    return write


def _put_aside(aside: Aside, chunk: Chunk, why: Apart) -> None:
    if why.table:
        aside.diverted(chunk, why.table, why.reason)
    elif why.bad:
        reasons = dict.fromkeys(range(len(chunk.offsets)), why.reason)
        aside.take(chunk, reasons, OWN_TABLE)
    else:
        aside.unmatched(chunk, why.reason)


class _Wanted:
    """Finds records among others, with the reasons why they are wanted."""

    def __init__(self, unmatched: Mapping[Apart, BitMap64]) -> None:
        self._reasons = list(unmatched)
        arrays = [np.fromiter(some, np.int64, len(some)) for some in unmatched.values()]
        numbers = np.concatenate([np.zeros(0, np.int64), *arrays])
        order = np.argsort(numbers)
        self._numbers = numbers[order]
        self._codes = np.repeat(np.arange(len(arrays)), [len(some) for some in arrays])[order]

    def among(self, found: Integers) -> Iterator[tuple[Apart, Flags]]:
        """Yield, for each reason, the flags of its records."""
        if not len(self._numbers):
            return
        places = np.searchsorted(self._numbers, found).clip(max=len(self._numbers) - 1)
        codes = np.where(self._numbers[places] == found, self._codes[places], -1)
        for code in np.unique(codes[codes >= 0]).tolist():
            yield self._reasons[code], codes == code


def spans(batch: Batch, unmatched: Mapping[Apart, BitMap64]) -> Batch:
    """Narrow the batch to the first through last unmatched record of each partition."""
    numbering = Numbering(batch.ranges)
    numbers = BitMap64.union(BitMap64(), *unmatched.values())
    ranges = {}
    for at in numbering.partitions:
        some = numbering.of(numbers, at)
        if some is not None:
            ranges[at] = OffsetRange(some[0], some[1] + 1)
    return replace(batch, ranges=ranges)


def accounted(
    batch: Batch, written: BatchWritten, aside: BatchWritten, unmatched: Mapping[Apart, BitMap64]
) -> BatchWritten:
    """Return the outcome with what was set aside. Raises ``WriteFailed`` if records are missing."""
    numbering = Numbering(batch.ranges)
    numbers = BitMap64.union(BitMap64(), *unmatched.values())
    results = dict(written.partitions)
    for at, result in written.partitions.items():
        found = aside.partitions.get(at)
        if found is None:
            continue
        if found.quarantined + found.skipped != numbering.count(numbers, at):
            raise WriteFailed(f"{at}: unmatched records were not there any more when read again")
        results[at] = replace(
            result,
            quarantined=result.quarantined + found.quarantined,
            skipped=result.skipped + found.skipped,
            bad=result.bad + found.bad,
        )
    quarantined = (*written.quarantined, *aside.quarantined)
    return replace(written, partitions=results, quarantined=quarantined)
