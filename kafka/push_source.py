"""Feeds an embedded participant: records come from the user's loop, not from a fetch.

A buffer per partition stands in for the source: what was put can be read. For a position that the
buffer does not hold, the user's consumer is asked to seek.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets

# Measured with CPython 3.11 and records as a consumer delivers them: the Python objects, without
# what is in the bytes. Of small records they are most of the memory.
_RECORD_BYTES = 350
HEADER_BYTES = 190


class Record(NamedTuple):
    """One record as a consumer delivers it; ``timestamp_ms`` is negative when there is none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] | None = None

    @property
    def value_size_bytes(self) -> int:
        return len(self.value or b"")

    @property
    def memory_bytes(self) -> int:
        """Return about how much memory the record takes here."""
        size = _RECORD_BYTES + len(self.value or b"") + len(self.key or b"")
        for _, content in self.headers or ():
            size += HEADER_BYTES + len(content or b"")
        return size


class Steering(Protocol):
    """Requests to the user's consumer; called only from inside the task's methods."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Make the first record at or after ``offset`` the next one delivered of this partition."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver nothing of these for now: the buffer is full."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...


@dataclass(slots=True)
class PartitionBuffer:
    """Holds records of ``[begin, end)`` in order; offsets in between may be empty."""

    begin: int
    end: int
    records: deque[Record] = field(default_factory=deque)

    def append_and_return_added_bytes(self, record: Record) -> int:
        """Keep the record and return its bytes; a record delivered twice adds nothing."""
        if record.offset < self.end:
            return 0
        self.records.append(record)
        self.end = record.offset + 1
        return record.memory_bytes

    def pop_before(self, end: int) -> list[Record]:
        """Remove and return the records before ``end``."""
        gone = []
        while self.records and self.records[0].offset < end:
            gone.append(self.records.popleft())
        self.begin = end
        return gone


class Buffers:
    """Holds everything put and not yet written, of all open partitions."""

    def __init__(self, steering: Steering, bytes_max: int) -> None:
        self._steering = steering
        self._bytes_max = bytes_max
        self._bytes = 0
        self._full = False
        self._buffers: dict[TopicPartition, PartitionBuffer | None] = {}

    def open(self, partitions: Iterable[TopicPartition]) -> None:
        """Own these from now on; nothing of them is kept until their position is known."""
        partitions = tuple(partitions)
        self.close(partitions)  # opened again: what was put before is delivered again
        self._buffers |= dict.fromkeys(partitions)

    def close(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._subtract_bytes_of(self._buffers.pop(partition, None))

    @property
    def is_full(self) -> bool:
        """Return whether the user's consumer is paused until some of it is written."""
        return self._full

    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._buffers)

    def put(self, records: Iterable[Record]) -> None:
        # By plain tuples: making and hashing a ``TopicPartition`` costs more than the loop's rest.
        found: dict[tuple[str, int], PartitionBuffer | None] = {}
        for record in records:
            name = record.topic, record.partition
            if name not in found:
                found[name] = self._buffers.get(TopicPartition(*name))
            if (buffer := found[name]) is not None:
                self._bytes += buffer.append_and_return_added_bytes(record)
        if self._bytes > self._bytes_max and not self._full:
            self._full = True
            self._steering.pause(self._buffers)

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {p: b.end for p in partitions if (b := self._buffers.get(p)) is not None}

    def has_next_ranges(self, ranges: Mapping[TopicPartition, OffsetRange]) -> bool:
        """Return whether the records of the ranges are the next ones here: those of a batch that
        is done again have to be delivered again first."""
        return all(
            (buffer := self._buffers.get(at)) is not None
            and (buffer.begin, span.end) == (span.begin, min(span.end, buffer.end))
            for at, span in ranges.items()
        )

    def pop_ranges(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Iterator[list[Record]]:
        """Remove and yield the ranges' records, partition by partition, in the ranges' order."""
        for partition, span in ranges.items():
            buffer = self._buffers.get(partition)
            records = buffer.pop_before(span.end) if buffer else []
            self._bytes -= sum(record.memory_bytes for record in records)
            yield records

    def reseek_where_off_and_resume(self, positions: Mapping[TopicPartition, int]) -> None:
        """Seek the user's consumer where a buffer does not begin at the position.

        Resumes it once the buffers are half empty.
        """
        for partition, position in positions.items():
            buffer = self._buffers.get(partition)
            if partition in self._buffers and (buffer is None or buffer.begin != position):
                self._subtract_bytes_of(buffer)
                self._buffers[partition] = PartitionBuffer(position, position)
                self._steering.seek(partition, position)
                if self._full:  # assigned after the pause
                    self._steering.pause([partition])
        if self._full and self._bytes < self._bytes_max // 2:
            self._full = False
            self._steering.resume(self._buffers)

    def _subtract_bytes_of(self, buffer: PartitionBuffer | None) -> None:
        if buffer is not None:
            self._bytes -= sum(record.memory_bytes for record in buffer.records)


class EmbeddedMember:
    """Implements ``ports.GroupMember`` over a membership that the user's consumer holds."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self.settled = Offsets()

    def poll(self, timeout_ms: int) -> None:
        """Do nothing: the user's loop polls the group."""

    def assignment(self) -> frozenset[TopicPartition]:
        return self._buffers.partitions()

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._buffers.end_offsets(partitions)

    def is_buffer_full(self) -> bool:
        return self._buffers.is_full

    def copy_offsets_to_group(self, offsets: Offsets, metadata: str) -> None:  # noqa: ARG002 - the user commits
        self.settled = self.settled.with_offsets(offsets)

    def close(self) -> None:
        """Do nothing: the user's consumer leaves the group."""
