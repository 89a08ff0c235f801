"""EPOCH-1: a new leader claims its epoch in the table before it says a word."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, Coordinator
from protocol.values import (
    ALICE,
    COORDINATOR,
    GROUP,
    P0,
    P1,
    P2,
    RIVAL,
    SINK,
    gain,
    offsets,
    record,
    status,
    topics,
    view,
)

from headgate.control_protocol.events import EndCommit, StartCommit
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.machine_io import Append, Stop
from headgate.control_protocol.ports import CommitAttempt, Lineage
from headgate.coordinator.inputs_and_actions import CommitTable, LeadershipGained, Look
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings, OffsetPolicy, RollbackPolicy


def test_a_leader_reads_table_and_sources_and_then_claims_with_an_empty_snapshot() -> None:
    coordinator = Coordinator()
    coordinator.given(LeadershipGained())
    assert coordinator.reads_primary
    coordinator.reads()
    assert coordinator.asks_sources
    coordinator.described()

    claim = coordinator.attempt
    assert claim.record.is_claim
    assert claim.files == ()
    assert (claim.record.sink, claim.record.group_id) == (SINK, GROUP)
    assert claim.record.coordinator == COORDINATOR
    assert claim.record.offsets == offsets(10, 20)


def test_nothing_is_said_before_the_claim_has_landed() -> None:
    coordinator = Coordinator()
    while not coordinator.wants(CommitTable):
        coordinator.goes_on()
        assert not coordinator.wants(Append)
    coordinator.unsure()
    assert not coordinator.wants(Append)
    coordinator.waits(10)
    coordinator.reads()  # it had not landed: the same claim again
    assert not coordinator.wants(Append)
    coordinator.lands()

    assert isinstance(coordinator.said[0], StartCommit)


def test_the_epoch_is_above_the_tables() -> None:
    assert claim_of(Coordinator(view(record(41, 3, offsets(1))))).record.transaction.epoch == 42


def test_the_epoch_is_above_every_epoch_on_the_branch() -> None:
    """After a rollback the branch may hold less than the tag, and the other way round."""
    newest, old = record(9, 1, offsets(1)), record(5, 1, offsets(1))
    table = view(old, on_branch=old)
    assert claim_of(Coordinator(table)).record.transaction.epoch == 6

    follow = CoordinatorSettings(on_rollback=RollbackPolicy.FOLLOW_TABLE)
    rolled_back = replace(view(newest, on_branch=old), lineage=Lineage.ROLLED_BACK)
    assert claim_of(Coordinator(rolled_back, follow)).record.transaction.epoch == 10


def test_the_epoch_is_above_any_that_was_heard() -> None:
    coordinator = Coordinator()
    coordinator.hears(EndCommit(), RIVAL, epoch=50)
    coordinator.hears(gain(P0), ALICE, epoch=52)

    assert claim_of(coordinator).record.transaction.epoch == 53


def test_an_epoch_heard_while_the_claim_was_on_its_way_leads_to_a_higher_claim() -> None:
    coordinator = Coordinator.at(Phase.CLAIMING)
    coordinator.hears(gain(P0), ALICE, epoch=30)
    coordinator.goes_on()
    assert not coordinator.wants(Append)

    assert claim_of(coordinator).record.transaction.epoch == 31


def test_a_refused_claim_is_tried_again_only_where_the_tag_is_untouched() -> None:
    coordinator = Coordinator.at(Phase.CLAIMING)
    coordinator.refused()
    coordinator.reads(view(record(6, 5, offsets(12, 20), RIVAL), snapshot=101))
    assert coordinator.phase is Phase.RECOVERING

    assert claim_of(coordinator).record.offsets == offsets(12, 20)


def test_the_first_claim_of_all_stores_where_to_begin() -> None:
    coordinator = Coordinator(view(None))
    coordinator.given(LeadershipGained())
    coordinator.reads()
    assert coordinator.only(Look).first_start
    coordinator.start = offsets(700, 800)
    coordinator.described()

    claim = coordinator.attempt
    assert claim.record.transaction.epoch == 1
    assert claim.record.offsets == offsets(700, 800)


def test_later_claims_do_not_ask_where_to_begin() -> None:
    coordinator = Coordinator()
    coordinator.given(LeadershipGained())
    coordinator.reads()

    assert not coordinator.only(Look).first_start


def test_a_partition_that_appeared_since_begins_at_its_logs_beginning() -> None:
    coordinator = Coordinator(sources=topics((0, 1_000), (0, 1_000), (5, 90)))

    claim = claim_of(coordinator)
    assert claim.record.offsets == offsets(10, 20, 5)


def test_valid_through_and_pause_survive_a_change_of_coordinator() -> None:
    before = record(6, 4, offsets(10, 20), RIVAL, valid_through_ms=123, paused=True)
    coordinator = Coordinator.at(Phase.STARTING, table=view(before))

    (start,) = coordinator.said
    assert isinstance(start, StartCommit)
    assert start.paused
    assert coordinator.term.progress.valid_through_ms == 123


def test_the_first_start_says_what_the_claim_stored() -> None:
    coordinator = Coordinator.at(Phase.STARTING)

    (start,) = coordinator.said
    assert isinstance(start, StartCommit)
    assert start.offsets == offsets(10, 20)
    assert frozenset(start.offsets) == {P0, P1}
    assert P2 not in start.offsets


def claim_of(coordinator: Coordinator) -> CommitAttempt:
    while not coordinator.wants(CommitTable):
        coordinator.goes_on()
    return coordinator.attempt


def test_epoch_1_what_a_person_stopped_is_not_claimed() -> None:
    stopped = replace(record(1, 3, offsets(10, 20)), stopped=True, actor="ann@one")
    coordinator = Coordinator()
    coordinator.given(LeadershipGained())
    coordinator.reads(view(stopped))
    (told,) = coordinator.actions
    assert isinstance(told, Stop)
    assert told.error.code == "HG-235"
    assert "ann@one" in told.error.message
    assert coordinator.state.phase is Phase.STOPPED


@pytest.mark.parametrize(
    ("stored", "claimed"), [(None, None), ("", P0.topic), ("another", f"another,{P0.topic}")]
)
def test_that_a_topic_was_re_created_is_carried_on(stored: str | None, claimed: str | None) -> None:
    """``None``: an older release has claimed, and not said what was before."""
    of_another = {P0.topic: TopicId("another")}
    before = replace(record(3, 1, offsets(10, 20)), topic_ids=of_another, recreated_topics=stored)
    earliest = CoordinatorSettings(on_topic_recreated=OffsetPolicy.EARLIEST)
    assert claim_of(Coordinator(view(before), earliest)).record.recreated_topics == claimed
    assert claim_of(Coordinator(view(None))).record.recreated_topics == ""

    after = replace(record(EPOCH - 1, 1, offsets(10, 20)), recreated_topics=claimed)
    assert claim_of(Coordinator(view(after))).record.recreated_topics == claimed
    coordinator = Coordinator.at(Phase.COLLECTING, table=view(after))
    number = coordinator.term.previous_transaction_number
    said = status(number, {P0: (10, 12), P1: (20, 20)}, written_in=(EPOCH, number))
    coordinator.hears(said, ALICE, transaction=number)
    coordinator.until(Phase.COMMITTING)
    assert coordinator.attempt.record.recreated_topics == claimed
    assert after.with_position_of(before).recreated_topics == stored
