"""Lists which records' rows people have deleted from a table, as the table's properties keep it
(COMPACTION-1).

Offsets name records without their contents, so the list may stay while a person is forgotten. It
outlives snapshots, which expire. So the audit can tell a deleted row from a lost one, and no
command brings a deleted row back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from headgate.control_protocol.commit_record_codec import compress_text_if_long, decompress_text
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import DeletedBack
from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange

CHARS_MAX = 3_500
"""In one property: older Hive metastores hold 4,000 characters of a parameter."""

PIECES_MAX = 16
"""How many properties one list takes at most. Rows beyond that are counted only."""

_BYTES_MAX = 4 * 1024 * 1024

RangesByPartition = Mapping[TopicPartition, tuple[OffsetRange, ...]]
TopicIds = Mapping[str, TopicId]

_EVERYTHING = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """Counts the ``rows`` that people deleted, and lists ``offsets``: ``listed`` of them are known.

    ``topic_ids``: the topics that the offsets belong to.
    """

    rows: int = 0
    listed: int = 0
    offsets: RangesByPartition = field(default_factory=dict)
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)

    @property
    def unidentified_row_count(self) -> int:
        """Return of how many deleted rows nothing tells the records."""
        return max(0, self.rows - self.listed)

    def ranges_of_topics(self, topic_ids: Mapping[str, TopicId]) -> RangesByPartition:
        """Return those of these topics: a topic that was re-created has other records."""
        return {
            at: ranges
            for at, ranges in self.offsets.items()
            if topic_ids.get(at.topic, "") == self.topic_ids.get(at.topic, "")
        }

    def listed_count_within(
        self, ranges: Mapping[TopicPartition, OffsetRange], topic_ids: TopicIds
    ) -> int:
        """Return how many of the listed records of these topics lie in the ranges."""
        listed = self.ranges_of_topics(topic_ids)
        return sum(
            max(0, min(each.end, span.end) - max(each.begin, span.begin))
            for at, span in ranges.items()
            for each in listed.get(at, ())
        )

    def with_more_deleted(
        self,
        row_count: int,
        offsets_if_known: RangesByPartition | None,
        topic_ids: Mapping[str, TopicId],
    ) -> DeletedRecords:
        """Return the list after so many more rows were deleted, with their offsets if known."""
        counted = replace(self, rows=self.rows + row_count)
        if offsets_if_known is None:
            return counted
        ids = {
            **self.topic_ids,
            **{at.topic: topic_ids.get(at.topic, "") for at in offsets_if_known},
        }
        kept = {
            at: ranges
            for at, ranges in self.offsets.items()
            if self.topic_ids.get(at.topic, "") == ids[at.topic]
        }
        merged = {
            at: tuple(_merge_adjacent_ranges((*kept.get(at, ()), *offsets_if_known.get(at, ()))))
            for at in sorted({*kept, *offsets_if_known})
        }
        known = {topic: TopicId(id_) for topic, id_ in ids.items()}
        return DeletedRecords(counted.rows, self.listed + row_count, merged, known)


def ranges_read_again(
    before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetRange]:
    """Return what is read again where the next offsets become those of ``after``.

    Where none is known before, everything may have been read.
    """
    known = {at: (offset, before.get(at, _EVERYTHING)) for at, offset in after.items()}
    return {at: OffsetRange(begin, end) for at, (begin, end) in known.items() if begin < end}


def require_deleted_rows_stay_deleted(
    name: str,
    deleted: DeletedRecords,
    ranges: Mapping[TopicPartition, OffsetRange],
    ids: TopicIds,
    *,
    hint: str,
) -> None:
    """COMPACTION-1: raise ``DeletedBack`` if records whose rows people deleted would be read
    again, or might, since the list is not complete."""
    if not ranges:
        return
    records = deleted.listed_count_within(ranges, ids)
    if records or deleted.unidentified_row_count:
        what = (
            count_of(records, "record")
            if records
            else f"some of {deleted.unidentified_row_count} records"
        )
        raise DeletedBack(
            f"{name}: {what} whose rows people deleted (headgate delete) would be read again", hint
        )


def deleted_list_property(sink: SinkName, piece: int) -> str:
    """Return the name of one piece of the list."""
    return f"headgate.{sink}.deleted-records" + (f".{piece}" if piece else "")


def deleted_list_properties(
    sink: SinkName, deleted: DeletedRecords, before: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties that keep the list; none if it has become too long for them."""
    topics: dict[str, dict[str, str]] = {}
    for at, ranges in deleted.offsets.items():
        known = topics.setdefault(at.topic, {"id": deleted.topic_ids.get(at.topic, "")})
        known[str(at.partition)] = ",".join(_encode_ranges_as_gaps(ranges))
    text = compress_text_if_long(
        json.dumps({"rows": deleted.listed, "topics": topics}, separators=(",", ":"))
    )
    pieces = [text[place : place + CHARS_MAX] for place in range(0, len(text), CHARS_MAX)]
    if len(pieces) > PIECES_MAX:
        return {}
    found = {deleted_list_property(sink, number): piece for number, piece in enumerate(pieces)}
    others = (deleted_list_property(sink, number) for number in range(len(pieces), PIECES_MAX))
    return {**found, **{name: "" for name in others if before.get(name)}}


def deleted_records_in_properties(
    sink: SinkName, row_count: int, properties: Mapping[str, str]
) -> DeletedRecords:
    """Return what the properties list of so many deleted rows; nothing if that is unreadable."""
    text = "".join(properties.get(deleted_list_property(sink, n), "") for n in range(PIECES_MAX))
    return (
        replace(_try_parse_deleted_list(text), rows=row_count)
        if text
        else DeletedRecords(row_count)
    )


@lru_cache(maxsize=64)
def _try_parse_deleted_list(text: str) -> DeletedRecords:
    """Return the list; an empty one if it is unreadable. Each view of a table asks for its own."""
    try:
        form = json.loads(decompress_text(text, _BYTES_MAX))
        listed, offsets, ids = form["rows"], dict[TopicPartition, tuple[OffsetRange, ...]](), {}
        for topic, known in form["topics"].items():
            ids[topic] = TopicId(known["id"])
            for partition, ranges in known.items():
                if partition != "id":
                    offsets[TopicPartition(topic, int(partition))] = tuple(
                        _decode_ranges_from_gaps(ranges)
                    )
        return DeletedRecords(0, int(listed), offsets, ids)
    except (ValueError, KeyError, TypeError, AttributeError):
        return DeletedRecords()


def ranges_of_offsets(offsets: Iterable[int]) -> tuple[OffsetRange, ...]:
    """Return the offsets, in any order, as ranges."""
    return tuple(_runs_of_sorted_offsets(sorted(offsets)))


def _runs_of_sorted_offsets(offsets: Iterable[int]) -> Iterator[OffsetRange]:
    begin, end = 0, 0
    for offset in offsets:
        if offset > end:
            if begin < end:
                yield OffsetRange(begin, end)
            begin = offset
        end = max(end, offset + 1)
    if begin < end:
        yield OffsetRange(begin, end)


def _merge_adjacent_ranges(ranges: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    begin, end = 0, 0
    for each in sorted(ranges, key=lambda one: one.begin):
        if each.begin > end:
            if begin < end:
                yield OffsetRange(begin, end)
            begin = each.begin
        end = max(end, each.end)
    if begin < end:
        yield OffsetRange(begin, end)


def _encode_ranges_as_gaps(ranges: Iterable[OffsetRange]) -> Iterator[str]:
    """Write each as its distance from the one before, and its length unless that is 1."""
    end = 0
    for each in ranges:
        yield f"{each.begin - end}" + (f"+{len(each)}" if len(each) > 1 else "")
        end = each.end


def _decode_ranges_from_gaps(text: str) -> Iterator[OffsetRange]:
    end = 0
    for each in text.split(","):
        gap, _, length = each.partition("+")
        begin = end + int(gap)
        end = begin + int(length or 1)
        yield OffsetRange(begin, end)
