"""Generates row changes as Debezium writes them: all keys once, then updates and deletes.

Of 100 changes, 80 update any live key, 2 delete one, and 18 add a key. ``before`` holds only the
key, as a database logs it by default.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

from comparison.workloads import TAXI, Workload, taxi_trips

UPDATES, DELETES = 0.80, 0.02


class Changelog:
    """Creates keys with their records, in order, and knows what they fold to.

    ``upserts``: how many of the records so far are rows, which is the column ``n`` of the next.
    """

    def __init__(self, seed: int, partitions: int) -> None:
        self._dice = random.Random(seed)
        self._trip = taxi_trips(seed)
        self._partitions = partitions
        self._live = array("q")
        self._versions = array("q")
        self.upserts = 0

    def filled(self, keys: int) -> Iterator[tuple[int, bytes]]:
        """Yield only new keys."""
        for _ in range(keys):
            yield self._insert()

    def changed(self, count: int) -> Iterator[tuple[int, bytes]]:
        """Yield changes; each partition's last record is a row: who has all rows has read all."""
        for _ in range(count - self._partitions):
            chance = self._dice.random()
            if chance < UPDATES:
                yield self._update()
            elif chance < UPDATES + DELETES:
                yield self._delete()
            else:
                yield self._insert()
        yield from self.filled(self._partitions)

    @property
    def expected(self) -> tuple[int, int, int]:
        """Return rows, and the sums of their columns ``id`` and ``n``."""
        rows = self._live
        return len(rows), sum(rows), sum(self._versions[key] for key in rows)

    def _insert(self) -> tuple[int, bytes]:
        key = len(self._versions)
        self._live.append(key)
        self._versions.append(-1)
        return key, self._row(key, "null", "c")

    def _update(self) -> tuple[int, bytes]:
        key = self._live[self._dice.randrange(len(self._live))]
        return key, self._row(key, f'{{"id":{key}}}', "u")

    def _delete(self) -> tuple[int, bytes]:
        place = self._dice.randrange(len(self._live))
        key = self._live[place]
        self._live[place] = self._live[-1]
        self._live.pop()
        self._versions[key] = -1
        return key, f'{{"before":{{"id":{key}}},"after":null,"op":"d"}}'.encode()

    def _row(self, key: int, before: str, operation: str) -> bytes:
        number = self._versions[key] = self.upserts
        self.upserts += 1
        row = f'{{"id":{key},"n":{number},{self._trip(number)}'
        return f'{{"before":{before},"after":{row},"op":"{operation}"}}'.encode()


def _changes(count: int, seed: int) -> Iterator[bytes]:
    for _, record in Changelog(seed, 1).changed(count):
        yield record


UPSERT = Workload("upsert", {**TAXI, "n": "long"}, _changes, key=("id",))
