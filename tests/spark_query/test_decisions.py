"""What a batch of a Spark query is to its table: each rule, without Spark."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from headgate.control_protocol.commit_record import OPERATOR, CommitRecord
from headgate.control_protocol.errors import BatchConflict, BatchGap, QuerySuperseded
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.spark_batch_decision import (
    FIRST,
    NEXT_BATCH,
    QUERY_TOPIC,
    Done,
    ProposedBatch,
    QueryRun,
    Take,
    decide_batch,
    first_claim_of_query,
    is_record_of_query,
    next_transaction,
    record_of_batch,
    require_not_superseded,
)

A, B, C = (TopicPartition("t", number) for number in range(3))
ME, OTHER = Sender("spark-q", "mine"), Sender("spark-q", "other")
RUN = QueryRun(SinkName("s"), "g", ME)


def stored(a: int, b: int, *, batch: int = 2, query: str = "q", by: Sender = OTHER) -> CommitRecord:
    return CommitRecord(
        SinkName("s"),
        "g",
        TransactionId(Epoch(3), TransactionNumber(7)),
        by,
        Offsets({A: a, B: b, NEXT_BATCH: batch}),
        {QUERY_TOPIC: TopicId(query), "t": TopicId("id")},
    )


def batch(
    number: int, begin: tuple[int, int], end: tuple[int, int], query: str = "q"
) -> ProposedBatch:
    first, last = dict(zip((A, B), begin, strict=True)), dict(zip((A, B), end, strict=True))
    return ProposedBatch(query, number, Offsets(first), Offsets(last))


def test_query_2_a_first_batch_is_taken_and_a_later_one_fills_no_new_table() -> None:
    assert decide_batch(None, batch(0, (15, 25), (20, 30))) == Take()
    with pytest.raises(BatchGap):
        decide_batch(None, batch(4, (15, 25), (20, 30)))


def test_query_2_the_claim_says_where_the_first_batch_begins() -> None:
    first = batch(0, (15, 25), (20, 30))
    claim = first_claim_of_query(first, RUN, {"t": TopicId("id")})
    assert claim.is_claim
    assert claim.offsets == Offsets({A: 15, B: 25, NEXT_BATCH: 0})
    assert decide_batch(claim, first) == decide_batch(claim, first, stateful=True) == Take()
    assert is_record_of_query(claim)


def test_query_3_offsets_alone_place_a_batch_whatever_its_query_and_number() -> None:
    for number, query in ((0, "other"), (2, "q"), (9, "q")):
        assert decide_batch(stored(10, 20), batch(number, (10, 20), (15, 25), query)) == Take()
        assert decide_batch(stored(10, 20), batch(number, (4, 4), (10, 20), query)) == Done()


def test_query_3_a_query_goes_on_after_others_have_filled_the_table() -> None:
    after = stored(15, 25, by=Sender("host-1", "x"))
    assert decide_batch(after, batch(2, (10, 20), (15, 25))) == Done()
    assert decide_batch(after, batch(3, (15, 25), (18, 28))) == Take()


def test_query_4_a_batch_that_the_table_has_is_done() -> None:
    assert decide_batch(stored(15, 25, batch=3), batch(2, (10, 20), (15, 25))) == Done()
    assert decide_batch(stored(16, 25, batch=3), batch(2, (10, 20), (15, 25))) == Done()


def test_query_5_the_next_batch_is_taken_whole_and_a_new_partition_begins_anywhere() -> None:
    assert decide_batch(stored(10, 20), batch(2, (10, 20), (15, 25))) == Take()
    begin, end = Offsets({A: 10, B: 20, C: 5}), Offsets({A: 11, B: 20, C: 9})
    assert decide_batch(stored(10, 20), ProposedBatch("q", 2, begin, end)) == Take()


def test_query_6_a_batch_that_straddles_is_trimmed() -> None:
    found = decide_batch(stored(10, 20), batch(0, (0, 20), (15, 25), "r"))
    assert found == Take(Offsets({A: 10}))


def test_query_7_records_between_are_not_lost() -> None:
    with pytest.raises(BatchGap, match="between would be lost"):
        decide_batch(stored(10, 20), batch(3, (11, 20), (15, 25)))


def test_query_8_stored_offsets_never_go_back() -> None:
    straddles = batch(0, (0, 0), (15, 12))
    assert decide_batch(stored(10, 20), straddles) == Take(Offsets({A: 10, B: 20}))
    record = record_of_batch(
        stored(10, 20), straddles, RUN, transaction=FIRST, topic_ids={}, rows=4
    )
    assert record.offsets == Offsets({A: 15, B: 20, NEXT_BATCH: 1})
    assert (record.records, record.skipped) == (4, 1)


def test_query_9_a_stateful_query_is_placed_by_its_number() -> None:
    next_one = batch(2, (10, 20), (15, 25))
    assert decide_batch(stored(10, 20), next_one, stateful=True) == Take()
    assert decide_batch(stored(15, 25, batch=3), next_one, stateful=True) == Done()
    assert decide_batch(stored(99, 99, batch=9), next_one, stateful=True) == Done()
    with pytest.raises(BatchConflict):
        decide_batch(stored(16, 25, batch=3), next_one, stateful=True)
    with pytest.raises(BatchConflict):
        decide_batch(stored(11, 20), next_one, stateful=True)
    with pytest.raises(BatchGap):
        decide_batch(stored(10, 20, batch=1), next_one, stateful=True)
    with pytest.raises(BatchGap):
        decide_batch(stored(10, 20, query="r"), next_one, stateful=True)


def test_query_10_without_offsets_of_kafka_the_number_decides() -> None:
    other = ProposedBatch("q", 2, by_number=True)
    assert decide_batch(stored(0, 0), other) == Take()
    assert decide_batch(stored(0, 0, batch=3), other) == Done()
    with pytest.raises(BatchGap):
        decide_batch(stored(0, 0, batch=1), other)
    with pytest.raises(BatchGap):
        decide_batch(stored(0, 0, query="r"), other)


def test_query_13_the_first_commit_of_a_run_raises_the_epoch() -> None:
    assert next_transaction(None, None, ME) == FIRST
    before = stored(10, 20)
    first = next_transaction(before, before.transaction, ME)
    assert str(first) == "4.1"
    ours = record_of_batch(
        before, batch(2, (10, 20), (15, 25)), RUN, transaction=first, topic_ids={}, rows=10
    )
    assert str(next_transaction(ours, first, ME)) == "4.2"


def test_query_13_after_a_rollback_no_epoch_and_no_transaction_comes_again() -> None:
    left_behind = TransactionId(Epoch(9), TransactionNumber(4))
    assert str(next_transaction(stored(10, 20, by=ME), left_behind, ME)) == "10.1"


def test_query_13_a_run_that_finds_a_higher_epoch_ends_except_of_a_pause() -> None:
    ours = QueryRun(SinkName("s"), "g", ME, Epoch(2))
    require_not_superseded(stored(1, 1), RUN)
    require_not_superseded(stored(1, 1, by=ME), ours)
    with pytest.raises(QuerySuperseded):
        require_not_superseded(stored(1, 1), ours)
    for command, harmless in (("pause", True), ("resume", True), ("offsets set", False)):
        claim = CommitRecord(
            SinkName("s"),
            "g",
            TransactionId(Epoch(3), TransactionNumber(0)),
            Sender(OPERATOR, "x"),
            Offsets(),
            command=command,
        )
        if harmless:
            require_not_superseded(claim, ours)
        else:
            with pytest.raises(QuerySuperseded):
                require_not_superseded(claim, ours)


def test_query_15_a_stateful_query_skips_nothing() -> None:
    proposed = batch(2, (10, 20), (15, 25))
    assert (
        record_of_batch(
            stored(10, 20), proposed, RUN, transaction=FIRST, topic_ids={}, rows=3
        ).skipped
        == 7
    )
    stateful = record_of_batch(
        stored(10, 20), proposed, RUN, transaction=FIRST, topic_ids={}, rows=3, stateful=True
    )
    assert stateful.skipped == 0


OFFSETS = st.tuples(st.integers(0, 6), st.integers(0, 6))


@settings(max_examples=examples(2_000), deadline=None)
@given(at=OFFSETS, begin=OFFSETS, length=OFFSETS)
def test_query_3_whatever_is_taken_continues_the_table_exactly(
    at: tuple[int, int], begin: tuple[int, int], length: tuple[int, int]
) -> None:
    before = stored(*at)
    end = (begin[0] + length[0], begin[1] + length[1])
    proposed = batch(2, begin, end)
    try:
        found = decide_batch(before, proposed)
    except BatchGap:
        assert begin[0] > at[0] or begin[1] > at[1]
        return
    after = record_of_batch(before, proposed, RUN, transaction=FIRST, topic_ids={}, rows=0)
    for place, partition in enumerate((A, B)):
        rows = set(range(begin[place], end[place]))
        if isinstance(found, Done):
            assert rows <= set(range(at[place]))
            continue
        taken = {offset for offset in rows if offset >= found.trim.get(partition, 0)}
        assert taken == set(range(at[place], after.offsets[partition]))
    if isinstance(found, Take):
        assert decide_batch(after, proposed) == Done()
