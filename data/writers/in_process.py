"""The writer without Spark: one thread of this process, for embedding and small machines."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome
from headgate.control_protocol.whose_thread import for_the_same_sink
from headgate.data.writers.failures import Abandoned, failed

_CLOSE_MS = 30_000

Write = Callable[[Batch, Callable[[], bool]], BatchOutcome]
"""Writes a batch, on the worker thread; may ask now and then whether it was abandoned."""


class InProcessWriter:
    """A ``BatchWriter`` around a function that writes."""

    def __init__(self, write: Write) -> None:
        self._do = write
        self._submitted: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[Batch, BatchOutcome]] = queue.SimpleQueue()
        self._current: Batch | None = None
        self._thread = threading.Thread(
            target=for_the_same_sink(self._run), name="headgate-writer", daemon=True
        )
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self._current = batch
        self._submitted.put(batch)

    def outcome(self, timeout_ms: int) -> BatchOutcome | None:
        while True:
            try:
                batch, outcome = self._outcomes.get(timeout=timeout_ms / 1000)
            except queue.Empty:
                return None
            if batch is self._current:
                self._current = None
                return outcome

    def close(self) -> None:
        self._current = None
        self._submitted.put(None)
        self._thread.join(_CLOSE_MS / 1000)

    def _run(self) -> None:
        while (batch := self._submitted.get()) is not None:
            if batch is self._current:
                self._outcomes.put((batch, self._write(batch)))

    def _write(self, batch: Batch) -> BatchOutcome:
        try:
            return self._do(batch, lambda: batch is not self._current)
        except Abandoned as error:
            return BatchFailed(batch.number, str(error))
        except Exception as error:  # noqa: BLE001 - what a thread dies of belongs to its submitter
            return failed(batch.number, error)
