"""Reads exactly the records of a range, whatever else is in the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from integration.data_plane.filling import log_range, produce, read, topic_id, transaction
from support.topics import delete_topics

from headgate.control_protocol.errors import OffsetOutOfRange, TopicRecreated, WriteFailed
from headgate.control_protocol.identifiers import TopicId

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("either_loops")]

TopicFactory = Callable[..., str]


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def test_ranges_of_several_partitions_and_topics(
    bootstrap: str, topic_factory: TopicFactory
) -> None:
    first, second = topic_factory(partitions=3), topic_factory()
    for topic, partition in ((first, 0), (first, 1), (first, 2), (second, 0)):
        produce(bootstrap, topic, numbered(0, 3000), partition)
    ranges = {
        (first, 0): (0, 3000),
        (first, 1): (1000, 1001),
        (first, 2): (7, 7),
        (second, 0): (500, 2500),
    }
    for _ in range(2):  # the second time with the consumer of the first
        assert read(bootstrap, ranges) == {
            (topic, partition, offset): b"%d" % offset
            for (topic, partition), (begin, end) in ranges.items()
            for offset in range(begin, end)
        }


def test_empty_ranges_need_no_broker() -> None:
    assert read("127.0.0.1:1", {("nowhere", 0): (5, 5)}) == {}


def test_a_range_may_end_in_markers_and_hold_aborted_records(
    bootstrap: str, topic_factory: TopicFactory
) -> None:
    topic = topic_factory()
    transaction(bootstrap, topic, numbered(0, 10), commit=True)
    transaction(bootstrap, topic, [b"never"] * 20, commit=False)
    whole = log_range(bootstrap, topic)
    assert whole.end == 10 + 1 + 20 + 1
    committed = {(topic, 0, offset): b"%d" % offset for offset in range(10)}
    assert read(bootstrap, {(topic, 0): (0, whole.end)}) == committed
    # In the midst of the aborted records, on the markers, and behind the last record.
    for end in (10, 11, 12, 25, 31):
        assert read(bootstrap, {(topic, 0): (0, end)}) == committed
    for begin in (10, 11, 15, 31):
        assert read(bootstrap, {(topic, 0): (begin, whole.end)}) == {}
    transaction(bootstrap, topic, [b"after"], commit=True)
    for end in (10, 11, 25, 32):
        assert read(bootstrap, {(topic, 0): (0, end)}) == committed
    assert read(bootstrap, {(topic, 0): (11, 34)}) == {(topic, 0, 32): b"after"}


def test_gaps_of_compaction(bootstrap: str, topic_factory: TopicFactory) -> None:
    topic = topic_factory(
        config={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "max.compaction.lag.ms": "200",
            "delete.retention.ms": "100",
        }
    )
    produce(bootstrap, topic, numbered(0, 500), key="same")
    everything = {(topic, 0, offset): b"%d" % offset for offset in range(500)}
    bound_s = time.monotonic() + 60
    while len(found := read(bootstrap, {(topic, 0): (0, 500)})) == 500:
        assert found == everything
        assert time.monotonic() < bound_s, "the broker does not compact"
        # A new record rolls the segment, so that the old one may be compacted.
        produce(bootstrap, topic, [b"later"], key="other")
        time.sleep(0.3)
    assert found.items() <= everything.items()
    assert read(bootstrap, {(topic, 0): (10, 400)}).items() <= everything.items()


def test_large_values_come_in_small_chunks(bootstrap: str, topic_factory: TopicFactory) -> None:
    topic = topic_factory(config={"max.message.bytes": "8000000"})
    values = [bytes([number]) * 3_000_000 for number in range(12)]
    produce(bootstrap, topic, [b"small", *values, b"small"])
    found = read(bootstrap, {(topic, 0): (0, 14)})
    assert list(found.values()) == [b"small", *values, b"small"]


def test_tombstones_are_records(bootstrap: str, topic_factory: TopicFactory) -> None:
    topic = topic_factory()
    produce(bootstrap, topic, [b"a", None, b""], key="k")
    assert list(read(bootstrap, {(topic, 0): (0, 3)}).values()) == [b"a", None, b""]


@pytest.mark.parametrize("bounds", [(0, 10), (3, 4), (25, 30)])
def test_offsets_that_are_not_in_the_log(
    bootstrap: str, topic_factory: TopicFactory, admin: AdminClient, bounds: tuple[int, int]
) -> None:
    topic = topic_factory()
    produce(bootstrap, topic, numbered(0, 20))
    for deleted in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        deleted.result()
    with pytest.raises(OffsetOutOfRange, match=topic):
        read(bootstrap, {(topic, 0): bounds})


def test_a_topic_of_another_id(
    bootstrap: str, topic_factory: TopicFactory, admin: AdminClient
) -> None:
    topic = topic_factory()
    produce(bootstrap, topic, numbered(0, 20))
    ids = {topic: topic_id(admin, topic)}
    assert len(read(bootstrap, {(topic, 0): (0, 20)}, topic_ids=ids)) == 20
    with pytest.raises(TopicRecreated, match=topic):
        read(bootstrap, {(topic, 0): (0, 20)}, topic_ids={topic: TopicId("another")})


def test_a_topic_created_again_with_fewer_records(
    bootstrap: str, topic_factory: TopicFactory, admin: AdminClient
) -> None:
    topic = topic_factory()
    produce(bootstrap, topic, numbered(0, 20))
    ids = {topic: topic_id(admin, topic)}
    delete_topics(admin, topic)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    produce(bootstrap, topic, numbered(0, 3))
    with pytest.raises(TopicRecreated, match=topic):
        read(bootstrap, {(topic, 0): (10, 20)}, topic_ids=ids)


def test_records_that_never_come_are_a_loud_error(
    bootstrap: str, topic_factory: TopicFactory
) -> None:
    topic = topic_factory()
    produce(bootstrap, topic, numbered(0, 20))
    with pytest.raises(WriteFailed, match=rf"{topic}/0.*offset 20.*reach 21"):
        read(bootstrap, {(topic, 0): (0, 21)}, stall_ms_max=1000)


def test_a_cluster_that_is_not_there_is_a_loud_error() -> None:
    with pytest.raises(WriteFailed, match="nowhere/0"):
        read("127.0.0.1:1", {("nowhere", 0): (0, 1)}, stall_ms_max=500)


def test_two_readers_in_one_process_do_not_disturb_each_other(
    bootstrap: str, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=2)
    for partition in (0, 1):
        produce(bootstrap, topic, numbered(0, 5000), partition)
    counts: dict[int, int] = {}

    def work(partition: int) -> None:
        counts[partition] = len(read(bootstrap, {(topic, partition): (0, 5000)}))

    threads = [threading.Thread(target=work, args=(partition,)) for partition in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {0: 5000, 1: 5000}
