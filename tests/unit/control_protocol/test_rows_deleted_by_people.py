"""The list of deleted records survives in properties, in pieces, and never says too much."""

from __future__ import annotations

import random

import pytest

from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.rows_deleted_by_people import (
    CHARS_MAX,
    DeletedRecords,
    deleted_list_properties,
    deleted_list_property,
    deleted_records_in_properties,
    ranges_of_offsets,
)

SINK, IDS = SinkName("trips"), {"trips": TopicId("id-1")}
ZERO, ONE = TopicPartition("trips", 0), TopicPartition("trips", 1)


def told(rows: int, offsets: list[int], at: TopicPartition = ZERO) -> DeletedRecords:
    return DeletedRecords().with_more_deleted(rows, {at: ranges_of_offsets(offsets)}, IDS)


def test_what_was_written_is_read() -> None:
    deleted = told(5, [0, 1, 2, 7, 1_000_000]).with_more_deleted(
        2, {ONE: ranges_of_offsets([9, 3])}, IDS
    )
    properties = deleted_list_properties(SINK, deleted, {})
    assert deleted_records_in_properties(SINK, 7, properties) == deleted
    assert deleted.ranges_of_topics(IDS)[ZERO] == (
        OffsetRange(0, 3),
        OffsetRange(7, 8),
        OffsetRange(1_000_000, 1_000_001),
    )


def test_ranges_grow_together() -> None:
    deleted = told(2, [1, 3]).with_more_deleted(1, {ZERO: ranges_of_offsets([2])}, IDS)
    assert deleted.offsets == {ZERO: (OffsetRange(1, 4),)}


def test_rows_that_do_not_tell_their_records_are_counted() -> None:
    assert told(2, [1, 3]).with_more_deleted(4, None, IDS).unidentified_row_count == 4


def test_a_topic_that_was_created_anew_has_other_records() -> None:
    anew = {"trips": TopicId("id-2")}
    deleted = told(2, [1, 3])
    assert deleted.ranges_of_topics(anew) == {}
    later = deleted.with_more_deleted(1, {ZERO: ranges_of_offsets([5])}, anew)
    assert later.ranges_of_topics(anew) == {ZERO: (OffsetRange(5, 6),)}
    assert later.ranges_of_topics(IDS) == {}


def test_a_long_list_comes_in_pieces_and_one_that_became_short_leaves_none() -> None:
    scattered = sorted(random.Random(1).sample(range(10_000_000), 3_000))
    properties = deleted_list_properties(SINK, deleted := told(3_000, scattered), {})
    assert len(properties) > 1
    assert all(len(text) <= CHARS_MAX for text in properties.values())
    assert deleted_records_in_properties(SINK, 3_000, properties) == deleted
    short = deleted_list_properties(SINK, told(1, [5]), properties)
    assert deleted_records_in_properties(SINK, 1, {**properties, **short}) == told(1, [5])


def test_a_list_that_is_too_long_stays_as_it_was_and_the_rest_is_counted() -> None:
    properties = deleted_list_properties(SINK, told(1, [5]), {})
    scattered = sorted(random.Random(1).sample(range(2**60), 60_000))
    assert deleted_list_properties(SINK, told(60_000, scattered), properties) == {}
    assert deleted_records_in_properties(SINK, 60_001, properties).unidentified_row_count == 60_000


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"rows": 1}', '{"rows": 1, "topics": {"trips": {"id": "x", "0": "a"}}}', "zlib:x"],
)
def test_a_list_that_somebody_damaged_lists_nothing(text: str) -> None:
    assert deleted_records_in_properties(
        SINK, 3, {deleted_list_property(SINK, 0): text}
    ) == DeletedRecords(3)
