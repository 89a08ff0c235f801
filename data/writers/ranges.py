"""Offset ranges in, data files out: fetch, decode, partition and write, in bounded memory.

At most one fetched chunk, the rows that wait for their files (``partitioned_rows``) and the open
files' buffers are in memory, whatever the ranges' length.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchWritten
from headgate.data.writers.batch_rows import BatchRows
from headgate.data.writers.failures import go_on, write_failed
from headgate.data.writers.many_files import ManyFiles
from headgate.data.writers.plan import WriterPlan
from headgate.kafka.fetch import Chunk, Reading, read_ranges


def write_ranges(
    plan: WriterPlan, batch: Batch, *, abandoned: Callable[[], bool] = lambda: False
) -> BatchWritten | BatchNeeds:
    """Read exactly the batch's ranges from the source, and write them; errors as ``write_chunks``.

    Also raises ``OffsetOutOfRange``, ``TopicRecreated`` and ``MissingRights``.
    """
    # Closed at once on an error too: a suspended reader would go on fetching behind our back.
    with closing(chunks_of(plan, batch)) as chunks:
        return write_chunks(plan, batch, chunks, abandoned=abandoned)


def chunks_of(plan: WriterPlan, batch: Batch) -> Generator[Chunk, None, None]:
    """Yield all records of the batch's ranges, with the parts that the plan asks for. Close it."""
    source, parts = plan.source, plan.record_parts()
    by_header = source.routing is not None and any(r.header for r in source.routing.routes)
    reading = Reading(
        source.kafka,
        batch.ranges,
        source.topic_ids,
        with_keys="key" in parts or source.handling.keeps or source.has_keys,
        with_headers="headers" in parts or source.handling.keeps or by_header,
    )
    return read_ranges(reading)


def write_chunks(
    plan: WriterPlan,
    batch: Batch,
    chunks: Iterable[Chunk],
    *,
    abandoned: Callable[[], bool] = lambda: False,
) -> BatchWritten | BatchNeeds:
    """Write the chunks, which hold exactly the batch's ranges. On any error no file is left.

    Raises ``PoisonRecord``, ``TooManyBadRecords``, ``ConfigurationError``, ``TableChanged``,
    ``Abandoned``, ``SourceTruncated``, ``TablesWanted`` (all that it wants), whatever reading the
    chunks raises; for anything else ``WriteFailed``, or ``Unforeseen`` where no other system is to
    blame.
    """
    rows = BatchRows(plan, batch, ManyFiles(batch))
    try:
        for chunk in chunks:
            rows.take(chunk)
            go_on(batch, abandoned)
        rows.end()
        return rows.finish()
    except BaseException as error:
        rows.discard()
        if isinstance(error, HeadgateError) or not isinstance(error, Exception):
            raise
        raise write_failed(error, batch) from error
