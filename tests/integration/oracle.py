"""The oracle: a table holds each (topic, partition, offset) of its source exactly once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

Source = Mapping[tuple[str, int], pa.Array]
"""Per topic and partition the offsets that hold a record, ascending."""

SILENCE_SECONDS_MAX = 60


def read_source(bootstrap: str, *topics: str) -> Source:
    """Every committed record's offset, up to each partition's last stable offset."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "oracle",
        "enable.auto.commit": False,
        "enable.partition.eof": True,  # the last offsets may be markers, which never arrive
        "isolation.level": "read_committed",
        "fetch.queue.backoff.ms": 5,
    }
    consumer = Consumer(settings)
    try:
        described = consumer.list_topics(timeout=30).topics
        waiting = {(topic, number) for topic in topics for number in described[topic].partitions}
        offsets: dict[tuple[str, int], list[int]] = {partition: [] for partition in waiting}
        consumer.assign([TopicPartition(*partition, OFFSET_BEGINNING) for partition in waiting])
        heard = time.monotonic()
        while waiting:
            messages = consumer.consume(10_000, timeout=0.1)  # waits for so many or so long
            heard = time.monotonic() if messages else heard
            silence = time.monotonic() - heard
            assert silence < SILENCE_SECONDS_MAX, f"{bootstrap}: no end of {sorted(waiting)}"
            for message in messages:
                partition = (message.topic(), message.partition())
                if error := message.error():
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    waiting.discard(partition)
                else:
                    offsets[partition].append(message.offset())
    finally:
        consumer.close()
    return {partition: pa.array(found, pa.int64()) for partition, found in offsets.items()}


def assert_exactly_once(
    rows: pa.Table | Iterable[pa.Table],
    source: Source,
    *,
    until: Mapping[tuple[str, int], int] | None = None,
    columns: tuple[str, str, str] = ("topic", "partition", "offset"),
) -> None:
    """Fail, with examples, unless the rows are the source's records: none lost, doubled, invented.

    ``rows`` may be several tables (the table and its quarantine). ``until`` are next offsets: what
    lies behind them need not be in the table, and must not be.
    """
    tables = [rows] if isinstance(rows, pa.Table) else list(rows)
    found = _offsets(tables, columns)
    findings = [
        finding
        for partition in sorted(source.keys() | found.keys())
        for finding in _compare(
            partition,
            found.get(partition, pa.array([], pa.int64())),
            _before(source.get(partition, pa.array([], pa.int64())), partition, until),
        )
    ]
    assert not findings, "; ".join(findings)


def _before(
    offsets: pa.Array, partition: tuple[str, int], until: Mapping[tuple[str, int], int] | None
) -> pa.Array:
    if until is None:
        return offsets
    return offsets.filter(pc.less(offsets, until.get(partition, 0)))


def _offsets(tables: Iterable[pa.Table], columns: tuple[str, str, str]) -> Source:
    topic, partition, offset = columns
    chunks: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for table in tables:
        for row in (
            table.group_by([topic, partition], use_threads=False)
            .aggregate([(offset, "list")])
            .to_pylist()
        ):
            chunks[row[topic], row[partition]] += row[f"{offset}_list"]
    return {key: pa.array(sorted(offsets), pa.int64()) for key, offsets in chunks.items()}


def _compare(partition: tuple[str, int], found: pa.Array, expected: pa.Array) -> list[str]:
    name = f"{partition[0]}/{partition[1]}"
    counts = found.value_counts()
    doubled = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    missing = expected.filter(pc.invert(pc.is_in(expected, found)))
    invented = found.filter(pc.invert(pc.is_in(found, expected)))
    return [
        f"{name}: {len(offsets)} {what}, first {offsets[:5].to_pylist()}"
        for what, offsets in (("missing", missing), ("doubled", doubled), ("invented", invented))
        if len(offsets)
    ]
