"""Connects commands to the Kafka that a sink's settings name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyroaring import BitMap64

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import MissingRights, Unreachable
from headgate.control_protocol.events import Envelope
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.message_encoding import REFUSED, Skipped, SkipReason
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import TopicState
from headgate.kafka.cluster_queries import (
    ANSWER_S_MAX,
    Cluster,
    read_newest_control_values,
    with_log_silenced,
)
from headgate.kafka.offset_scan import read_record_offsets
from headgate.kafka.source_topics import KafkaSourceTopics
from headgate.runtime.wall_clock import wall_ms

_LATELY_MS = 60_000


@contextmanager
def open_reachable_source_topics(settings: SinkSettings) -> Iterator[KafkaSourceTopics]:
    """Yield the source cluster.

    A request takes at most ``ANSWER_S_MAX``; a dead cluster fails sooner.
    """
    Cluster(settings.kafka).count_brokers()
    topics = KafkaSourceTopics(
        with_log_silenced(settings.kafka),
        settings.source.topics,
        settings.source.group_id,
        ANSWER_S_MAX,
    )
    try:
        yield topics
    finally:
        topics.close()


def read_topics(settings: SinkSettings) -> Mapping[str, TopicState]:
    """Return the source topics as they are now. Raises ``Unreachable`` for a part of one."""
    with open_reachable_source_topics(settings) as topics:
        described = topics.describe()
    require_every_partition_led(described)
    return described


def require_every_partition_led(topics: Mapping[str, TopicState]) -> None:
    """Raise ``Unreachable`` while a partition has no leader: where its log begins and ends is not
    known, and whoever leaves it out finds it at its log's begin later."""
    if silent := [f"{name}/{n}" for name, topic in topics.items() for n in sorted(topic.silent)]:
        raise Unreachable(
            f"no broker leads {', '.join(silent)}: where the log ends is not known",
            "try again once every partition has a leader",
        )


def find_offsets_with_records(
    settings: SinkSettings,
    ranges: Mapping[TopicPartition, OffsetRange],
    on_progress: Callable[[int], None],
) -> Mapping[TopicPartition, BitMap64]:
    """Return the offsets that hold a record, per partition. Raises ``Unreachable``."""
    return read_record_offsets(settings.kafka, settings.source.group_id, ranges, on_progress)


def read_control_tail(
    settings: SinkSettings, count_max: int, into_refused: Counter[SkipReason] | None = None
) -> list[Envelope]:
    """Return this sink's envelopes among the control topic's last ``count_max``, oldest first.

    Empty if there is no control topic. ``into_refused`` counts this sink's events that are not
    trusted, and those that another version has written lately. Raises ``Unreachable``.
    """
    topic = settings.control.topic
    messages = read_newest_control_values(
        settings.kafka, topic, settings.source.group_id, count_max
    )
    topic_id = TopicId("")
    if messages and settings.control.signing_keys:
        topic_id = Cluster(settings.kafka).topic_id(topic)
    read = [settings.event_wire.verify_and_decode(message, topic_id) for message in messages]
    if into_refused is not None:
        into_refused.update(
            e.reason for e in read if isinstance(e, Skipped) and e.reason in REFUSED
        )
        lately = read[index_where_last_minute_begins(read, wall_ms()) :]
        others = (e for e in lately if isinstance(e, Skipped))
        into_refused.update(e.reason for e in others if e.reason is SkipReason.OTHER_VERSION)
    return [envelope for envelope in read if isinstance(envelope, Envelope)]


def index_where_last_minute_begins(read: Sequence[Envelope | Skipped], now_ms: int) -> int:
    """Return where the last minute begins, by the events that are understood.

    What precedes all of these was written before an upgrade.
    """
    understood = [(n, each.time_ms) for n, each in enumerate(read) if isinstance(each, Envelope)]
    before = [number for number, time_ms in understood if time_ms < now_ms - _LATELY_MS]
    return before[-1] if before else understood[0][0] if understood else 0


def which_topics_are_compacted(
    kafka: Mapping[str, str], topics: Iterable[str]
) -> dict[str, bool | None]:
    """Whether Kafka removes records of these topics that are not the last ones of their keys."""
    cluster = Cluster(kafka)
    is_compacted: dict[str, bool | None] = {}
    for name in topics:
        try:
            is_compacted[name] = cluster.is_compacted(name)
        except MissingRights:  # who reads a topic need not see its settings
            is_compacted[name] = None
    return is_compacted
