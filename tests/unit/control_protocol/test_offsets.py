"""The algebra of offsets, as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets

NUMBERS = st.integers(0, 50)
PARTITIONS = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 3))
VECTORS = st.dictionaries(PARTITIONS, NUMBERS).map(Offsets)
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda two: OffsetRange(min(two), max(two)))
CLAIMS = st.dictionaries(PARTITIONS, RANGES)


@given(st.lists(NUMBERS, min_size=3, max_size=3).map(sorted))
def test_ranges_that_follow_each_other_are_one(cuts: list[int]) -> None:
    begin, middle, end = cuts
    whole = OffsetRange(begin, middle).extended_by(OffsetRange(middle, end))
    assert whole == OffsetRange(begin, end)
    assert len(whole) == end - begin
    assert whole.is_empty == (begin == end)


@given(RANGES, RANGES)
def test_only_a_continuation_continues(first: OffsetRange, second: OffsetRange) -> None:
    if first.end == second.begin:
        assert first.extended_by(second).end == second.end
    else:
        with pytest.raises(ValueError, match="does not continue"):
            first.extended_by(second)


@pytest.mark.parametrize(("begin", "end"), [(-1, 0), (2, 1), (-2, -1)])
def test_a_range_runs_forward_from_zero(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match="0 <= begin <= end"):
        OffsetRange(begin, end)


def test_an_offset_is_natural() -> None:
    with pytest.raises(ValueError, match="a/0"):
        Offsets({TopicPartition("a", 0): -1})


@given(VECTORS, CLAIMS)
def test_claims_are_admitted_exactly_where_they_begin(
    offsets: Offsets, claims: dict[TopicPartition, OffsetRange]
) -> None:
    begins = {partition: claim.begin for partition, claim in claims.items()}
    assert offsets.are_continued_by(claims) == (begins.items() <= dict(offsets).items())


@given(VECTORS, CLAIMS)
def test_an_admitted_claim_is_not_admitted_twice(
    offsets: Offsets, claims: dict[TopicPartition, OffsetRange]
) -> None:
    offsets = offsets.with_offsets({partition: claim.begin for partition, claim in claims.items()})
    assert offsets.are_continued_by(claims)
    after = offsets.after_ranges(claims)
    assert after.are_continued_by(claims) == all(claim.is_empty for claim in claims.values())
    assert not after.partitions_behind(offsets)
    assert offsets.partitions_behind(after) == sorted(
        p for p, claim in claims.items() if not claim.is_empty
    )


@given(VECTORS, VECTORS)
def test_moved_offsets_leave_the_old_ones_alone(old: Offsets, changes: Offsets) -> None:
    before = dict(old)
    moved = old.with_offsets(changes)
    assert dict(old) == before
    assert {**before, **changes} == dict(moved)


@given(VECTORS, st.frozensets(PARTITIONS))
def test_a_restriction_names_no_other_partition(
    offsets: Offsets, partitions: frozenset[TopicPartition]
) -> None:
    assert offsets.restricted_to(partitions).keys() == offsets.keys() & partitions
    assert offsets.restricted_to(offsets) == offsets


@given(VECTORS)
def test_equal_offsets_hash_alike(offsets: Offsets) -> None:
    again = Offsets(reversed(list(offsets.items())))
    assert (again, hash(again)) == (offsets, hash(offsets))
    assert offsets != dict(offsets)
