"""Values per partition as Avro records per topic, and back: names are long and partitions many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets

Form = dict[str, Any]
"""A record of an Avro schema, as fastavro takes and gives it."""

PARTITION_MAX = 2**31 - 1
NUMBER_MAX = 2**62 - 1
"""The limit of every number: it can still be counted up, for Avro and the table hold twice it."""

_Value = TypeVar("_Value")


def natural(value: int) -> int:
    if not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{value} where only natural numbers up to {NUMBER_MAX} are possible")
    return value


def optional_natural(value: int | None) -> int | None:
    return None if value is None else natural(value)


def partition_of(topic: str, partition: int) -> TopicPartition:
    if not 0 <= partition <= PARTITION_MAX:
        raise ValueError(f"topic {topic!r} cannot have a partition {partition}")
    return TopicPartition(topic, partition)


def by_topic(values: Mapping[TopicPartition, _Value]) -> dict[str, dict[int, _Value]]:
    topics: dict[str, dict[int, _Value]] = {}
    for at in sorted(values):
        topics.setdefault(at.topic, {})[at.partition] = values[at]
    return topics


def once(pairs: Iterable[tuple[TopicPartition, _Value]]) -> dict[TopicPartition, _Value]:
    """Build a dictionary; refuse a partition named twice, for either could be meant."""
    values: dict[TopicPartition, _Value] = {}
    for at, value in pairs:
        if at in values:
            raise ValueError(f"{at} is named twice")
        values[at] = value
    return values


def offsets_form(offsets: Offsets) -> list[Form]:
    return [
        {"topic": topic, "partitions": list(next_), "offsets": list(next_.values())}
        for topic, next_ in by_topic(offsets).items()
    ]


def offsets_of(topics: list[Form]) -> Offsets:
    return Offsets(
        once(
            (partition_of(form["topic"], partition), natural(offset))
            for form in topics
            for partition, offset in zip(form["partitions"], form["offsets"], strict=True)
        )
    )


def partitions_form(partitions: frozenset[TopicPartition]) -> list[Form]:
    topics = by_topic(dict.fromkeys(partitions))
    return [{"topic": topic, "partitions": list(numbers)} for topic, numbers in topics.items()]


def partitions_of(topics: list[Form]) -> frozenset[TopicPartition]:
    return frozenset(
        partition_of(form["topic"], number) for form in topics for number in form["partitions"]
    )
