"""Puts aside the records that a transform sent to no table (rule R7), with a job of its own.

They come out of the first job as numbers; their values are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import numpy as np
from pyroaring import BitMap64

from headgate.control_protocol.errors import WriteFailed
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchOutcome, BatchWritten
from headgate.data.transform.result_tables import Apart
from headgate.data.writers.aside import OWN_TABLE, Aside
from headgate.data.writers.failures import failed
from headgate.data.writers.numbering import Integers, Numbering
from headgate.data.writers.plan import WriterPlan
from headgate.data.writers.ranges import chunks_of
from headgate.data.writers.sieve import Sieve
from headgate.kafka.fetch import Chunk
from headgate.native.loops import Flags


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
