"""LOG-3: a discontinuity voids what was said: a new epoch, and partitions announced anew."""

from __future__ import annotations

import pytest
from protocol.coordinating import EPOCH, Coordinator
from protocol.participating import Participant, claimed
from protocol.values import ALICE, P0, P1, offsets, status

from headgate.control_protocol.events import PresenceKind
from headgate.control_protocol.machine_io import Append, LogTruncated
from headgate.control_protocol.machine_io import LogTruncated as ParticipantDiscontinued
from headgate.coordinator.phases import Phase

AT = offsets(10, 20)
LOST = LogTruncated("the control topic was truncated")


@pytest.mark.parametrize(
    "phase",
    [
        Phase.STARTING,
        Phase.OPEN,
        Phase.PREPARING,
        Phase.CLOSING,
        Phase.COLLECTING,
        Phase.SETTLING,
    ],
)
def test_x4_a_coordinator_claims_a_new_epoch_from_any_phase(phase: Phase) -> None:
    coordinator = Coordinator.at(phase)
    coordinator.given(LOST)
    assert coordinator.phase is Phase.RECOVERING
    assert coordinator.reads_primary
    assert not coordinator.wants(Append)
    coordinator.until(Phase.OPEN)

    assert coordinator.term.epoch == EPOCH + 1


def test_in_mid_commit_too_and_the_table_tells_what_became_of_it() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    both = status(1, {P0: (10, 15), P1: (20, 22)}, written_in=(EPOCH, 1))
    coordinator.hears(both, ALICE, transaction=1)
    coordinator.waits(1)
    coordinator.takes()
    coordinator.unsure()
    coordinator.given(LOST)
    coordinator.until(Phase.OPEN)

    assert coordinator.term.progress.offsets == offsets(15, 22)
    assert coordinator.term.collection.statuses == ()


@pytest.mark.parametrize("phase", [Phase.FOLLOWING, Phase.RECOVERING, Phase.CLAIMING])
def test_before_anything_was_said_nothing_is_void(phase: Phase) -> None:
    coordinator = Coordinator.at(phase)
    coordinator.given(LOST)

    assert coordinator.phase is phase
    assert not coordinator.reads_primary


def test_a_participant_voids_its_work_and_announces_its_partitions_anew() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    participant.given(ParticipantDiscontinued("truncated"))

    assert participant.presence.kind is PresenceKind.JOINED
    assert participant.presence.concerns == {P0, P1}
    assert dict(participant.positions) == {}
    assert participant.state.said.pending == ()
    assert participant.state.work.files == ()


def test_its_positions_come_with_the_new_epoch_on_the_new_log() -> None:
    """Offsets of the new log begin at nought again: old places in the log mean nothing."""
    participant = Participant.writing(AT)
    participant.given(ParticipantDiscontinued("re-created"))
    participant.next_offset = 0
    participant.hears_itself()
    participant.start(1, offsets(15, 20), epoch=2)
    assert participant.positions == offsets(15, 20)
    answer = participant.answers(1, {P0: 16, P1: 20}, epoch=2)
    participant.hears_itself()
    participant.ack(1, offsets(16, 20), settled_to=participant.next_offset, epoch=2)

    assert claimed(answer)[P0] == (15, 16)
    assert participant.positions == offsets(16, 20)


def test_one_that_owns_nothing_has_nothing_to_announce() -> None:
    participant = Participant()
    participant.given(ParticipantDiscontinued("truncated"))

    assert participant.said == []
