"""PAUSE-1: a PAUSE or RESUME counts once: until a commit, or a new claim, has answered it."""

from __future__ import annotations

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.participating import Participant
from protocol.values import ALICE, P0, P1, offsets, status

from headgate.control_protocol.events import Pause, Resume, StartCommit
from headgate.control_protocol.identifiers import Sender
from headgate.coordinator.phases import Phase

OPERATOR = Sender("operator", "o1")


def asks(coordinator: Coordinator, event: Pause | Resume, seen: tuple[int, int]) -> None:
    pending = coordinator.pending
    coordinator.hears(event, OPERATOR, epoch=seen[0], transaction=seen[1], sequence=0)
    coordinator.pending = pending


def stored(coordinator: Coordinator) -> tuple[int, int, bool]:
    assert coordinator.table.record is not None
    record = coordinator.table.record
    return record.transaction.epoch, record.transaction.number, record.paused


def one_transaction(coordinator: Coordinator) -> None:
    """Everybody is idle, so that only a request makes it commit."""
    coordinator.until(Phase.COLLECTING)
    at = coordinator.term.progress.offsets
    number = coordinator.term.progress.number
    idle = status(number, {p: (at[p], at[p]) for p in (P0, P1)})
    coordinator.hears(idle, ALICE, transaction=coordinator.term.previous_transaction_number)
    coordinator.waits(1)
    coordinator.until(Phase.OPEN)


def paused_and_resumed() -> Coordinator:
    coordinator = Coordinator.at(Phase.OPEN)
    asks(coordinator, Pause(), (EPOCH, 0))
    one_transaction(coordinator)
    assert stored(coordinator) == (EPOCH, 1, True)
    asks(coordinator, Resume(), (EPOCH, 1))
    one_transaction(coordinator)
    assert stored(coordinator) == (EPOCH, 2, False)
    return coordinator


def test_a_pause_that_was_answered_pauses_nothing_when_it_is_said_again() -> None:
    coordinator = paused_and_resumed()
    for seen in ((EPOCH, 0), (EPOCH, 1), (EPOCH - 1, 99)):
        asks(coordinator, Pause(), seen)
        assert not coordinator.term.pause.paused
    one_transaction(coordinator)
    assert stored(coordinator) == (EPOCH, 2, False)


def test_whoever_asks_again_knowing_the_answer_is_heard() -> None:
    coordinator = paused_and_resumed()
    asks(coordinator, Pause(), (EPOCH, 2))
    one_transaction(coordinator)
    assert stored(coordinator) == (EPOCH, 3, True)


@pytest.mark.parametrize("asked", [Resume(), Pause()])
def test_one_that_looks_answered_makes_the_coordinator_look_at_the_table(
    asked: Pause | Resume,
) -> None:
    """Perhaps the table never had what the catalog confirmed (seed 34760 of the simulation)."""
    coordinator = paused_and_resumed()
    asks(coordinator, asked, (EPOCH, 1))
    coordinator.waits(SETTINGS.commit_interval_ms)
    assert coordinator.reads_primary is isinstance(asked, Pause)


def test_nor_does_it_after_a_new_claim() -> None:
    before = paused_and_resumed()
    for phase in (Phase.FOLLOWING, Phase.RECOVERING, Phase.CLAIMING):
        successor = Coordinator.at(phase, table=before.table)
        asks(successor, Pause(), (EPOCH, 0))
        successor.until(Phase.OPEN)
        assert not successor.term.pause.paused
        asks(successor, Pause(), (EPOCH, 2))
        assert not successor.term.pause.paused


def test_a_request_that_its_coordinator_took_to_its_grave_is_taken_up() -> None:
    before = paused_and_resumed()
    for phase in (Phase.FOLLOWING, Phase.RECOVERING, Phase.CLAIMING):
        successor = Coordinator.at(phase, table=before.table)
        asks(successor, Pause(), (EPOCH, 2))
        asks(successor, Resume(), (EPOCH, 1))  # heard long ago
        successor.until(Phase.OPEN)
        assert successor.term.pause.paused


def test_a_request_says_nothing_of_epochs() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    asks(coordinator, Pause(), (EPOCH + 5, 1))
    assert coordinator.phase is Phase.OPEN
    assert coordinator.state.watch.highest_epoch == EPOCH


@pytest.mark.parametrize("event", [Pause(), Resume()])
def test_participants_go_by_what_the_coordinator_says(event: Pause | Resume) -> None:
    participant = Participant.writing(offsets(10, 20))
    before = participant.state
    participant.hears(event, OPERATOR)
    assert participant.state == before


def test_the_next_start_says_it_at_once() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    asks(coordinator, Pause(), (EPOCH, 0))
    coordinator.waits(0)
    coordinator.until(Phase.CLOSING)
    assert [e.paused for e in coordinator.said if isinstance(e, StartCommit)] == [True]
