"""What is put is what can be read; a full buffer pauses the user's consumer."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.participant.embedding import Buffers, EmbeddedMember, Record


def test_the_task_asks_for_a_pause_when_its_buffer_is_full() -> None:
    asked: list[str] = []

    class Steering:
        def seek(self, partition: TopicPartition, offset: int) -> None:
            asked.append(f"seek {partition} {offset}")

        def pause(self, partitions: Iterable[TopicPartition]) -> None:
            asked.append(f"pause {' '.join(map(str, partitions))}")

        def resume(self, partitions: object) -> None:
            asked.append("resume")

    at = TopicPartition("t", 0)
    buffers = Buffers(Steering(), bytes_max=100)
    buffers.open([at])
    buffers.put([Record("t", 0, 0, 0, b"x" * 90)])
    assert buffers.ends([at]) == {}, "records before the position is known do not count"
    buffers.follow({at: 5})
    buffers.put([Record("t", 0, offset, 0, b"x" * 60) for offset in (4, 5, 7, 7)])
    assert buffers.ends([at]) == {at: 8}
    late = TopicPartition("t", 1)
    buffers.open([late])
    buffers.follow({at: 5, late: 0})
    taken = list(buffers.cut({at: OffsetRange(5, 8)}))
    assert [record.offset for record in taken[0]] == [5, 7]
    assert EmbeddedMember(buffers).full()
    buffers.follow({at: 8})
    assert not EmbeddedMember(buffers).full()
    assert asked == ["seek t/0 5", "pause t/0", "seek t/1 0", "pause t/1", "resume"]
