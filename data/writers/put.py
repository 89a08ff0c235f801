"""The writer of an embedded participant: its records were put into buffers, not fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome
from headgate.data.writers.in_process import InProcessWriter
from headgate.kafka.fetch import Chunk
from headgate.native.packed import Packed
from headgate.participant.embedding import Buffers, Record


class PutWriter:
    """Implements ``ports.BatchWriter`` over put records, taken from the buffers as a batch begins.

    ``write`` receives the batch, its records per partition in the ranges' order, and a function
    that says whether the batch was abandoned; it runs on the writer's thread.
    """

    def __init__(
        self,
        buffers: Buffers,
        write: Callable[[Batch, list[list[Record]], Callable[[], bool]], BatchOutcome],
    ) -> None:
        self._buffers = buffers
        self._write = write
        self._taken: dict[int, list[list[Record]]] = {}
        self._writer = InProcessWriter(self._written)

    def submit(self, batch: Batch) -> None:
        self._taken = {}
        if self._buffers.holds(batch.ranges):
            self._taken[batch.number] = list(self._buffers.cut(batch.ranges))
        self._writer.submit(batch)

    def outcome(self, timeout_ms: int) -> BatchOutcome | None:
        return self._writer.outcome(timeout_ms)

    def close(self) -> None:
        self._writer.close()

    def _written(self, batch: Batch, abandoned: Callable[[], bool]) -> BatchOutcome:
        records = self._taken.pop(batch.number, None)
        if records is None:
            return BatchFailed(batch.number, "its records have to be delivered again")
        return self._write(batch, records, abandoned)


def chunk_of(records: Sequence[Sequence[Record]]) -> Chunk:
    """Return the records, partition by partition, as one chunk of columns."""
    flat = [(place, record) for place, some in enumerate(records) for record in some]
    return Chunk(
        values=Packed.of(record.value for _, record in flat),
        lengths=np.array([record.size_bytes for _, record in flat], np.int64),
        places=np.array([place for place, _ in flat], np.int64),
        offsets=np.array([record.offset for _, record in flat], np.int64),
        timestamps=np.array([record.timestamp_ms for _, record in flat], np.int64),
        keys=Packed.of(record.key for _, record in flat),
        headers=[record.headers for _, record in flat],
    )
