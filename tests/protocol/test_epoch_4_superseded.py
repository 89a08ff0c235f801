"""EPOCH-4: superseded, a coordinator stops at once and says so; two leaders do not duel for
ever."""

from __future__ import annotations

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.values import ALICE, P0, P1, RIVAL, gain, offsets, record, status, view

from headgate.control_protocol.events import AckCommit, EndCommit, Event, StartCommit
from headgate.control_protocol.identifiers import ControlOffset, Sender
from headgate.control_protocol.machine_io import LogLine
from headgate.coordinator.inputs_and_actions import LeadershipGained
from headgate.coordinator.phases import Phase

WAIT_MS = SETTINGS.election_timeout_ms + SETTINGS.commit_interval_ms + SETTINGS.commit_timeout_ms
WITH_A_TERM = [
    Phase.STARTING,
    Phase.OPEN,
    Phase.PREPARING,
    Phase.CLOSING,
    Phase.COLLECTING,
    Phase.SETTLING,
]
START = StartCommit(None, offsets(1), {}, ())


@pytest.mark.parametrize("phase", WITH_A_TERM)
def test_f26_a_higher_epoch_said_by_another_coordinator_stops_it_in_any_phase(
    phase: Phase,
) -> None:
    coordinator = Coordinator.at(phase)
    coordinator.hears(START, RIVAL, epoch=EPOCH + 1, transaction=1)

    assert coordinator.phase is Phase.FOLLOWING
    assert coordinator.state.term is None
    (told,) = coordinator.actions
    assert isinstance(told, LogLine)
    assert "HG-300" in told.text


@pytest.mark.parametrize(
    "event",
    [START, EndCommit(), AckCommit(ControlOffset(1), offsets(1))],
    ids=["START", "END", "ACK"],
)
def test_whatever_a_coordinator_says_shows_its_epoch(event: Event) -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(event, RIVAL, epoch=EPOCH + 1, transaction=1)

    assert coordinator.phase is Phase.FOLLOWING


@pytest.mark.parametrize("epoch", [EPOCH - 1, 1])
def test_hc25_a_lower_epoch_says_nothing(epoch: int) -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    before = coordinator.term.progress.offsets
    for event in (START, EndCommit(), AckCommit(ControlOffset(99), offsets(1, 1))):
        coordinator.hears(event, RIVAL, epoch=epoch, transaction=1)

    assert coordinator.phase is Phase.OPEN
    assert coordinator.term.progress.offsets == before


def test_epoch_1_a_claim_that_lost_to_another_is_made_again_above_it() -> None:
    coordinator = Coordinator.at(Phase.CLAIMING)
    coordinator.refused()
    coordinator.reads(view(record(EPOCH + 1, 0, offsets(10, 20), RIVAL), snapshot=300))

    assert coordinator.phase is Phase.RECOVERING


def test_hc26_a_higher_epoch_in_the_table_stops_it() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(
        status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1)), ALICE, transaction=1
    )
    coordinator.waits(1)
    coordinator.refused()
    coordinator.reads(view(record(EPOCH + 1, 0, offsets(10, 20), RIVAL), snapshot=300))

    assert coordinator.phase is Phase.FOLLOWING
    assert f"epoch {EPOCH + 1}" in coordinator.told


def test_it_claims_again_only_after_the_wait() -> None:
    coordinator = superseded()
    coordinator.now_ms += WAIT_MS - 1
    coordinator.given(LeadershipGained())
    assert coordinator.phase is Phase.FOLLOWING
    coordinator.now_ms += 1
    coordinator.given(LeadershipGained())

    assert coordinator.phase is Phase.RECOVERING


def test_it_claims_again_only_when_a_fresh_poll_shows_ownership() -> None:
    coordinator = superseded()
    for _ in range(10):
        coordinator.waits(WAIT_MS)

    assert coordinator.phase is Phase.FOLLOWING


def test_x3_a_rival_that_speaks_is_challenged_once_per_wait() -> None:
    coordinator = superseded()
    for challenge in range(1, 4):
        theirs = coordinator.state.watch.highest_epoch
        for passed_ms in (WAIT_MS // 2, WAIT_MS - WAIT_MS // 2 - 1, 1):
            assert coordinator.phase is Phase.FOLLOWING
            coordinator.now_ms += passed_ms
            coordinator.hears(EndCommit(), RIVAL, epoch=theirs, transaction=challenge)
            coordinator.given(LeadershipGained())
        assert coordinator.phase is Phase.RECOVERING
        coordinator.table = view(record(theirs, 3, offsets(10, 20), RIVAL))
        coordinator.until(Phase.OPEN)
        coordinator.hears(START, RIVAL, epoch=coordinator.term.epoch + 1, transaction=1)


def test_whatever_others_say_meanwhile_changes_neither_its_wait_nor_its_memory() -> None:
    coordinator = superseded()
    before = coordinator.state
    for n in range(1_000):
        coordinator.hears(EndCommit(), Sender("forged", f"{n:012x}"), epoch=EPOCH + 1)
    assert coordinator.state == before

    coordinator.now_ms += WAIT_MS
    coordinator.given(LeadershipGained())
    assert coordinator.phase is Phase.RECOVERING


def test_a_still_higher_epoch_meanwhile_is_claimed_above_and_waits_no_longer() -> None:
    coordinator = superseded()
    coordinator.now_ms += WAIT_MS - 1
    coordinator.hears(START, RIVAL, epoch=EPOCH + 2, transaction=1)
    coordinator.now_ms += 1
    coordinator.until(Phase.OPEN)

    assert coordinator.term.epoch == EPOCH + 3


def test_what_participants_or_older_coordinators_say_is_no_sign_of_the_rival() -> None:
    coordinator = superseded()
    coordinator.now_ms += WAIT_MS
    coordinator.hears(gain(P0), ALICE, epoch=EPOCH + 1)
    coordinator.hears(EndCommit(), RIVAL, epoch=EPOCH)
    coordinator.given(LeadershipGained())

    assert coordinator.phase is Phase.RECOVERING


def test_the_new_claim_is_above_the_rivals_epoch() -> None:
    coordinator = superseded()
    coordinator.now_ms += WAIT_MS
    coordinator.table = view(record(EPOCH + 1, 3, offsets(10, 20), RIVAL))
    coordinator.until(Phase.OPEN)

    assert coordinator.term.epoch == EPOCH + 2


def test_one_that_was_never_superseded_claims_at_once() -> None:
    """The new owner of the election partition waits for nobody: the old one is to be fenced."""
    coordinator = Coordinator()
    coordinator.hears(EndCommit(), RIVAL, epoch=EPOCH - 1, transaction=3)
    coordinator.given(LeadershipGained())

    assert coordinator.reads_primary


@pytest.mark.parametrize("phase", WITH_A_TERM)
def test_a_higher_epoch_known_only_from_a_participants_stamp_is_claimed_above_at_once(
    phase: Phase,
) -> None:
    """The table lost its state, say; nobody leads that epoch."""
    coordinator = Coordinator.at(phase)
    coordinator.hears(gain(P0), ALICE, epoch=EPOCH + 5)
    assert coordinator.phase is Phase.RECOVERING
    coordinator.until(Phase.OPEN)

    assert coordinator.term.epoch == EPOCH + 6


def superseded() -> Coordinator:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(START, RIVAL, epoch=EPOCH + 1, transaction=1)
    return coordinator


@pytest.mark.parametrize("phase", WITH_A_TERM)
def test_another_that_speaks_for_its_own_epoch_makes_it_claim_above(phase: Phase) -> None:
    """A catalog confirmed a claim that it did not make; the two would confuse everybody for ever
    while the deceived one has nothing to commit (simulation, seed 37133)."""
    coordinator = Coordinator.at(phase)
    coordinator.hears(EndCommit(), RIVAL, epoch=EPOCH, transaction=1)

    assert coordinator.phase is Phase.RECOVERING
    assert coordinator.reads_primary
