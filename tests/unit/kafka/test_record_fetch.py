"""What a reading makes of records and events, as a consumer might hand them over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from confluent_kafka import KafkaError

from headgate.control_protocol.errors import OffsetOutOfRange, WriteFailed
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.kafka import record_fetch
from headgate.kafka.librdkafka_binding import Event, Messages
from headgate.kafka.record_fetch import ReadRequest, _RangeReader
from headgate.native.byte_arrays import Packed

A0, A1, B1 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 1)
END = KafkaError._PARTITION_EOF
Turn = tuple[Sequence[tuple[TopicPartition, int]], Sequence[Event]]


class Consumer:
    """Hands over one turn after the other, then nothing."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.on_assignment: Mapping[tuple[str, int], int] = {}
        self.paused: list[tuple[str, int]] = []

    def assign(self, begins: Mapping[tuple[str, int], int]) -> None:
        self.on_assignment = begins

    def pause(self, pairs: Sequence[tuple[str, int]]) -> None:
        self.paused += pairs

    def consume(self, _count: int, _ms: int, *, keys: bool, headers: bool) -> Messages:
        assert not (keys or headers)
        records, events = self.turns.pop(0) if self.turns else ((), ())
        names = sorted({at.topic for at, _ in records})
        rows = {
            name: np.array([row for row, (at, _) in enumerate(records) if at.topic == name])
            for name in names
        }
        offsets = np.array([offset for _, offset in records], np.int64)
        return Messages(
            topics=[(name, rows[name]) for name in names],
            partitions=np.array([at.partition for at, _ in records], np.int64),
            offsets=offsets,
            timestamps=np.zeros(len(records), np.int64),
            sizes=np.full(len(records), 3, np.int64),
            values=Packed.from_values([f"{at}:{offset}".encode() for at, offset in records]),
            keys=None,
            headers=None,
            events=events,
        )


def end(at: TopicPartition, offset: int) -> Event:
    return Event(END, "end of partition", at.topic, at.partition, offset)


def records(at: TopicPartition, *offsets: int) -> list[tuple[TopicPartition, int]]:
    return [(at, offset) for offset in offsets]


def read(
    consumer: Consumer,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    stall_ms_max: int = 60_000,
) -> list[tuple[str, int]]:
    """What was read: partition and offset, by their places and by their values alike."""
    spans = {at: OffsetRange(*span) for at, span in ranges.items()}
    names = [str(at) for at in spans]
    found = []
    reading = ReadRequest({}, spans, {}, stall_ms_max=stall_ms_max)
    for chunk in _RangeReader(consumer, reading).chunks():  # type: ignore[arg-type]
        here = list(zip(chunk.places.tolist(), chunk.offsets.tolist(), strict=True))
        values = [f"{names[place]}:{offset}".encode() for place, offset in here]
        assert list(chunk.values) == values
        found += [(names[place], offset) for place, offset in here]
    return found


def test_an_end_of_partition_in_front_of_the_ranges_end_does_not_end_it() -> None:
    """The log grows on: librdkafka tells its end each time that it gets there."""
    consumer = Consumer(
        (records(A0, 0, 1), [end(A0, 2)]),
        ((), [end(A0, 2)]),
        (records(A0, 2, 3), [end(A0, 4)]),
    )
    assert read(consumer, {A0: (0, 4)}) == [("a/0", offset) for offset in range(4)]


def test_one_that_nothing_follows_is_a_loud_error() -> None:
    consumer = Consumer((records(A0, 0, 1), [end(A0, 2)]))
    with pytest.raises(WriteFailed, match="at offset 2, which should reach 4"):
        read(consumer, {A0: (0, 4)}, stall_ms_max=20)


def test_one_behind_markers_and_gaps_ends_the_range() -> None:
    consumer = Consumer((records(A0, 0), [end(A0, 9)]))
    assert read(consumer, {A0: (0, 4)}) == [("a/0", 0)]


def test_one_partitions_end_is_no_others() -> None:
    consumer = Consumer(
        (records(A1, 5), [end(A1, 6)]),
        (records(A0, 0, 1) + records(B1, 7), [end(B1, 8)]),
    )
    found = read(consumer, {A0: (0, 2), A1: (5, 6), B1: (7, 8)})
    assert sorted(found) == [("a/0", 0), ("a/0", 1), ("a/1", 5), ("b/1", 7)]
    assert sorted(consumer.paused) == [("a", 0), ("a", 1), ("b", 1)]


def test_an_end_of_long_ago_takes_nothing_back() -> None:
    consumer = Consumer((records(A0, 3, 4), [end(A0, 2)]), (records(A0, 4, 5), ()))
    assert read(consumer, {A0: (3, 6)}) == [("a/0", 3), ("a/0", 4), ("a/0", 5)]


def test_records_outside_of_the_range_are_left_out() -> None:
    consumer = Consumer((records(A0, 1, 2, 3, 4, 5), ()))
    assert read(consumer, {A0: (2, 4)}) == [("a/0", 2), ("a/0", 3)]


def test_an_empty_range_is_not_assigned() -> None:
    consumer = Consumer((records(A1, 5), ()))
    read(consumer, {A0: (3, 3), A1: (5, 6)})
    assert dict(consumer.on_assignment) == {("a", 1): 5}


def test_an_offset_that_is_not_in_the_log_is_named() -> None:
    away = Event(KafkaError._AUTO_OFFSET_RESET, "out of range", "a", 0, 0)
    with pytest.raises(OffsetOutOfRange, match="a/0"):
        read(Consumer(((), [away])), {A0: (0, 4)})


def test_topic_ids_are_asked_after_the_last_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[ReadRequest] = []

    class Clients:
        def take_consumer(self, _: object) -> Consumer:
            consumer = Consumer((records(A0, 0), ()))
            consumer.unassign = lambda: None  # type: ignore[attr-defined]
            return consumer

        def give_back_consumer(self, *_: object) -> None:
            assert asked

    monkeypatch.setattr(record_fetch, "_CLIENTS", Clients())
    monkeypatch.setattr(record_fetch, "_require_same_topics", asked.append)
    reading = ReadRequest({}, {A0: OffsetRange(0, 1)}, {"a": TopicId("id")})
    for chunk in record_fetch.read_ranges(reading):
        assert (len(chunk.values), asked) == (1, [])
    assert asked == [reading]
