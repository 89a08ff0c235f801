"""Runs the writing of batches without Spark: one thread of this process.

Records are fetched or, of an embedded participant, were put into buffers. A batch that fails with
temporary keys is repeated with new ones.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.errors import MissingRights, to_exception
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWriter
from headgate.data_plane.batch.failure_classification import BatchAbandoned, failed_outcome_of
from headgate.kafka.push_source import Buffers, Record
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed

_CLOSE_MS = 30_000

Write = Callable[[Batch, Callable[[], bool]], BatchOutcome]
"""Writes a batch, on the worker thread; may ask now and then whether it was abandoned."""


class InProcessWriter:
    """Runs a function that writes on a thread. A ``BatchWriter``."""

    def __init__(self, write: Write) -> None:
        self._do = write
        self._submitted: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[Batch, BatchOutcome]] = queue.SimpleQueue()
        self._current: Batch | None = None
        self._thread = threading.Thread(
            target=bound_to_current_sink(self._run), name="headgate-writer", daemon=True
        )
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self._current = batch  # first: the thread drops a batch that is not the current one
        self._submitted.put(batch)

    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        while True:
            try:
                batch, outcome = self._outcomes.get(timeout=timeout_ms / 1000)
            except queue.Empty:
                return None
            if batch is self._current:
                self._current = None
                return outcome

    def close(self) -> None:
        self._current = None  # first: a batch under way then sees that nobody waits for it
        self._submitted.put(None)
        self._thread.join(_CLOSE_MS / 1000)

    def _run(self) -> None:
        while (batch := self._submitted.get()) is not None:
            if batch is self._current:
                self._outcomes.put((batch, self._write(batch)))

    def _write(self, batch: Batch) -> BatchOutcome:
        try:
            return self._do(batch, lambda: batch is not self._current)
        except BatchAbandoned as error:
            return BatchFailed(batch.number, str(error))
        except BaseException as error:  # noqa: BLE001 - what a thread dies of is its submitter's
            return failed_outcome_of(batch.number, to_exception(error))


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
        self._write_records = write
        self._cut: dict[int, list[list[Record]]] = {}
        self._writer = InProcessWriter(self._write)

    def submit(self, batch: Batch) -> None:
        self._cut = {}
        if self._buffers.has_next_ranges(batch.ranges):
            self._cut[batch.number] = list(self._buffers.pop_ranges(batch.ranges))
        self._writer.submit(batch)

    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        return self._writer.wait_for_outcome(timeout_ms)

    def close(self) -> None:
        self._writer.close()

    def _write(self, batch: Batch, abandoned: Callable[[], bool]) -> BatchOutcome:
        records = self._cut.pop(batch.number, None)
        if records is None:
            return BatchFailed(batch.number, "its records have to be delivered again")
        return self._write_records(batch, records, abandoned)


def chunk_of(records_by_partition: Sequence[Sequence[Record]]) -> Chunk:
    """Return the records, partition by partition, as one chunk of columns."""
    flat = [(place, record) for place, some in enumerate(records_by_partition) for record in some]
    return Chunk(
        values=Packed.from_values(record.value for _, record in flat),
        lengths=np.array([record.value_size_bytes for _, record in flat], np.int64),
        places=np.array([place for place, _ in flat], np.int64),
        offsets=np.array([record.offset for _, record in flat], np.int64),
        timestamps=np.array([record.timestamp_ms for _, record in flat], np.int64),
        keys=Packed.from_values(record.key for _, record in flat),
        headers=[record.headers for _, record in flat],
    )


class Forgetful(Protocol):
    """Keeps a store's temporary keys, and can forget them."""

    def drop_plans_with_temporary_credentials(self) -> bool:
        """Forget the plans' vended credentials, so that the next plan brings new ones.

        Returns whether there were any.
        """


class RenewingWriter:
    """Lets ``plans`` forget temporary keys with each failure. A ``BatchWriter``.

    Stores answer 400, 401 or 403 to expired keys, and clients lose some of the text: so failures
    are not distinguished, and no refusal is final.
    """

    def __init__(self, writer: BatchWriter, plans: Forgetful) -> None:
        self._writer = writer
        self._plans = plans

    def submit(self, batch: Batch) -> None:
        self._writer.submit(batch)

    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        outcome = self._writer.wait_for_outcome(timeout_ms)
        if (
            not isinstance(outcome, BatchFailed)
            or not self._plans.drop_plans_with_temporary_credentials()
        ):
            return outcome
        refused = isinstance(outcome.fatal, MissingRights)
        return replace(outcome, fatal=None) if refused else outcome

    def close(self) -> None:
        self._writer.close()
