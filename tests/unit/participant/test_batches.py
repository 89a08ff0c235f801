"""Unannounced work: which ranges a batch reads, and how it is kept or dropped as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from protocol.participating import Participant, claimed
from protocol.values import P0, P1, P2, P3, offsets

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.participant.batches import (
    cap_ranges,
    drop_unannounced_work,
    find_backlog,
    plan_batch,
    readable_positions,
    take_work_as_status,
)
from headgate.participant.inputs_and_actions import EndOffsetsRead

AT = offsets(10, 20)
RANGES = st.dictionaries(
    st.sampled_from([P0, P1, P2, P3]),
    st.tuples(st.integers(0, 50), st.integers(1, 60)).map(lambda r: OffsetRange(r[0], sum(r))),
)


@given(RANGES, st.integers(1, 100))
def test_a_batch_is_never_larger_than_asked(
    ranges: Mapping[TopicPartition, OffsetRange], records_max: int
) -> None:
    chosen = cap_ranges(ranges, records_max)

    assert sum(map(len, chosen.values())) <= records_max
    for partition, part in chosen.items():
        assert part.begin == ranges[partition].begin
        assert part.begin < part.end <= ranges[partition].end


@given(RANGES, st.integers(1, 100))
def test_something_is_read_when_there_is_something(
    ranges: Mapping[TopicPartition, OffsetRange], records_max: int
) -> None:
    assert bool(cap_ranges(ranges, records_max)) is bool(ranges)


@given(RANGES)
def test_a_batch_with_room_takes_all(ranges: Mapping[TopicPartition, OffsetRange]) -> None:
    assert cap_ranges(ranges, sum(map(len, ranges.values()))) == ranges


def test_what_small_partitions_leave_goes_to_larger_ones() -> None:
    ranges = {P0: OffsetRange(0, 2), P1: OffsetRange(0, 1_000), P2: OffsetRange(5, 1_000)}
    chosen = cap_ranges(ranges, 100)

    assert chosen == {P0: OffsetRange(0, 2), P1: OffsetRange(0, 49), P2: OffsetRange(5, 54)}


def test_the_backlog_leaves_out_what_has_nothing_to_read() -> None:
    state = Participant.writing(AT).state
    assert dict(find_backlog(state)) == {}
    participant = Participant.writing(AT)
    participant.given(EndOffsetsRead({P0: 12, P1: 20, P2: 99}))

    assert find_backlog(participant.state) == {P0: OffsetRange(10, 12)}


def test_an_end_before_the_position_is_no_backlog() -> None:
    """A broker that lags behind, or a truncated log: the coordinator's to judge."""
    participant = Participant.writing(AT)
    participant.given(EndOffsetsRead({P0: 3, P1: 20}))

    assert dict(find_backlog(participant.state)) == {}


def test_readable_is_owned_known_and_fixed() -> None:
    participant = Participant.writing(AT)
    participant.owns(P0, P2)

    assert dict(readable_positions(participant.state)) == {P0: 10}


def test_batches_are_numbered_through_and_name_their_transaction() -> None:
    state = Participant.writing(AT).state
    state, first = plan_batch(state, {P0: OffsetRange(10, 12)}, 0)
    state, second = plan_batch(drop_unannounced_work(state), {P0: OffsetRange(10, 12)}, 0)

    assert (first.number, second.number) == (1, 2)
    assert str(second.transaction) == "1.1"
    assert state.run.batch == second


def test_dropping_goes_back_to_where_unannounced_work_began() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    participant.hears_itself()
    participant.start(2, AT, settled_to=12)
    participant.writes({P0: 90, P1: 60})
    state = drop_unannounced_work(participant.state)

    assert dict(state.positions) == {P0: 15, P1: 20}
    assert state.work.files == ()
    assert not state.work.has_unannounced_ranges


def test_announcing_empties_the_work_and_keeps_the_positions() -> None:
    participant = Participant.writing(AT)
    participant.writes({P0: 90, P1: 40})
    state, status = take_work_as_status(participant.state, 1)

    assert claimed(status) == {P0: (10, 90), P1: (20, 40)}
    assert dict(state.positions) == {P0: 90, P1: 40}
    assert not state.work.has_unannounced_ranges
    assert state.work.files == ()
