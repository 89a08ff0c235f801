"""The loop of a task's owner may hold records that it has not put yet."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.kafka.push_source import Buffers, EmbeddedMember, Record
from headgate.runtime.embedded_sink_task import SinkTask

AT = TopicPartition("t", 0)


class Driver:
    """Stands at a position, and runs no batch."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(run=SimpleNamespace(batch=None), positions={AT: 300})

    def run_once(self, timeout_ms: int) -> None:
        """Learn nothing new."""


class Consumer:
    """The owner's consumer: where it stands is what it delivers next."""

    next = 0

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.next = offset

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def deliver(self, end: int) -> list[Record]:
        begin, self.next = self.next, end
        return [Record("t", 0, offset, 0, b"x") for offset in range(begin, end)]


def test_records_held_while_others_are_opened_do_not_replace_those_that_come_again() -> None:
    """A rebalance comes inside the owner's poll: a failed batch is sought again by the next put."""
    consumer, driver = Consumer(), Driver()
    buffers = Buffers(consumer, bytes_max=1 << 20)
    task = SinkTask(cast("Any", driver), buffers, EmbeddedMember(buffers))
    task.open([AT])
    task.put([])
    task.put(consumer.deliver(310))
    batch = {AT: OffsetRange(300, 310)}
    list(buffers.pop_ranges(batch))  # it is written, and fails
    held = consumer.deliver(315)
    task.open([])
    task.put(held)
    task.put(consumer.deliver(320))
    (records,) = buffers.pop_ranges({AT: OffsetRange(300, 320)})
    assert [record.offset for record in records] == list(range(300, 320))
