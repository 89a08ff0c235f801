"""Limits how many topics and partitions a sink can have: its START and its record name them all."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.control_protocol import record_codec
from headgate.control_protocol.errors import SourcesTooLarge
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.record import CommitRecord

START_BYTES_MAX = 880_000
"""The size of a control message less the names of sink, tables and folders."""

_PER_TOPIC = 16
_PER_PARTITION = 5
_BITS_PER_BYTE = 7
_WAY_OUT = (
    "read fewer topics with one sink (source.topics), or divide them among several sinks; names "
    "count, so shorter ones help"
)


def refuse_too_many(offsets: Offsets, topic_ids: Mapping[str, TopicId]) -> None:
    """Raise ``SourcesTooLarge`` for what no START could name: nobody would ever hear it."""
    needed = start_bytes(offsets, topic_ids)
    if needed > START_BYTES_MAX:
        raise SourcesTooLarge(
            f"{len(topic_ids)} topics with {len(offsets)} partitions need a START of about "
            f"{needed} bytes on the control topic, at most {START_BYTES_MAX} fit",
            _WAY_OUT,
        )


def refuse_unreadable(record: CommitRecord) -> None:
    """Raise ``SourcesTooLarge`` for a record that could be written but not be read again."""
    try:
        record_codec.encode(record)
    except ValueError as error:
        raise SourcesTooLarge(
            f"the offsets of {len(record.topic_ids)} topics with {len(record.offsets)} partitions "
            f"do not fit into the table's record: {error}",
            _WAY_OUT,
        ) from error


def start_bytes(offsets: Offsets, topic_ids: Mapping[str, TopicId]) -> int:
    """Return the bytes of topics and offsets in a START, and one more for each offset to grow."""
    names = {topic: len(topic.encode()) for topic in {*topic_ids, *(at.topic for at in offsets)}}
    ids = sum(names[topic] + len(id_) for topic, id_ in topic_ids.items())
    read = sum(names[topic] for topic in {at.topic for at in offsets})
    numbers = sum(
        _PER_PARTITION + (offset.bit_length() + 1) // _BITS_PER_BYTE + 1
        for offset in offsets.values()
    )
    return ids + read + _PER_TOPIC * len(names) + numbers
