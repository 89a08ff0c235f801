"""LOG-1: what was appended takes effect when it is heard; unconfirmed appends are repeated."""

from __future__ import annotations

import pytest
from protocol.coordinating import SETTINGS, Coordinator
from protocol.participating import SETTINGS as PARTICIPANT_SETTINGS
from protocol.participating import Participant
from protocol.values import P0, P1, offsets

from headgate.control_protocol.machine_io import Append
from headgate.coordinator.inputs_and_actions import CallFailed
from headgate.coordinator.phases import Phase
from headgate.participant.state import Phase as ParticipantPhase

SPEAKING = [Phase.STARTING, Phase.CLOSING, Phase.SETTLING]
AT = offsets(10, 20)


@pytest.mark.parametrize("phase", SPEAKING)
def test_a_coordinator_goes_on_when_it_hears_itself(phase: Phase) -> None:
    coordinator = Coordinator.at(phase)
    coordinator.waits(1)
    assert coordinator.phase is phase
    coordinator.goes_on()

    assert coordinator.phase is not phase


@pytest.mark.parametrize("phase", SPEAKING)
def test_f21_a_failed_append_is_said_again_word_for_word(phase: Phase) -> None:
    coordinator = Coordinator.at(phase)
    said = coordinator.only(Append)
    coordinator.given(CallFailed("no confirmation"))
    coordinator.waits(SETTINGS.retry_backoff_ms)

    assert coordinator.only(Append) == said


@pytest.mark.parametrize("phase", SPEAKING)
def test_confirmed_but_never_heard_it_is_said_again_too(phase: Phase) -> None:
    """F54: a truncated log swallowed it."""
    coordinator = Coordinator.at(phase)
    said = coordinator.only(Append)
    for _ in range(3):
        coordinator.waits(SETTINGS.commit_timeout_ms)
        if coordinator.wants(Append):
            break

    assert coordinator.only(Append) == said


@pytest.mark.parametrize("phase", SPEAKING)
def test_f27_heard_twice_it_takes_effect_once(phase: Phase) -> None:
    coordinator = Coordinator.at(phase)
    said = coordinator.only(Append)
    coordinator.hears_itself(said)
    after, statuses = coordinator.phase, coordinator.term.progress.settled_to
    coordinator.hears_itself(said)

    assert coordinator.phase is after
    assert coordinator.term.progress.settled_to == statuses


def test_half_of_an_append_heard_is_not_all_of_it() -> None:
    """END was heard, START(n+1) was not: participants would idle."""
    coordinator = Coordinator.at(Phase.CLOSING)
    end, _ = coordinator.only(Append).events
    sender = coordinator.state.identity.sender
    coordinator.hears(end.event, sender, transaction=end.transaction)

    assert coordinator.phase is Phase.CLOSING


def test_a_presence_takes_effect_when_it_is_heard() -> None:
    participant = Participant()
    participant.owns(P0, P1)
    participant.start(1, AT)
    assert dict(participant.positions) == {}
    (draft,) = participant.unheard
    participant.append_fails()
    participant.waits(PARTICIPANT_SETTINGS.retry_backoff_ms)

    assert participant.unheard == [draft]


def test_a_status_whose_append_failed_is_said_again_word_for_word() -> None:
    participant = Participant.writing(AT)
    status = participant.answers(1, {P0: 15, P1: 20})
    participant.append_fails()
    assert participant.said == []
    participant.waits(PARTICIPANT_SETTINGS.retry_backoff_ms)

    assert participant.said == [status]


def test_a_status_confirmed_but_never_heard_is_said_again_too() -> None:
    participant = Participant.writing(AT)
    status = participant.answers(1, {P0: 15, P1: 20})
    participant.waits(1)
    participant.waits(PARTICIPANT_SETTINGS.presence_interval_ms)

    assert status in participant.said


def test_one_that_was_heard_after_all_is_not() -> None:
    """The confirmation was lost, not the event."""
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    sent = list(participant.unheard)
    participant.append_fails()
    participant.unheard = sent
    participant.hears_itself()
    participant.waits(PARTICIPANT_SETTINGS.retry_backoff_ms)

    assert participant.said == []


def test_an_answer_is_pending_until_then_and_the_next_one_waits() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    participant.start(2, AT, settled_to=12)
    participant.end(2)
    participant.source_ends({P0: 17})
    participant.batch_written()
    assert participant.phase is ParticipantPhase.ANSWERING
    assert participant.said == []
    participant.hears_itself()

    assert participant.status.status_number == 2
