"""EPOCH-3: lower epochs are ignored; a higher one voids work, announced statuses and positions."""

from __future__ import annotations

import pytest
from protocol.participating import Participant, claimed, started
from protocol.values import P0, P1, RIVAL, offsets

from headgate.control_protocol.events import AckCommit, EndCommit, Event, WriteStatus
from headgate.control_protocol.identifiers import ControlOffset
from headgate.control_protocol.ports import BatchWritten, PartitionResult
from headgate.participant.inputs_and_actions import BatchEnded
from headgate.participant.state import Phase

AT = offsets(10, 20)


@pytest.mark.parametrize(
    "event",
    [started(9, offsets(99, 99), 3, None), EndCommit(), AckCommit(ControlOffset(999), offsets(9))],
    ids=lambda event: type(event).__name__,
)
def test_hc25_what_a_lower_epoch_says_is_ignored(event: Event) -> None:
    participant = Participant.writing(AT, epoch=4)
    participant.writes({P0: 110})
    before = participant.state
    participant.hears(event, RIVAL, epoch=3, transaction=9)

    assert participant.state == before
    assert participant.said == []


def test_f26_the_highest_epoch_wins_and_not_the_last_arrival() -> None:
    participant = Participant.writing(AT, epoch=4)
    participant.hears(started(1, AT, 6, None), RIVAL, epoch=6, transaction=1)
    participant.hears(started(1, AT, 5, None), epoch=5, transaction=1)

    assert participant.state.term.epoch == 6


def test_a_table_created_anew_counts_its_epochs_anew() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 12, P1: 20})
    participant.hears(started(1, offsets(3, 4), 1, None), RIVAL, epoch=1, transaction=1)
    assert participant.positions == offsets(3, 4)
    assert participant.state.said.pending == ()
    participant.hears(EndCommit(), RIVAL, epoch=1, transaction=1)

    assert participant.state.term.ended == 1


@pytest.mark.parametrize("first_heard", ["END", "START", "ACK"])
def test_another_coordinator_of_the_same_epoch_is_obeyed_without_its_first_start(
    first_heard: str,
) -> None:
    """That START was lost with the end of the control topic: what follows stands for it."""
    participant = Participant.writing(AT)
    for number in range(1, 10):
        participant.answers(number, {P0: 10, P1: 20})
        participant.hears_itself()
        participant.start(number + 1, AT, settled_to=participant.next_offset)
    participant.writes({P0: 110})
    l_of_theirs = ControlOffset(participant.next_offset)

    if first_heard == "END":
        participant.hears(EndCommit(), RIVAL, transaction=1)
        assert participant.status.unknown == {P0, P1}
        participant.hears_itself()
    if first_heard == "ACK":
        ack = AckCommit(l_of_theirs, offsets(3, 4))
        participant.hears(ack, RIVAL, transaction=1)
    second = started(2, offsets(3, 4), 1, l_of_theirs)
    participant.hears(second, RIVAL, transaction=2)

    assert participant.phase is Phase.WRITING
    assert participant.positions == offsets(3, 4)
    assert participant.state.work.files == ()
    assert claimed(participant_answer(participant, 2)) == {P0: (3, 5), P1: (4, 4)}


def participant_answer(participant: Participant, number: int) -> WriteStatus:
    participant.hears(EndCommit(), RIVAL, transaction=number)
    participant.source_ends({P0: 5, P1: 4})
    participant.batch_written()
    return participant.status


def test_a_higher_epoch_voids_unannounced_work_and_its_files() -> None:
    participant = Participant.writing(AT)
    participant.writes({P0: 110})
    assert participant.positions[P0] == 110
    participant.start(1, AT, epoch=2)

    assert participant.positions == AT
    assert participant.state.work.files == ()


def test_it_abandons_the_running_batch() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110})
    assert participant.state.run.batch is not None
    participant.start(1, AT, epoch=2)

    assert participant.state.run.batch is None
    answer = participant.answers(1, {P0: 12, P1: 20}, epoch=2)
    assert claimed(answer) == {P0: (10, 12), P1: (20, 20)}


def test_hc07_the_outcome_of_an_abandoned_batch_is_dropped() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110})
    old = participant.batch
    participant.start(1, AT, epoch=2)
    results = {p: PartitionResult(r, len(r), 0) for p, r in old.ranges.items()}
    participant.given(BatchEnded(BatchWritten(old.number, results)))

    assert participant.positions == AT


def test_it_voids_announced_statuses() -> None:
    """They are neither chained onto the new C nor repeated for a repeated END."""
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    participant.hears_itself()
    participant.start(1, AT, epoch=2)

    assert participant.positions == AT
    assert participant.state.said.pending == ()


def test_it_voids_positions_until_c_is_heard() -> None:
    """Any coordinator's event of the higher epoch does; C comes with its START or settlement."""
    participant = Participant.writing(AT)
    participant.hears(EndCommit(), epoch=2, transaction=5)

    assert dict(participant.positions) == {}
    assert participant.status.unknown == {P0, P1}
    assert participant.status.tables == ()


def test_writing_goes_back_to_waiting() -> None:
    participant = Participant.writing(AT)
    assert participant.phase is Phase.WRITING
    participant.hears(AckCommit(ControlOffset(1), AT), epoch=2, transaction=1)

    assert participant.phase is Phase.WAITING


def test_the_same_epochs_events_are_heard() -> None:
    participant = Participant.writing(AT, epoch=4)
    participant.end(1, epoch=4)

    assert participant.phase is Phase.ANSWERING
