"""Records in a topic of a real broker, and their exact places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.kafka.record_fetch import ReadRequest, read_ranges

Place = tuple[str, int, int]


def produce(
    bootstrap: str, topic: str, values: Iterable[bytes | None], partition: int = 0, **more: Any
) -> list[int]:
    """The offsets of the values, in order."""
    offsets: list[int] = []
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "message.max.bytes": 8_000_000}
    producer = Producer({**settings, **more.pop("settings", {})})
    for value in values:
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    partition=partition,
                    on_delivery=lambda error, message: offsets.append(_confirmed(error, message)),
                    **more,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    return offsets


def _confirmed(error: Any, message: Any) -> int:
    assert error is None, error
    return int(message.offset())


def transaction(bootstrap: str, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
    """All values in one transaction of partition 0; it leaves a marker behind them."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer"}
    producer = Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def log_range(bootstrap: str, topic: str, partition: int = 0) -> OffsetRange:
    """From the log's begin to its last stable offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looking"})
    try:
        begin, end = consumer.get_watermark_offsets(KafkaPartition(topic, partition), timeout=15)
        return OffsetRange(begin, end)
    finally:
        consumer.close()


def topic_id(admin: AdminClient, topic: str) -> TopicId:
    return TopicId(str(admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id))


def read(
    bootstrap: str, ranges: Mapping[tuple[str, int], tuple[int, int]], **more: Any
) -> dict[Place, bytes | None]:
    """What the fetcher finds in the ranges, by place; no place may come twice."""
    wanted = {TopicPartition(*at): OffsetRange(*bounds) for at, bounds in ranges.items()}
    partitions = list(wanted)
    found: dict[Place, bytes | None] = {}
    reading = ReadRequest(
        {"bootstrap.servers": bootstrap}, wanted, more.pop("topic_ids", {}), **more
    )
    for chunk in read_ranges(reading):
        columns = zip(chunk.values, chunk.places, chunk.offsets, chunk.lengths, strict=True)
        for value, place, offset, length in columns:
            at = partitions[place]
            assert len(value or b"") == length
            assert (at.topic, at.partition, int(offset)) not in found
            found[at.topic, at.partition, int(offset)] = value
    return found
