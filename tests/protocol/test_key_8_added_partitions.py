"""KEY-8, ``wait``: what is added to a keyed topic is held until no older record can come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, Coordinator
from protocol.keyed import KeyedHead, deletes, killed, rows
from protocol.values import ALICE, P0, P1, P2, P3, RIVAL, offsets, record, status, topics, view

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import (
    GrowthUnordered,
    KeyedPartitionsAdded,
    KeyInTwoPartitions,
)
from headgate.control_protocol.events import StartCommit
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import TopicState
from headgate.coordinator.phases import Phase
from headgate.coordinator.secondary_pending_commits import build_deliveries
from headgate.coordinator.settings import OffsetPolicy
from headgate.coordinator.status_validation import admission_criteria

GROWTH_MS = 10_000
TOPIC = "trips"


def waiting(stored: CommitRecord | None = None) -> Coordinator:
    """A coordinator of a keyed table that waits where partitions are added."""
    coordinator = Coordinator(view(stored) if stored else None)
    identity = replace(coordinator.state.identity, keyed=True, growth_ms=GROWTH_MS)
    coordinator.state = replace(coordinator.state, identity=identity)
    return coordinator


def goes_round(coordinator: Coordinator, claims: dict[TopicPartition, tuple[int, int]]) -> None:
    """One transaction: END, what Alice answers, and its settlement."""
    coordinator.until(Phase.COLLECTING)
    number = coordinator.term.previous_transaction_number
    idle = {at: (o, o) for at, o in coordinator.term.progress.offsets.items()}
    said = status(number, {**idle, **claims}, written_in=(EPOCH, number))
    coordinator.hears(said, ALICE, epoch=EPOCH, transaction=number)
    coordinator.waits(0)
    coordinator.until(Phase.OPEN)


def asked(coordinator: Coordinator, sources: dict[str, TopicState]) -> StartCommit:
    """The START after the sources were found so."""
    coordinator.until(Phase.PREPARING)
    coordinator.sources = sources
    coordinator.described()
    if not coordinator.said:  # TABLE-5: a topic is new
        coordinator.goes_on()
    _, start = coordinator.said
    assert isinstance(start, StartCommit)
    return start


def grown(end_0: int = 30, end_1: int = 20, end_2: int = 90) -> dict[str, TopicState]:
    return topics((0, end_0), (0, end_1), (0, end_2))


def held_until_ripe(coordinator: Coordinator) -> None:
    """Partition 2 appears; then it has been held for long enough."""
    assert P2 not in asked(coordinator, grown()).offsets
    assert "trips/2: added, and held for 10000 ms" in coordinator.told
    goes_round(coordinator, {})
    coordinator.now_ms += GROWTH_MS


def test_what_is_added_is_held_until_c_reaches_where_older_ones_ended_after_growth_ms() -> None:
    coordinator = waiting()
    held_until_ripe(coordinator)
    assert P2 not in asked(coordinator, grown()).offsets, "partition 0 is at 10, and ended at 30"
    goes_round(coordinator, {P0: (10, 29)})
    assert P2 not in asked(coordinator, grown(end_0=50)).offsets, "at 29"
    goes_round(coordinator, {P0: (29, 35)})
    start = asked(coordinator, grown(end_0=60))
    assert start.offsets == offsets(35, 20, 0), "what came after the look need not be in C"
    assert "trips/2: read from now on" in coordinator.told


def test_before_growth_ms_has_passed_nothing_is_admitted_however_idle_the_topic_is() -> None:
    coordinator = waiting()
    idle = grown(end_0=10)
    assert P2 not in asked(coordinator, idle).offsets
    goes_round(coordinator, {})
    coordinator.until(Phase.OPEN)
    coordinator.now_ms += GROWTH_MS - 3_000
    assert P2 not in asked(coordinator, idle).offsets
    goes_round(coordinator, {})
    coordinator.now_ms += 3_000
    assert P2 in asked(coordinator, idle).offsets


def test_the_ends_that_count_were_asked_for_after_growth_ms() -> None:
    """The question was on its way when the time had not passed: its answer may be too old."""
    coordinator = waiting()
    idle = grown(end_0=10)
    asked(coordinator, idle)
    goes_round(coordinator, {})
    coordinator.until(Phase.PREPARING)
    coordinator.now_ms += GROWTH_MS
    coordinator.described()
    _, start = coordinator.said
    assert isinstance(start, StartCommit)
    assert P2 not in start.offsets


def test_that_it_is_younger_is_in_the_commit_that_first_names_it() -> None:
    coordinator = waiting()
    held_until_ripe(coordinator)
    assert P2 in asked(coordinator, grown(end_0=10)).offsets
    coordinator.until(Phase.COLLECTING)
    coordinator.sources = grown(end_0=12)
    number = coordinator.term.previous_transaction_number
    said = status(number, {P0: (10, 12), P1: (20, 20)}, written_in=(EPOCH, number))
    coordinator.hears(said, ALICE, epoch=EPOCH, transaction=number)
    coordinator.until(Phase.COMMITTING)
    written = coordinator.state.call.attempt
    assert written is not None
    assert written.record.offsets == offsets(12, 20, 0)
    assert written.record.cohorts == {TOPIC: (2,)}


def test_a_claim_holds_anew_and_carries_the_generations_on() -> None:
    stored = replace(record(EPOCH - 1, 4, offsets(10, 20, 0), RIVAL), cohorts={TOPIC: (2,)})
    coordinator = waiting(stored)
    coordinator.sources = topics((0, 10), (0, 20), (0, 0), (0, 7))
    coordinator.until(Phase.CLAIMING)
    claim = coordinator.attempt.record
    assert (claim.offsets, claim.cohorts) == (offsets(10, 20, 0), {TOPIC: (2,)})
    coordinator.until(Phase.OPEN)
    coordinator.now_ms += GROWTH_MS
    assert P3 in asked(coordinator, coordinator.sources).offsets
    assert coordinator.term.sources.cohorts == {TOPIC: (2, 3)}


def test_its_own_next_epoch_goes_on_holding() -> None:
    coordinator = waiting()
    held_until_ripe(coordinator)
    coordinator.hears(StartCommit(None, offsets(10, 20), {}, ()), RIVAL, epoch=EPOCH)
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.PREPARING)
    coordinator.sources = grown(end_0=10)
    coordinator.described()
    assert P2 in coordinator.term.progress.offsets


def superseded(coordinator: Coordinator, epoch: int, table: CommitRecord) -> None:
    """Another one leads for a while, and leaves this table."""
    coordinator.table = view(table)
    coordinator.hears(StartCommit(None, offsets(10, 20), {}, ()), RIVAL, epoch=epoch)
    coordinator.waits(5_000)
    coordinator.until(Phase.OPEN)


def test_what_it_admitted_and_no_commit_has_is_not_held_again_by_its_next_epoch() -> None:
    """Where two take turns, each epoch would be over as soon as it is read (seed 5104154)."""
    coordinator = waiting()
    held_until_ripe(coordinator)
    assert P2 in asked(coordinator, grown(end_0=10)).offsets
    for epoch, reached in ((EPOCH + 1, 10), (EPOCH + 3, 9)):
        superseded(coordinator, epoch, record(epoch, 1, offsets(reached, 20), RIVAL))
        assert coordinator.term.progress.offsets == offsets(reached, 20)
        there = asked(coordinator, grown(end_0=50)).offsets
        assert (P2 in there) == (reached == 10), "once the table has gone back, it waits for it"
        assert coordinator.term.sources.cohorts == ({TOPIC: (2,)} if P2 in there else {})


def test_what_another_one_admitted_is_known_to_be_younger_and_what_came_with_it_is_held() -> None:
    """It saw two partitions at once, and the other one after the other."""
    coordinator = waiting()
    both = topics((0, 10), (0, 20), (0, 5), (0, 5))
    asked(coordinator, both)
    goes_round(coordinator, {})
    coordinator.now_ms += GROWTH_MS
    stored = replace(record(EPOCH + 1, 1, offsets(10, 20, 5), RIVAL), cohorts={TOPIC: (2,)})
    superseded(coordinator, EPOCH + 1, stored)
    assert P3 not in asked(coordinator, both).offsets
    coordinator.until(Phase.OPEN)
    coordinator.now_ms += GROWTH_MS
    assert P3 in asked(coordinator, both).offsets
    assert coordinator.term.sources.cohorts == {TOPIC: (2, 3)}


def test_partitions_that_are_added_while_others_are_held_come_after_them() -> None:
    coordinator = waiting()
    idle = topics((0, 10), (0, 20), (0, 5))
    assert P2 not in asked(coordinator, idle).offsets
    goes_round(coordinator, {})
    coordinator.now_ms += GROWTH_MS - 5_000
    more = topics((0, 10), (0, 20), (0, 5), (0, 0))
    assert P2 not in asked(coordinator, more).offsets
    goes_round(coordinator, {})
    coordinator.now_ms += GROWTH_MS - 4_000
    start = asked(coordinator, more)
    assert (P2 in start.offsets, P3 in start.offsets) == (True, False)
    goes_round(coordinator, {})
    coordinator.now_ms += GROWTH_MS
    assert P3 not in asked(coordinator, more).offsets, "partition 2 has ended at 5, and is at 0"
    goes_round(coordinator, {P2: (0, 5)})
    assert P3 in asked(coordinator, more).offsets
    assert coordinator.term.sources.cohorts == {TOPIC: (2, 3)}


def test_nothing_is_admitted_while_an_older_partition_cannot_be_asked() -> None:
    coordinator = waiting()
    held_until_ripe(coordinator)
    whole = grown(end_0=10)[TOPIC]
    less = {n: log for n, log in whole.partitions.items() if n != 1}
    silent = {TOPIC: replace(whole, partitions=less, silent=frozenset({1}))}
    assert P2 not in asked(coordinator, silent).offsets
    goes_round(coordinator, {})
    assert P2 in asked(coordinator, {TOPIC: whole}).offsets


def test_one_that_nobody_could_describe_before_is_not_added() -> None:
    """Its number is below that of another: it was there."""
    stored = record(EPOCH - 1, 4, Offsets({P0: 10, P2: 5}), RIVAL)
    coordinator = waiting(stored)
    coordinator.sources = grown()
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.offsets == Offsets({P0: 10, P1: 0, P2: 5})


@pytest.mark.parametrize("growth_ms", [GROWTH_MS, None])
def test_a_new_topic_whose_last_partition_has_no_leader_has_not_grown(
    growth_ms: int | None,
) -> None:
    """It begins when all of it can be described: nothing would tell its last one from an added."""
    coordinator = waiting()
    identity = replace(coordinator.state.identity, growth_ms=growth_ms, multiples_only=True)
    coordinator.state = replace(coordinator.state, identity=identity)
    whole = TopicState(TopicId("new"), {n: OffsetRange(0, 9) for n in range(3)})
    partly = {n: log for n, log in whole.partitions.items() if n != 2}
    silent = replace(whole, partitions=partly, silent=frozenset({2}))
    known = topics((0, 10), (0, 20))
    for is_new in (True, False):
        assert asked(coordinator, {**known, "zones": silent}).offsets == offsets(10, 20)
        assert ("zones: not read" in coordinator.told) is is_new
        coordinator.until(Phase.COLLECTING)
        fixed = admission_criteria(coordinator.state, coordinator.now_ms).fixed
        assert fixed == {P0, P1, TopicPartition("zones", 0)}, "valid-through waits for it"
        goes_round(coordinator, {})
    for _ in range(2):
        begun = asked(coordinator, {**known, "zones": whole}).offsets
        assert [begun[TopicPartition("zones", n)] for n in range(3)] == [0, 0, 0]
        goes_round(coordinator, {})


def test_a_claim_leaves_such_a_topic_out() -> None:
    coordinator = waiting(record(EPOCH - 1, 4, offsets(10, 20), RIVAL))
    partly = TopicState(TopicId("new"), {0: OffsetRange(0, 9)}, frozenset({1}))
    coordinator.sources = {**topics((0, 10), (0, 20)), "zones": partly}
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.offsets == offsets(10, 20)
    assert "zones: not read" in coordinator.told


def test_valid_through_waits_for_what_is_held() -> None:
    coordinator = waiting()
    asked(coordinator, grown(end_0=1_000, end_1=1_000))
    times = {P0: 5_000, P1: 6_000}
    for through in (None, 5_000):
        coordinator.until(Phase.COLLECTING)
        number = coordinator.term.previous_transaction_number
        at = {p: (o, o + 1) for p, o in coordinator.term.progress.offsets.items()}
        said = status(number, at, written_in=(EPOCH, number), timestamps=times)
        coordinator.hears(said, ALICE, epoch=EPOCH, transaction=number)
        coordinator.until(Phase.COMMITTING)
        assert coordinator.attempt.record.valid_through_ms == through
        coordinator.until(Phase.OPEN)
        coordinator.state = replace(coordinator.state, held=())
        coordinator.sources = topics((0, 1_000), (0, 1_000))


def test_a_topic_that_was_created_anew_with_more_partitions_stops_the_sink() -> None:
    coordinator = waiting()
    anew = replace(coordinator.state.settings, on_topic_recreated=OffsetPolicy.EARLIEST)
    coordinator.state = replace(coordinator.state, settings=anew)
    coordinator.until(Phase.PREPARING)
    coordinator.sources = topics((0, 0), (0, 0), (0, 0), topic_id=TopicId("another"))
    coordinator.described()
    assert isinstance(coordinator.error, KeyedPartitionsAdded)
    assert "re-created" in coordinator.error.hint


def test_deliveries_say_what_the_decision_says() -> None:
    decided = replace(record(EPOCH, 3, offsets(1, 2, 0)), cohorts={TOPIC: (2,)})
    primary, secondary = view(decided), replace(view(uuid="uuid-2"), table="lake.other")
    pending_commit = PendingCommit(
        decided.transaction, decided.coordinator, secondary.uuid, secondary.table, "m", rows=1
    )
    (delivery,) = build_deliveries(primary, (pending_commit,), {secondary.table: secondary}, ())
    assert delivery.record.cohorts == {TOPIC: (2,)}


HEAD = KeyedHead({"a": [(1, 0, 7), (2, 0, 8), (3, 2, 0), (4, 1, 5)]}, cohorts={"topic": (2, 3)})


def test_a_record_of_a_younger_partition_replaces_and_deletes_rows_of_older_ones() -> None:
    found = HEAD.resolved(rows("x", (1, 2, 0), (3, 3, 0)), deletes((2, 2, 1), (4, 3, 1)))
    assert killed(found) == {"a": {0, 1, 2, 3}}
    assert (found.counts.updated, found.counts.deleted) == (2, 2)


@pytest.mark.parametrize(
    ("key", "partition"), [(3, 0), (1, 1)], ids=["of an older one", "of the same age"]
)
def test_any_other_order_stops_the_sink(key: int, partition: int) -> None:
    with pytest.raises(KeyInTwoPartitions):
        HEAD.resolved(rows("x", (key, partition, 99)))
    with pytest.raises(KeyInTwoPartitions):
        HEAD.resolved(deletes((key, partition, 99)))


def test_within_one_transaction_the_generation_orders_nothing() -> None:
    """All that the older partition could still hold was in C before."""
    with pytest.raises(KeyInTwoPartitions):
        HEAD.resolved(rows("x", (9, 0, 1)), rows("y", (9, 2, 2)))


def test_of_several_transactions_a_later_one_may_be_of_the_younger_partition() -> None:
    earlier, later = rows("x", (9, 0, 50)), replace(rows("y", (9, 2, 2)), transaction=1)
    assert killed(HEAD.resolved(later, earlier)) == {"x": {0}}
    with pytest.raises(KeyInTwoPartitions):
        HEAD.resolved(replace(earlier, transaction=2), later)


def test_partitions_of_several_topics_are_never_younger_than_each_other() -> None:
    head = KeyedHead({"a": [(1, 0, 7)]}, cohorts={"another": (1,)})
    with pytest.raises(KeyInTwoPartitions):
        head.resolved(rows("x", (1, 2, 0)))


def test_fail_is_what_a_sink_does_that_is_not_told_otherwise() -> None:
    coordinator = waiting()
    identity = replace(coordinator.state.identity, growth_ms=None)
    coordinator.state = replace(coordinator.state, identity=identity)
    coordinator.until(Phase.PREPARING)
    coordinator.sources = grown()
    coordinator.described()
    assert isinstance(coordinator.error, KeyedPartitionsAdded)
    assert "wait" in coordinator.error.hint


def of_hashes(growth_ms: int | None = GROWTH_MS) -> Coordinator:
    coordinator = waiting()
    identity = replace(coordinator.state.identity, multiples_only=True, growth_ms=growth_ms)
    coordinator.state = replace(coordinator.state, identity=identity)
    return coordinator


def test_a_topic_that_was_not_multiplied_stops_the_sink_before_any_new_record_is_there() -> None:
    """From 2 to 5 keys move from partition 0 to partition 1, too, and both are read."""
    coordinator = of_hashes()
    coordinator.until(Phase.PREPARING)
    coordinator.sources = topics((0, 10), (0, 20), (0, 0), (0, 0), (0, 0))
    coordinator.described()
    error = coordinator.error
    assert isinstance(error, GrowthUnordered)
    assert "trips has grown from 2 to 5 partitions" in str(error)
    assert coordinator.phase is Phase.STOPPED


def test_a_claim_refuses_it_too_and_says_nothing() -> None:
    stored = record(EPOCH - 1, 4, offsets(10, 20), RIVAL)
    coordinator = of_hashes()
    coordinator.table = view(stored)
    coordinator.sources = grown()
    coordinator.until(Phase.STOPPED)
    assert isinstance(coordinator.error, GrowthUnordered)


def test_each_step_of_a_growth_is_a_multiple_or_stops_the_sink() -> None:
    """From 2 to 4 is in order, and so is 2 to 6; but not 4 to 6, which the producers saw."""
    coordinator = of_hashes()
    four = topics((0, 10), (0, 20), (0, 5), (0, 5))
    assert asked(coordinator, four).offsets == offsets(10, 20)
    goes_round(coordinator, {})
    coordinator.until(Phase.PREPARING)
    coordinator.sources = topics((0, 10), (0, 20), (0, 5), (0, 5), (0, 0), (0, 0))
    coordinator.described()
    assert "from 4 to 6 partitions" in str(coordinator.error)


def test_one_partition_may_become_any_number() -> None:
    coordinator = of_hashes()
    coordinator.table = view(record(EPOCH - 1, 4, Offsets({P0: 10}), RIVAL))
    coordinator.sources = grown()
    coordinator.until(Phase.OPEN)
    assert coordinator.term.progress.offsets == Offsets({P0: 10})


def test_under_fail_the_way_on_is_no_waiting_where_that_would_not_help() -> None:
    coordinator = of_hashes(growth_ms=None)
    coordinator.until(Phase.PREPARING)
    coordinator.sources = grown()
    coordinator.described()
    error = coordinator.error
    assert isinstance(error, KeyedPartitionsAdded)
    assert "final number of partitions" in error.hint
