"""Valid-through: the smallest of the partitions' largest timestamps, as far as known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from protocol.values import P0, P1, TOPIC_ID, offsets, record

from headgate.control_protocol.events import WrittenRange
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.offsets import OffsetRange
from headgate.coordinator.recovery import valid_through_of_claim
from headgate.coordinator.state import Activity
from headgate.coordinator.status_validation import (
    activity_with_ranges,
    valid_through_of_partitions,
)

TIMES = st.none() | st.integers(0, 100)


def claim(max_timestamp_ms: int | None) -> WrittenRange:
    return WrittenRange(OffsetRange(0, 1), 1, max_timestamp_ms=max_timestamp_ms)


def test_the_largest_timestamp_of_each_partition_is_remembered() -> None:
    seen = activity_with_ranges({P0: Activity(1, 70)}, [(P0, claim(50)), (P1, claim(30))], now_ms=9)

    assert seen == {P0: Activity(9, 70), P1: Activity(9, 30)}


def test_offsets_without_records_are_activity_but_have_no_timestamp() -> None:
    seen = activity_with_ranges({P0: Activity(1, 70)}, [(P0, claim(None))], now_ms=9)

    assert seen == {P0: Activity(9, 70)}


def test_an_idle_partition_ages_from_when_it_was_first_named() -> None:
    idle = WrittenRange(OffsetRange(4, 4))
    first = activity_with_ranges({}, [(P0, idle)], now_ms=5)

    assert first == {P0: Activity(5, None)}
    assert activity_with_ranges(first, [(P0, idle)], now_ms=9) == first


def test_a_partition_of_which_no_record_was_seen_yet_holds_it_back_until_it_is_idle() -> None:
    activity = {P0: Activity(6, 70), P1: Activity(5, None)}

    assert valid_through_of_partitions(40, activity, idle_before_ms=4) == 40
    assert valid_through_of_partitions(40, activity, idle_before_ms=5) == 70


def test_the_smallest_of_the_active_partitions_counts() -> None:
    activity = {P0: Activity(5, 70), P1: Activity(6, 30)}

    assert valid_through_of_partitions(None, activity, idle_before_ms=4) == 30
    assert valid_through_of_partitions(None, activity, idle_before_ms=5) == 30
    assert (
        valid_through_of_partitions(
            None, {P0: Activity(6, 70), P1: Activity(5, 30)}, idle_before_ms=5
        )
        == 70
    )


def test_x9_when_all_are_idle_it_stays() -> None:
    assert valid_through_of_partitions(40, {P0: Activity(5, 70)}, idle_before_ms=5) == 40
    assert valid_through_of_partitions(None, {}, idle_before_ms=5) is None


@given(
    previous=TIMES,
    activity=st.dictionaries(
        st.sampled_from([P0, P1]), st.builds(Activity, st.integers(0, 9), TIMES)
    ),
    idle_before_ms=st.integers(0, 9),
)
def test_it_never_goes_back(
    previous: int | None,
    activity: dict,
    idle_before_ms: int,  # type: ignore[type-arg]
) -> None:
    through = valid_through_of_partitions(previous, activity, idle_before_ms)

    assert previous is None or (through is not None and through >= previous)


def test_a_claim_that_goes_on_where_the_record_ends_knows_what_it_knew() -> None:
    stored = record(1, 2, offsets(10, 20), valid_through_ms=70)
    grown = offsets(10, 25, 0)

    assert valid_through_of_claim(stored, stored.offsets, stored.topic_ids) == 70
    assert valid_through_of_claim(stored, grown, {"trips": TOPIC_ID, "new": TopicId("other")}) == 70
    assert valid_through_of_claim(stored, offsets(10, 20), {}) == 70, "a topic that is read no more"


def test_where_an_offset_goes_back_or_a_topic_is_another_nothing_is_known() -> None:
    stored = record(1, 2, offsets(10, 20), valid_through_ms=70)

    assert valid_through_of_claim(stored, offsets(10, 19), stored.topic_ids) is None
    assert valid_through_of_claim(stored, offsets(12, 20), {"trips": TopicId("other")}) is None
