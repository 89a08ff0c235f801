"""A storage that hangs blocks the driver for a bounded time, and is named; no error ends the
thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headgate.control_protocol.ports import Batch, BatchFailed, BatchWritten
from headgate.data_plane.write.in_process_writer import InProcessWriter


def test_a_writer_that_hangs_does_not_hold_up_who_asks() -> None:
    hung, told = threading.Event(), threading.Event()
    asked: list[Callable[[], bool]] = []

    def write(batch: Batch, abandoned: Callable[[], bool]) -> BatchWritten:
        asked.append(abandoned)
        told.set()
        hung.wait(60)
        return BatchWritten(batch.number, {})

    def batch(number: int) -> Batch:
        return Batch(number, None, None, {}, 1)  # type: ignore[arg-type]

    writer = InProcessWriter(write)
    writer.submit(batch(1))
    assert told.wait(10)
    begun_s = time.monotonic()
    assert writer.wait_for_outcome(50) is None
    writer.submit(batch(2))
    assert asked[0](), "the first one was abandoned"
    assert writer.wait_for_outcome(50) is None
    assert time.monotonic() - begun_s < 10
    hung.set()
    found = writer.wait_for_outcome(10_000)
    assert found == BatchWritten(2, {}), "what the abandoned one made is never heard of"
    writer.close()


class Panic(BaseException):
    """What a library of Rust raises where it fails (``pyo3_runtime.PanicException``)."""


def test_what_is_no_exception_of_python_s_fails_the_batch_all_the_same() -> None:
    def write(_batch: Batch, _abandoned: Callable[[], bool]) -> BatchWritten:
        raise Panic("index out of bounds")

    writer = InProcessWriter(write)
    for number in (1, 2):
        writer.submit(Batch(number, None, None, {}, 1))  # type: ignore[arg-type]
        found = writer.wait_for_outcome(10_000)
        assert isinstance(found, BatchFailed)
        assert "Panic: index out of bounds" in found.reason
    writer.close()
