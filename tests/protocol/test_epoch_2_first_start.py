"""EPOCH-2: an epoch's first START voids the statuses of older epochs; its L is behind itself."""

from __future__ import annotations

from protocol.coordinating import EPOCH, Coordinator
from protocol.participating import Participant
from protocol.values import ALICE, COORDINATOR, P0, P1, offsets, status

from headgate.control_protocol.events import AckCommit, StartCommit
from headgate.coordinator.phases import Phase


def test_the_first_start_names_no_l_for_its_l_is_its_own_place() -> None:
    coordinator = Coordinator.at(Phase.STARTING)
    (start,) = coordinator.said
    assert isinstance(start, StartCommit)
    assert start.settled_to is None

    at = coordinator.next_offset
    coordinator.hears_itself()
    assert coordinator.term.progress.settled_to == at + 1


def test_later_starts_name_the_last_settlements_l() -> None:
    coordinator = Coordinator.at(Phase.CLOSING)
    settled_to = coordinator.term.progress.settled_to

    start = coordinator.said[1]
    assert isinstance(start, StartCommit)
    assert start.settled_to == settled_to


def test_a_status_of_an_older_epoch_never_counts() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    old = status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator.hears(old, ALICE, epoch=EPOCH - 1, transaction=1)
    coordinator.waits(500)

    settlement = coordinator.said[0]
    assert isinstance(settlement, AckCommit)
    assert settlement.offsets == offsets(10, 20)


def test_the_same_status_of_this_epoch_does() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(
        status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1)), ALICE, transaction=1
    )
    coordinator.waits(0)

    assert coordinator.attempt.record.offsets == offsets(15, 20)


def test_said_twice_the_first_one_heard_counts() -> None:
    coordinator = Coordinator.at(Phase.STARTING)
    (start,) = coordinator.said
    at = coordinator.next_offset
    coordinator.hears(start, COORDINATOR, transaction=1)
    coordinator.hears(status(1, {P0: (10, 15)}, written_in=(EPOCH, 1)), ALICE, transaction=1)
    coordinator.hears(start, COORDINATOR, transaction=1)

    assert coordinator.term.progress.settled_to == at + 1
    assert len(coordinator.term.collection.statuses) == 1


def test_a_status_in_front_of_the_first_start_is_void() -> None:
    coordinator = Coordinator.at(Phase.STARTING)
    coordinator.hears(status(1, {P0: (10, 15)}, written_in=(EPOCH, 1)), ALICE, transaction=1)
    coordinator.goes_on()

    assert coordinator.term.collection.statuses == ()


def test_a_participant_goes_by_the_first_one_too() -> None:
    """Else its L would cover a status that the coordinator has not judged."""
    participant = Participant.writing(offsets(10, 20))
    participant.answers(1, {P0: 15, P1: 20})
    participant.hears_itself()
    participant.start(1, offsets(10, 20))

    assert participant.positions == offsets(15, 20)
    assert len(participant.state.said.pending) == 1
