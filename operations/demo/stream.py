"""Produces the demo's records: a thread that fills the topic at the pace of the show."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice

from headgate.control_protocol.errors import HeadgateError
from headgate.operations.demo.produce import STRIDE, produce
from headgate.operations.demo.trips import trips

DURATION_S = 40
"""How long the whole stream would last at its even pace."""

BACKLOG_SHARE = 0.25
"""The share that is produced before anybody reads."""

RESERVE_SHARE = 0.4
TRICKLE = 3
"""Slowdown of the last share until the kill on a busy machine: rows must be in flight."""

STOP_SECONDS_MAX = 15


class TripStream:
    """Sends ``records`` trips to the partitions of a topic in turn, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, *, records: int, seed: int) -> None:
        self.records = records
        self._bootstrap, self._topic, self._seed = bootstrap, topic, seed
        self._confirmed = 0
        self._failure: HeadgateError | None = None
        self._awaited = threading.Event()
        self._released = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-stream", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def go_on(self) -> None:
        """Note that somebody reads: more than the backlog may follow."""
        self._awaited.set()

    def release(self) -> None:
        """Stop holding back records."""
        self._released.set()

    def stop(self) -> None:
        self._stopped.set()
        self._awaited.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)

    @property
    def confirmed(self) -> int:
        """Return how many records the broker has confirmed. Raises what ended the stream early."""
        if self._failure:
            raise self._failure
        return self._confirmed

    def _run(self) -> None:
        try:
            produce(self._bootstrap, self._topic, self._paced(), on_progress=self._count)
        except HeadgateError as error:
            self._failure = error

    def _count(self, confirmed: int) -> None:
        self._confirmed = confirmed

    def _paced(self) -> Iterator[bytes]:
        due_s = time.monotonic()
        for number, trip in enumerate(islice(trips(self._seed), self.records)):
            if number % STRIDE == 0:
                if number >= self.records * BACKLOG_SHARE and not self._awaited.is_set():
                    self._awaited.wait()
                    due_s = time.monotonic()
                due_s += stride_s(number, self.records, released=self._released.is_set())
                if self._stopped.wait(max(0.0, due_s - time.monotonic())):
                    return
            yield trip


def stride_s(number: int, records: int, *, released: bool) -> float:
    """Return the seconds between two strides at record ``number`` of ``records``."""
    even = DURATION_S * STRIDE / records
    held_back = not released and number >= records * (1 - RESERVE_SHARE)
    return even * TRICKLE if held_back else even
