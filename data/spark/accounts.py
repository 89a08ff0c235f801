"""Checks that each record read became at most one row, and counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyroaring import BitMap64

from headgate.control_protocol.errors import TransformFailed, WriteFailed
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWritten
from headgate.data.spark.shares import joined, together
from headgate.data.spark.stages import PartWritten, ShareRead
from headgate.data.writers.numbering import Numbering


def settled(
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
    read = joined(batch, [*failures, *(by_share[share].outcome for share in sorted(by_share))])
    if not isinstance(read, BatchWritten):
        return read
    written = [part for part in parts if isinstance(part, PartWritten)]
    numbers = _once(batch, written, transform)
    known = BitMap64.union(BitMap64(), *(share.numbers for share in by_share.values()))
    numbering = Numbering(batch.ranges)
    if unknown := numbers - known:
        raise TransformFailed(
            f"{transform} gives {len(unknown)} rows of records that were not read, as "
            f"{numbering.described(unknown[0])}",
            "carry the record's number unchanged",
        )
    if not transform and (lost := known - numbers):
        raise WriteFailed(f"{len(lost)} rows are missing after Spark's shuffle")
    return _counted(read, numbers, numbering, written)


def _once(batch: Batch, written: Sequence[PartWritten], transform: str) -> BitMap64:
    numbers, twice = BitMap64(), BitMap64()
    for part in written:
        twice |= part.twice | (numbers & part.numbers)
        numbers |= part.numbers
    rows = sum(part.rows for part in written)
    if rows == len(numbers):
        return numbers
    example = f", as of {Numbering(batch.ranges).described(twice[0])}" if twice else ""
    if not transform:
        raise WriteFailed(f"{rows - len(numbers)} rows are there twice after Spark's shuffle")
    raise TransformFailed(
        f"{transform} gives {rows - len(numbers)} rows more than it got records{example}",
        "a record may become one row or none: an explode or a join with several matches makes more",
    )


def _counted(
    read: BatchWritten, numbers: BitMap64, numbering: Numbering, written: Sequence[PartWritten]
) -> BatchWritten:
    aside = BitMap64.union(BitMap64(), *(n for part in written for n in part.unmatched.values()))
    results = {}
    for at, result in read.partitions.items():
        given = numbering.count(numbers, at)
        records = given - numbering.count(aside, at)
        skipped = result.skipped + result.records - given
        results[at] = replace(result, records=records, skipped=skipped)
    files = tuple(file for part in written for file in part.files)
    return replace(read, partitions=results, files=files, followed=together(written))
