"""Shares: nothing lost, nothing twice, and one failure is everybody's."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control_protocol.errors import ConfigurationError, PoisonRecord
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchFailed, BatchWritten, PartitionResult
from headgate.data_plane.spark.tasks import SHARE_OFFSETS_MIN, merge_outcomes, split_into_shares

TABLE = TableStart("db.t", "uuid", schema_id=0, spec_id=0, file_prefix="s3://t/data/")

ranges = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3)),
    st.builds(
        lambda begin, length: OffsetRange(begin, begin + length),
        st.integers(0, 10**6),
        st.sampled_from([0, 1, SHARE_OFFSETS_MIN, 3 * SHARE_OFFSETS_MIN + 1, 10**7]),
    ),
)


def batch_of(ranges: dict[TopicPartition, OffsetRange]) -> Batch:
    return Batch(5, TransactionId(Epoch(1), TransactionNumber(1)), TABLE, ranges, 1 << 27)


def written(share: Batch) -> BatchWritten:
    results = {
        at: PartitionResult(r, records=len(r), bytes_read=2 * len(r), max_timestamp_ms=r.end)
        for at, r in share.ranges.items()
    }
    return BatchWritten(share.number, results, (WrittenFile(str(share.ranges), 1, 1),))


@given(ranges, st.integers(1, 9))
def test_the_shares_joined_are_the_batch(
    ranges: dict[TopicPartition, OffsetRange], shares_max: int
) -> None:
    batch = batch_of(ranges)
    shares = split_into_shares(batch, shares_max)
    whole = merge_outcomes(batch, [written(share) for share in shares])
    assert isinstance(whole, BatchWritten)
    assert whole.number == 5
    assert {at: (r.range, r.records) for at, r in whole.partitions.items()} == {
        at: (r, len(r)) for at, r in ranges.items()
    }
    assert len(whole.files) == len(shares)


@given(ranges, st.integers(1, 9))
def test_shares_are_few_equal_and_not_too_small(
    ranges: dict[TopicPartition, OffsetRange], shares_max: int
) -> None:
    sizes = [
        sum(map(len, share.ranges.values()))
        for share in split_into_shares(batch_of(ranges), shares_max)
    ]
    assert len(sizes) <= shares_max
    assert all(size == sizes[0] for size in sizes[:-1])
    assert all(size >= SHARE_OFFSETS_MIN for size in sizes[:-1])
    assert all(sizes)


def test_one_failed_share_fails_the_batch_and_poison_outweighs() -> None:
    never = PoisonRecord("never")
    batch = batch_of({TopicPartition("a", 0): OffsetRange(0, 1)})
    outcomes = [BatchFailed(1, "later"), written(batch), BatchFailed(2, "never", never)]
    assert merge_outcomes(batch, outcomes) == BatchFailed(5, "never", never)


def test_the_records_of_all_shares_that_stop_the_sink_are_named_together() -> None:
    """BATCH-2: the batch is cut once, and written."""
    one, other = TopicPartition("a", 0), TopicPartition("a", 1)
    batch = batch_of({at: OffsetRange(0, 9) for at in (one, other)})
    stops = [PoisonRecord("x", "", Offsets(first)) for first in ({one: 5}, {one: 3, other: 7})]
    whole = merge_outcomes(batch, [BatchFailed(1, str(each), each) for each in stops])
    assert isinstance(whole, BatchFailed)
    assert isinstance(whole.fatal, PoisonRecord)
    assert whole.fatal.first == Offsets({one: 3, other: 7})
    hopeless = ConfigurationError("no such column")
    whole = merge_outcomes(
        batch, [*(BatchFailed(1, "x", each) for each in stops), BatchFailed(1, "y", hopeless)]
    )
    assert isinstance(whole, BatchFailed)
    assert whole.fatal is hopeless


def test_a_missing_share_is_never_a_claim() -> None:
    batch = batch_of({TopicPartition("a", 0): OffsetRange(0, 3 * SHARE_OFFSETS_MIN)})
    first, second, third = (written(share) for share in split_into_shares(batch, 3))
    with pytest.raises(ValueError, match="do not make up"):
        merge_outcomes(batch, [first, second])
    with pytest.raises(ValueError, match="does not continue"):
        merge_outcomes(batch, [first, third])


def test_the_place_of_such_a_record_comes_back_from_a_task() -> None:
    error = PoisonRecord("x", "mend it", Offsets({TopicPartition("a", 0): 5}))
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.first) == (str(error), error.first)
