"""Numbers every record of a batch: its place in the batch's ranges, laid end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets

Integers = np.ndarray[Any, np.dtype[np.int64]]


class RecordLocations(NamedTuple):
    """Says where records are: each one's index in ``RecordNumbers.partitions``, and its offset."""

    partition_indices: Integers
    offsets: Integers


class RecordNumbers:
    """Numbers from 0 on for all offsets of the ranges, and back; the same in every process."""

    def __init__(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        self.partitions: Sequence[TopicPartition] = sorted(ranges)
        lengths = [len(ranges[at]) for at in self.partitions]
        self._begins = np.array([ranges[at].begin for at in self.partitions], np.int64)
        self._bases = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._index = {at: place for place, at in enumerate(self.partitions)}

    def numbers_of_records(
        self, partitions: Sequence[TopicPartition], partition_indices: Integers, offsets: Integers
    ) -> Integers:
        """Return the numbers; ``partition_indices``: each record's index in ``partitions``."""
        index = np.array([self._index[at] for at in partitions], np.int64)[partition_indices]
        result: Integers = self._bases[index] + offsets - self._begins[index]
        return result

    def locate_records(self, numbers: Integers) -> RecordLocations:
        """Return the index of each record's partition in ``self.partitions``, and its offset.

        Raises ``ValueError`` for a number that no offset of the ranges has.
        """
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= self._bases[-1]):
            raise ValueError("a number outside of the batch")
        # An empty range shares its base with the next: the last one that begins there has it.
        places = np.searchsorted(self._bases[:-1], numbers, side="right") - 1
        return RecordLocations(places, self._begins[places] + numbers - self._bases[places])

    def count_in_partition(self, numbers: BitMap64, partition: TopicPartition) -> int:
        """Return how many of the numbers are this partition's."""
        place = self._index[partition]
        return int(numbers.range_cardinality(int(self._bases[place]), int(self._bases[place + 1])))

    def first_and_last_offset(
        self, numbers: BitMap64, partition: TopicPartition
    ) -> tuple[int, int] | None:
        """Return the first and the last offset of the numbers that are this partition's."""
        place = self._index[partition]
        base = int(self._bases[place])
        own = numbers & BitMap64(range(base, int(self._bases[place + 1])))
        if not own:
            return None
        begin = int(self._begins[place]) - base
        return begin + own[0], begin + own[-1]

    def describe_record(self, number: int) -> str:
        """Return the record's name for errors."""
        places, offsets = self.locate_records(np.array([number], np.int64))
        at = self.partitions[places[0]]
        return f"{at.topic} partition {at.partition} offset {offsets[0]}"


def first_offsets_of(
    partitions: Sequence[TopicPartition], partition_indices: Integers, offsets: Integers
) -> Offsets:
    """Return, in each partition, the smallest of these offsets.

    ``partition_indices``: as in ``RecordNumbers.numbers_of_records``.
    """
    return Offsets(
        {
            partitions[place]: int(offsets[partition_indices == place].min())
            for place in np.unique(partition_indices).tolist()
        }
    )


def bitmap_of(numbers: pa.Int64Array) -> BitMap64:
    """Convert an Arrow array without nulls to a set, without a Python number per value."""
    if not len(numbers):
        return BitMap64()
    # Arrow's own memory, borrowed for this call: the set copies it, and no slice may outlive it.
    values = memoryview(numbers.buffers()[1]).cast("B").cast("Q")
    return BitMap64(values[numbers.offset : numbers.offset + len(numbers)])
