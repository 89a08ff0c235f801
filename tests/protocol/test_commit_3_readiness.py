"""COMMIT-3: ready when every partition of the set is named: a set of identities, never a count."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.coordinating import EPOCH, Coordinator
from protocol.values import ALICE, BOB, P0, P1, P2, offsets, status, topics

from headgate.control_protocol.events import AckCommit, Presence, PresenceKind
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.coordinator.inputs_and_actions import CommitTable
from headgate.coordinator.phases import Phase

BEFORE_THE_TIME_OUT_MS = 1


def test_ready_when_whole_statuses_name_every_partition() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    says(coordinator, ALICE, 1, {P0: (10, 15)})
    assert coordinator.phase is Phase.COLLECTING
    says(coordinator, BOB, 1, {P1: (20, 21)})

    assert coordinator.attempt.record.offsets == offsets(15, 21)


def test_idle_and_unknown_partitions_are_named_too() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(status(1, {P0: (10, 10)}, unknown={P1}), ALICE, transaction=1)
    coordinator.waits(BEFORE_THE_TIME_OUT_MS)

    assert isinstance(coordinator.said[0], AckCommit)


def test_x17_a_reply_that_is_replayed_does_not_stand_in_for_a_missing_one() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    for _ in range(4):
        says(coordinator, ALICE, 1, {P0: (10, 15)}, sequence=7)

    assert coordinator.phase is Phase.COLLECTING
    assert len(coordinator.term.collection.statuses) == 1


def test_f16_statuses_of_several_senders_for_the_same_partition_are_no_set() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    says(coordinator, ALICE, 1, {P0: (10, 15)})
    says(coordinator, BOB, 1, {P0: (10, 12)})

    assert coordinator.phase is Phase.COLLECTING


def test_ac12_partitions_outside_the_set_do_not_help() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    says(coordinator, ALICE, 1, {P0: (10, 15), P2: (0, 0)})

    assert coordinator.phase is Phase.COLLECTING


def test_a_partition_that_came_later_is_waited_for_once_somebody_has_it() -> None:
    """Until then the group has not heard of it, and nobody can (found by simulation)."""
    coordinator = Coordinator.at(Phase.PREPARING)
    coordinator.sources = topics((0, 1_000), (0, 1_000), (0, 90))
    coordinator.until(Phase.SETTLING)
    coordinator.until(Phase.COLLECTING)
    says(coordinator, ALICE, 2, {P0: (10, 15), P1: (20, 20)})
    assert coordinator.phase is Phase.COMMITTING

    coordinator.until(Phase.OPEN)
    coordinator.hears(Presence(PresenceKind.GAINED, frozenset({P2}), {}), BOB)
    coordinator.until(Phase.SETTLING)
    coordinator.until(Phase.COLLECTING)
    says(coordinator, ALICE, 3, {P0: (15, 16), P1: (20, 20)})
    assert coordinator.phase is Phase.COLLECTING


def test_a_status_that_answers_another_transaction_counts_all_the_same() -> None:
    """Late for transaction 1, it is in time for transaction 2."""
    coordinator = Coordinator.at(Phase.SETTLING)
    says(coordinator, ALICE, 1, {P0: (10, 15), P1: (20, 22)}, transaction=1)
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(BEFORE_THE_TIME_OUT_MS)

    assert coordinator.attempt.record.offsets == offsets(15, 22)


def test_a_status_heard_before_end_counts() -> None:
    """Whoever gives partitions up announces what it wrote in mid-transaction."""
    coordinator = Coordinator.at(Phase.OPEN)
    says(coordinator, ALICE, 1, {P0: (10, 15), P1: (20, 22)})
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(BEFORE_THE_TIME_OUT_MS)

    assert coordinator.attempt.record.offsets == offsets(15, 22)


def test_a_status_that_was_judged_never_counts_again() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    say = status(1, {P0: (10, 10), P1: (20, 20)})
    at = coordinator.hears(say, ALICE, transaction=1)
    coordinator.waits(BEFORE_THE_TIME_OUT_MS)
    coordinator.until(Phase.COLLECTING)
    coordinator.hears(say, ALICE, transaction=1, sequence=at)
    coordinator.waits(BEFORE_THE_TIME_OUT_MS)

    assert coordinator.phase is Phase.COLLECTING


def test_the_next_status_of_the_same_sender_does() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    says(coordinator, ALICE, 1, {P0: (10, 10), P1: (20, 20)})
    coordinator.until(Phase.COLLECTING)
    says(coordinator, ALICE, 2, {P0: (10, 10), P1: (20, 20)}, transaction=2)

    assert coordinator.phase is Phase.SETTLING


def test_numbers_are_counted_per_sender() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    says(coordinator, ALICE, 8, {P0: (10, 15)})
    says(coordinator, BOB, 3, {P1: (20, 21)})

    assert coordinator.wants(CommitTable)


def says(
    coordinator: Coordinator,
    sender: Sender,
    number: int,
    claims: Mapping[TopicPartition, tuple[int, int]],
    *,
    transaction: int = 1,
    sequence: int | None = None,
) -> None:
    said = status(number, claims, written_in=(EPOCH, 1))
    coordinator.hears(said, sender, transaction=transaction, sequence=sequence)
    coordinator.waits(BEFORE_THE_TIME_OUT_MS)
