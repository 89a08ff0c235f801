"""Writes a batch as a whole, whatever a few of its records do (``ranges`` and ``narrowing``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from headgate.control_protocol.ports import Batch, BatchOutcome
from headgate.data.writers.failures import attempted
from headgate.data.writers.narrowing import narrowed
from headgate.data.writers.plan import WriterPlan
from headgate.data.writers.ranges import write_chunks, write_ranges
from headgate.kafka.fetch import Chunk


def write_narrowed(
    plan: WriterPlan, batch: Batch, *, abandoned: Callable[[], bool] = lambda: False
) -> BatchOutcome:
    """Read the batch's ranges from the source and write them. Raises ``Abandoned``."""

    def attempt(plan: WriterPlan, batch: Batch) -> BatchOutcome:
        write = partial(write_ranges, plan, batch, abandoned=abandoned)
        return attempted(batch.number, write)

    return narrowed(attempt, plan, batch)


def write_put(
    plan: WriterPlan, batch: Batch, chunk: Chunk, *, abandoned: Callable[[], bool] = lambda: False
) -> BatchOutcome:
    """Write the chunk, which holds exactly the batch's ranges. Raises ``Abandoned``."""

    def attempt(plan: WriterPlan, part: Batch) -> BatchOutcome:
        chunks = [chunk if part is batch else _within(chunk, part)]
        write = partial(write_chunks, plan, part, chunks, abandoned=abandoned)
        return attempted(part.number, write)

    return narrowed(attempt, plan, batch)


def _within(chunk: Chunk, part: Batch) -> Chunk:
    begins = np.array([span.begin for span in part.ranges.values()], np.int64)[chunk.places]
    ends = np.array([span.end for span in part.ranges.values()], np.int64)[chunk.places]
    return chunk.where((chunk.offsets >= begins) & (chunk.offsets < ends))
