"""LOG-6: numbers that nobody can have counted to move nothing that could not be moved on."""

from __future__ import annotations

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.participating import Participant, started
from protocol.values import ALICE, BOB, COORDINATOR, P0, P1, RIVAL, gain, offsets, status

from headgate.control_protocol import commit_record_codec, message_encoding
from headgate.control_protocol.event_codec import NUMBER_MAX
from headgate.control_protocol.events import (
    AckCommit,
    EndCommit,
    Envelope,
    PresenceKind,
    StartCommit,
)
from headgate.control_protocol.identifiers import LEAP_MAX, ControlOffset, TransactionNumber
from headgate.coordinator.phases import Phase
from headgate.coordinator.state import Timer

AT = offsets(10, 20)
ALIVE = gain(kind=PresenceKind.ALIVE)


@pytest.mark.parametrize("phase", [Phase.FOLLOWING, Phase.RECOVERING, Phase.CLAIMING, Phase.OPEN])
def test_an_epoch_that_leaps_moves_no_table(phase: Phase) -> None:
    coordinator = Coordinator.at(phase)
    pending = coordinator.pending
    for sender in (ALICE, RIVAL):
        for event in (ALIVE, EndCommit()):
            coordinator.hears(event, sender, epoch=NUMBER_MAX)
    coordinator.pending = pending
    coordinator.until(Phase.OPEN)
    assert coordinator.term.epoch == EPOCH


def test_epochs_that_leap_one_above_the_other_hide_none_that_counts() -> None:
    """They are measured by what the tables hold, not by one another (seed 110645)."""
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(ALIVE, RIVAL, epoch=EPOCH + LEAP_MAX)
    for steps in (2, 3):
        coordinator.hears(ALIVE, RIVAL, epoch=EPOCH + steps * LEAP_MAX)
    coordinator.until(Phase.OPEN)
    assert coordinator.term.epoch == EPOCH + LEAP_MAX + 1


def test_an_epoch_that_was_spoken_of_while_it_was_claimed_is_not_used() -> None:
    """Somebody spoke in its name before it had one word: participants are in other transactions."""
    coordinator = Coordinator.at(Phase.CLAIMING)
    coordinator.hears(EndCommit(), COORDINATOR, epoch=EPOCH, transaction=100)
    coordinator.until(Phase.OPEN)
    assert coordinator.term.epoch == EPOCH + 1


def test_what_a_coordinator_claims_can_be_written_and_said() -> None:
    """Above the highest epoch that it believes: records and messages still bear the next ones."""
    coordinator = Coordinator.at(Phase.OPEN)
    for _ in range(3):
        coordinator.hears(ALIVE, ALICE, epoch=coordinator.term.epoch + LEAP_MAX)
        coordinator.until(Phase.STARTING)
        record = coordinator.table.record
        assert record is not None
        assert (
            commit_record_codec.decode_record(
                record.sink, commit_record_codec.encode_record(record)
            )
            == record
        )
        (start,) = coordinator.said
        said = Envelope(
            record.sink,
            record.transaction.epoch,
            TransactionNumber(1),
            COORDINATOR,
            1,
            0,
            start,
        )
        assert message_encoding.decode_envelope(message_encoding.encode_envelope(said)) == said
        coordinator.until(Phase.OPEN)
    assert coordinator.term.epoch < EPOCH + 4 * LEAP_MAX


@pytest.mark.parametrize("number", [2, 1_000, NUMBER_MAX])
@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.COLLECTING, Phase.COMMITTING])
def test_who_speaks_in_its_name_makes_it_claim_anew(phase: Phase, number: int) -> None:
    """Participants that believed the END, and would wait for ever, begin again with the epoch."""
    coordinator = Coordinator.at(Phase.OPEN)
    if phase is not Phase.OPEN:
        coordinator.until(Phase.COLLECTING)
    if phase is Phase.COMMITTING:
        both = status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
        coordinator.hears(both, ALICE, transaction=1)
        coordinator.waits(1)
    assert coordinator.phase is phase
    coordinator.hears(EndCommit(), COORDINATOR, transaction=number)
    assert coordinator.phase is Phase.RECOVERING
    coordinator.until(Phase.OPEN)
    assert coordinator.term.epoch > EPOCH


@pytest.mark.parametrize("leap", [1, 1_000, LEAP_MAX, NUMBER_MAX])
def test_a_status_in_anothers_name_silences_nobody(leap: int) -> None:
    participant = Participant.writing(AT)
    coordinator = Coordinator.at(Phase.COLLECTING)
    forged = status(leap, {}, unknown={P0})
    coordinator.hears(forged, ALICE, transaction=1)
    participant.hears(forged, ALICE)
    number = participant.answers(1, {P0: 15, P1: 20}).status_number

    genuine = status(number, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator.hears(genuine, ALICE, transaction=1)
    coordinator.waits(1)
    assert coordinator.attempt.record.offsets == offsets(15, 20)


@pytest.mark.parametrize("leaps", [(LEAP_MAX + 9, 2_000), (3 * LEAP_MAX, LEAP_MAX + 9, 2_000)])
def test_numbers_in_its_name_that_leap_apart_silence_nobody(leaps: tuple[int, ...]) -> None:
    """It follows the near one, and is then no further than a leap below the other, which the
    coordinator believes (seed 5113720)."""
    participant, coordinator = Participant.writing(AT), Coordinator.at(Phase.COLLECTING)
    counted = participant.state.said.sequence
    for leap in leaps:
        coordinator.hears(ALIVE, ALICE, sequence=counted + leap)
        participant.hears(ALIVE, ALICE, sequence=counted + leap)
    said = participant.answers(1, {P0: 15, P1: 20})

    genuine = status(said.status_number, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    sequence = participant.state.said.sequence
    coordinator.hears(genuine, ALICE, transaction=1, sequence=sequence)
    coordinator.waits(1)
    assert coordinator.attempt.record.offsets == offsets(15, 20)


def test_a_leap_that_was_overcome_is_not_followed() -> None:
    participant = Participant.writing(AT)
    counted = participant.state.said.sequence
    participant.hears(ALIVE, ALICE, sequence=counted + LEAP_MAX + 9)
    for sequence in (counted + 1, counted + 2_000):
        participant.hears(ALIVE, ALICE, sequence=sequence)
    assert participant.state.said.sequence == counted + 2_000


@pytest.mark.parametrize("leap", [2, 1_000, LEAP_MAX, LEAP_MAX + 2, 2 * LEAP_MAX, NUMBER_MAX])
@pytest.mark.parametrize("together", [False, True])
def test_who_never_hears_the_forged_one_catches_up_with_it(leap: int, *, together: bool) -> None:
    """The log lost it (seeds 6595 and 1008520): its fourth status comes through at the latest.

    ``together``: both are judged at once.
    """
    participant, coordinator = Participant.writing(AT), Coordinator.at(Phase.COLLECTING)
    forged = status(leap, {}, unknown={P0})
    coordinator.hears(forged, ALICE, transaction=1)
    for transaction in range(1, 6):
        if together or transaction > 1:
            said = participant.answers(transaction, {P0: 15, P1: 20})
            participant.hears_itself()
            claims = {P0: (10, 15), P1: (20, 20)}
            genuine = status(said.status_number, claims, written_in=(EPOCH, transaction))
            coordinator.hears(genuine, ALICE, transaction=transaction)
            participant.start(transaction + 1, AT, settled_to=participant.next_offset)
        coordinator.waits(SETTINGS.commit_timeout_ms)
        coordinator.until(Phase.OPEN)
        if coordinator.term.progress.offsets == offsets(15, 20):
            return
        coordinator.until(Phase.COLLECTING)
    raise AssertionError("nobody hears it any more")


@pytest.mark.parametrize("leap", [0, 10, 1_000, LEAP_MAX, LEAP_MAX + 1, NUMBER_MAX])
@pytest.mark.parametrize("unheard", [False, True])
def test_a_gain_in_anothers_name_hides_no_later_one(leap: int, *, unheard: bool) -> None:
    """Seeds 15595, 327795 and 407445 of the simulation: who moved there waited for an interval,
    whoever forged it. ``unheard``: the log had lost it when the participant came there."""
    participant, coordinator = Participant.writing(AT), Coordinator.at(Phase.OPEN)
    sequence = participant.state.said.sequence + leap
    coordinator.hears(gain(P0), ALICE, sequence=sequence)
    if not unheard:
        participant.hears(gain(P0), ALICE, sequence=sequence)
    far_ms = coordinator.now_ms + 10**6
    coordinator.state = coordinator.state.with_deadline(Timer.END, far_ms)

    participant.owns(P0)
    participant.owns(P0, P1)
    said = participant.state.said.unheard[-1]
    coordinator.hears(said.event, ALICE, sequence=said.sequence)
    assert (
        coordinator.state.deadlines[Timer.END] == coordinator.now_ms + SETTINGS.rebalance_delay_ms
    )


@pytest.mark.parametrize("kind", [StartCommit, AckCommit])
def test_a_place_that_the_log_has_not_reached_says_nothing(kind: type) -> None:
    """No mutant of the simulation shows it: of the forged seeds of 500 seconds none noticed."""
    participant = Participant.writing(AT)
    before = participant.state
    far = ControlOffset(NUMBER_MAX)
    forged = started(2, AT, 1, far) if kind is StartCommit else AckCommit(far, offsets(99, 99))
    participant.hears(forged, transaction=2)
    assert participant.state == before


@pytest.mark.parametrize("event", [EndCommit(), AckCommit(ControlOffset(1), offsets(99, 99))])
def test_a_participant_does_not_follow_a_leap(event: EndCommit | AckCommit) -> None:
    participant = Participant.writing(AT)
    before = participant.state
    participant.hears(event, RIVAL, epoch=1 + LEAP_MAX + 1, transaction=1)
    assert participant.state == before


def test_a_start_that_had_to_leap_is_followed() -> None:
    """Its coordinator believed a PRESENCE that leapt as far as is believed: it claims above it."""
    participant, coordinator = Participant.writing(AT, epoch=EPOCH), Coordinator.at(Phase.OPEN)
    for leaps in (1, 2):
        top = EPOCH + leaps * LEAP_MAX
        coordinator.hears(ALIVE, RIVAL, epoch=top)
        participant.hears(ALIVE, RIVAL, epoch=top)
        coordinator.until(Phase.OPEN)
    epoch = coordinator.term.epoch
    assert epoch > EPOCH + 2 * LEAP_MAX
    participant.start(1, AT, epoch=epoch)
    assert (participant.state.term.epoch, participant.positions) == (epoch, AT)


def test_from_a_start_that_leapt_for_nothing_it_is_led_back() -> None:
    participant = Participant.writing(AT, epoch=7)
    participant.hears(started(1, offsets(1, 1), 1, None), RIVAL, epoch=NUMBER_MAX, transaction=1)
    assert participant.state.term.epoch == NUMBER_MAX
    participant.start(4, AT, epoch=7, settled_to=participant.next_offset)
    assert (participant.state.term.epoch, participant.positions) == (7, AT)


def test_an_old_start_that_is_said_again_leads_nobody_away() -> None:
    """In a table whose epochs leapt once: the true coordinator's next START is believed again."""
    participant = Participant.writing(AT, epoch=7 + 2 * LEAP_MAX)
    participant.hears(started(1, offsets(1, 1), 1, None), RIVAL, epoch=7, transaction=1)
    number = participant.next_offset
    participant.start(4, AT, epoch=7 + 2 * LEAP_MAX, settled_to=number)
    assert (participant.state.term.epoch, participant.positions) == (7 + 2 * LEAP_MAX, AT)


def test_one_that_just_came_and_followed_it_is_led_back() -> None:
    participant = Participant()
    participant.owns(P0, P1)
    participant.hears_itself()
    participant.start(1, offsets(1, 1), epoch=NUMBER_MAX)
    participant.start(4, AT, epoch=7, settled_to=participant.next_offset)
    assert participant.state.term.epoch == 7
    assert participant.positions == AT
    participant.end(4, epoch=7)
    assert participant.state.term.ended == 4


def test_lower_epochs_are_ignored_as_ever() -> None:
    participant = Participant.writing(AT, epoch=7)
    before = participant.state
    participant.hears(started(9, offsets(0, 0), 6, 1), BOB, epoch=6, transaction=9)
    assert participant.state == before
