"""Fills topics with records: at once, or at a steady pace while noting the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
from confluent_kafka import Producer

from comparison.workloads import Workload
from headgate.operations.demo.producer import ensure_topic

SEED = 7
_STRIDE = 500
_SETTINGS = {
    "enable.idempotence": True,
    "compression.type": "lz4",
    "linger.ms": 10,
    "queue.buffering.max.messages": 400_000,
    "log_level": 0,
}


class Topic:
    """One topic of the workload's records, spread evenly."""

    def __init__(self, bootstrap: str, name: str, workload: Workload, partitions: int) -> None:
        ensure_topic(bootstrap, name, partitions=partitions)
        self.name = name
        self.partitions = partitions
        self._workload = workload
        self._producer = Producer({"bootstrap.servers": bootstrap, **_SETTINGS})

    def fill(self, rows: int) -> None:
        """Send all at once. Raises ``SystemExit`` unless all were confirmed."""
        for begin, stride in self._strides(rows):
            self._send(begin, stride)
        self._flush()

    def append(self, changes: Iterator[tuple[int, bytes]]) -> None:
        """Send row changes with their keys, all changes of a key to one partition."""
        for key, record in changes:
            self._produce(record, key % self.partitions, f'{{"id":{key}}}')
        self._flush()

    def pace(self, rows: int, rate: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Send records at a rate; return when each was sent, as epoch seconds by id."""
        sent_s = np.zeros(rows)
        began_s = time.time()
        for begin, stride in self._strides(rows):
            time.sleep(max(0.0, began_s + begin / rate - time.time()))
            sent_s[begin : begin + len(stride)] = time.time()
            self._send(begin, stride)
        self._flush()
        return sent_s

    def _strides(self, rows: int) -> Iterator[tuple[int, list[bytes]]]:
        records = self._workload.records(rows, SEED)
        for begin in range(0, rows, _STRIDE):
            yield begin, list(islice(records, _STRIDE))

    def _send(self, begin: int, records: list[bytes]) -> None:
        for number, record in enumerate(records, begin):
            self._produce(record, number % self.partitions)
        self._producer.poll(0)

    def _produce(self, record: bytes, partition: int, key: str | None = None) -> None:
        while True:
            try:
                return self._producer.produce(self.name, record, key, partition=partition)
            except BufferError:
                self._producer.poll(0.05)

    def _flush(self) -> None:
        if left := self._producer.flush(120):
            raise SystemExit(f"{self.name}: {left} records were not confirmed")
