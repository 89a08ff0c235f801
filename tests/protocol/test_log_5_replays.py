"""LOG-5: a genuine event that is said again later changes nothing, whoever says it and whenever."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.participating import Participant, started
from protocol.values import ALICE, BOB, P0, P1, RIVAL, TABLE, gain, offsets, proposal, status

from headgate.control_protocol.event_codec import NUMBER_MAX
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    Answer,
    EndCommit,
    Event,
    LogRecord,
    Notice,
    NoticeKind,
    Pause,
    PresenceKind,
    Resume,
    StartCommit,
    Tables,
    TableStart,
    WriteStatus,
)
from headgate.control_protocol.identifiers import LEAP_MAX, ControlOffset, Sender
from headgate.control_protocol.machine_io import Append, Heard, LogTruncated
from headgate.control_protocol.machine_io import Heard as ParticipantHeard
from headgate.coordinator import machine
from headgate.coordinator.inputs_and_actions import LeadershipGained
from headgate.coordinator.phase_steps import leader_unanswered_max_ms
from headgate.coordinator.phases import Phase
from headgate.coordinator.schema_changes import GATHERING_MS
from headgate.coordinator.state import WINDOW, ReplayWindow, State, Timer
from headgate.participant.state import Phase as Part

EVERY_KIND = {kind.__name__ for kind in get_args(Event)}
TABLE_START = TableStart(TABLE, "uuid-1", 0, 0, "elsewhere")
PHASES = [
    *(Phase.STARTING, Phase.OPEN, Phase.PREPARING, Phase.CLOSING),
    *(Phase.COLLECTING, Phase.COMMITTING, Phase.SETTLING),
]


def one_transaction(coordinator: Coordinator) -> None:
    """A gain, a pause, a resume, and rows."""
    at = coordinator.term.progress.offsets
    closing = coordinator.term.progress.number
    coordinator.hears(gain(P0), BOB, epoch=0)
    coordinator.hears(Pause(), BOB, epoch=EPOCH)
    coordinator.until(Phase.COLLECTING)
    rows = status(
        closing, {P0: (at[P0], at[P0] + 2), P1: (at[P1], at[P1])}, written_in=(EPOCH, closing)
    )
    coordinator.hears(rows, ALICE, transaction=closing)
    coordinator.hears(gain(kind=PresenceKind.ALIVE), ALICE)
    coordinator.waits(1)
    coordinator.until(Phase.OPEN)
    seen = coordinator.table.record
    assert seen is not None
    coordinator.hears(Resume(), BOB, transaction=seen.transaction.number)


def experienced(phase: Phase) -> Coordinator:
    """It has heard every kind of event in earlier transactions, and a rival before its epoch."""
    coordinator = Coordinator()
    for event in (StartCommit(None, offsets(10, 20), {}, ()), EndCommit()):
        coordinator.hears(event, RIVAL, epoch=EPOCH - 1, transaction=4)
    for settlement in (AckCommit, AbortCommit):
        said = settlement(ControlOffset(41), offsets(10, 20))
        coordinator.hears(said, RIVAL, epoch=EPOCH - 1)
    answer = Tables((Answer(ALICE, 1),), (TABLE_START,))
    coordinator.hears(answer, RIVAL, epoch=EPOCH - 1, transaction=4)
    for report in (Notice(kind, "HG-100", "said") for kind in NoticeKind):
        coordinator.hears(report, BOB, epoch=EPOCH - 1)
    coordinator.until(Phase.OPEN)
    one_transaction(coordinator)
    coordinator.hears(proposal(1), ALICE, transaction=coordinator.term.progress.number)
    coordinator.waits(GATHERING_MS)
    coordinator.until(Phase.OPEN)
    one_transaction(coordinator)
    late = status(9, {P0: (14, 15), P1: (20, 20)}, written_in=(EPOCH, 3))
    coordinator.hears(late, ALICE, transaction=3)
    if phase is Phase.STARTING:
        coordinator.given(LogTruncated("truncated"))
    coordinator.until(phase)
    return coordinator


def without_place(state: State) -> State:
    """How far the log was heard grows with every record, whatever it says.

    An old request may make it look at the table once more, which changes nothing by itself.
    """
    if state.term is None:
        return state
    progress = replace(state.term.progress, heard_to=ControlOffset(0))
    return replace(
        state.with_deadline(Timer.LOOK, None), term=replace(state.term, progress=progress)
    )


@pytest.mark.parametrize("phase", PHASES)
def test_a_coordinator_learns_nothing_from_what_was_said_before(phase: Phase) -> None:
    coordinator = experienced(phase)
    before = coordinator.state
    kinds = set()
    for record in list(coordinator.heard):
        kinds.add(type(record.envelope.event).__name__)
        coordinator.given(Heard(replace(record, offset=ControlOffset(coordinator.next_offset))))
        coordinator.next_offset += 1
        assert coordinator.actions == (), record
        assert without_place(coordinator.state) == without_place(before), record
    assert kinds == EVERY_KIND


def test_a_rival_that_died_is_not_kept_alive_by_its_old_words() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(EndCommit(), RIVAL, epoch=EPOCH + 1, transaction=1, sequence=5)
    assert coordinator.phase is Phase.FOLLOWING
    waited_ms = SETTINGS.election_timeout_ms + SETTINGS.commit_interval_ms
    for sequence in (3, 4, 5, 6):
        coordinator.waits(waited_ms // 4)
        coordinator.hears(EndCommit(), RIVAL, epoch=EPOCH + 1, transaction=1, sequence=sequence)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.given(LeadershipGained())
    assert coordinator.phase is Phase.RECOVERING


def test_a_gain_that_is_said_again_brings_no_end_forward() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(gain(P0, P1), ALICE, epoch=0, sequence=3)
    coordinator.until(Phase.COLLECTING)
    idle = status(1, {P0: (10, 10), P1: (20, 20)})
    coordinator.hears(idle, ALICE, transaction=1)
    coordinator.waits(1)
    coordinator.until(Phase.OPEN)
    due_ms = coordinator.state.deadlines[Timer.END]
    coordinator.hears(gain(P0, P1), ALICE, epoch=0, sequence=3)
    assert coordinator.state.deadlines[Timer.END] == due_ms
    assert coordinator.term.collection.named_by_presence == frozenset()
    coordinator.hears(gain(P0, P1), ALICE, epoch=0, sequence=4)
    assert coordinator.term.collection.named_by_presence == {P0, P1}


def test_an_older_amount_that_is_said_again_ends_nothing_early() -> None:
    small = replace(SETTINGS, commit_records=100)
    coordinator = Coordinator.at(Phase.OPEN, small)
    much, little = (replace(gain(kind=PresenceKind.ALIVE), buffered_records=n) for n in (90, 5))
    coordinator.hears(much, ALICE, sequence=1)
    coordinator.hears(little, ALICE, sequence=2)
    coordinator.hears(much, ALICE, sequence=1)
    coordinator.hears(replace(much, buffered_records=20), BOB, sequence=1)
    coordinator.waits(0)
    assert coordinator.phase is Phase.OPEN


def test_old_words_of_a_dead_participant_are_no_sign_of_an_heir() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(gain(kind=PresenceKind.ALIVE), BOB, sequence=9)
    long_ago_ms = coordinator.now_ms - leader_unanswered_max_ms(SETTINGS)
    coordinator.state = replace(
        coordinator.state,
        call=replace(coordinator.state.call, unanswered_since_ms=long_ago_ms),
    )
    coordinator.hears(gain(kind=PresenceKind.ALIVE), BOB, sequence=9)
    assert coordinator.state.watch.peers == {}
    coordinator.hears(gain(kind=PresenceKind.ALIVE), BOB, sequence=10)
    assert coordinator.state.watch.peers.keys() == {BOB.member}


def test_what_was_overtaken_on_its_way_counts_and_once_only() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.hears(gain(kind=PresenceKind.ALIVE), ALICE, sequence=8)
    for _ in range(2):
        coordinator.hears(gain(P1), ALICE, epoch=0, sequence=7)
    assert coordinator.term.collection.named_by_presence == {P1}
    coordinator.until(Phase.COLLECTING)
    for _ in range(2):
        late = status(1, {P0: (10, 10)})
        coordinator.hears(late, ALICE, transaction=1, sequence=6)
    assert len(coordinator.term.collection.statuses) == 1


def test_what_many_say_takes_bounded_memory_and_the_newest_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = 400
    assert kept < machine.WINDOWS_MAX
    monkeypatch.setattr(machine, "WINDOWS_MAX", kept)
    coordinator = Coordinator.at(Phase.OPEN)
    senders = [Sender("forged", f"{n:012x}") for n in range(kept + 10)]
    for sender in senders:
        coordinator.hears(gain(P1), sender, sequence=1)
    assert len(coordinator.state.watch.windows) == kept
    before = without_place(coordinator.state)
    for sender in senders[-100:]:
        coordinator.hears(gain(P1), sender, sequence=1)
    assert without_place(coordinator.state) == before


@given(
    st.lists(
        st.integers(1, 40)
        | st.integers(1, 2 * WINDOW)
        | st.sampled_from((LEAP_MAX, LEAP_MAX + 1, 3 * LEAP_MAX, NUMBER_MAX))
    )
)
def test_a_window_knows_what_was_heard_of_the_newest_numbers(numbers: list[int]) -> None:
    window, heard = ReplayWindow(), set[int]()
    for number in numbers:
        if abs(number - window.highest) > LEAP_MAX:
            assert window.has_number_or_none(number) is False
            heard.clear()
        window = window.with_number(number)
        heard.add(number)
        assert window.highest == max(heard)
        assert window.heard.bit_length() <= WINDOW
        for each in (*heard, *range(max(1, number - 3), number + 3)):
            behind = window.highest - each
            expected = each in heard if behind < WINDOW else None
            assert window.has_number_or_none(each) is (False if behind > LEAP_MAX else expected)


# ----------------------------------------------------------------------------------- participants

AT = offsets(10, 20)


def practised(phase: Part) -> Participant:
    """Two transactions, rows in the first; now it waits, writes, or has pending an answer."""
    participant = Participant.writing(AT)
    participant.hears(gain(P0), BOB)
    said = AbortCommit(ControlOffset(participant.next_offset), AT)
    answer = Tables((Answer(BOB, 1),), (TABLE_START,))
    reports = [Notice(kind, "HG-100", "said") for kind in NoticeKind]
    for event in (Pause(), Resume(), proposal(1), *reports):
        participant.hears(event, BOB)
    for event in (said, answer):
        participant.hears(event)
    participant.answers(1, {P0: 15, P1: 25})
    participant.hears_itself()
    participant.start(2, AT, settled_to=participant.next_offset - 4)
    participant.ack(1, offsets(15, 25), settled_to=participant.next_offset)
    participant.answers(2, {P0: 17, P1: 25})
    participant.hears_itself()
    if phase is Part.WAITING:
        return participant
    participant.start(3, offsets(15, 25), settled_to=participant.state.term.settled_to)
    participant.writes({P0: 17 + participant.state.settings.batch_records_max})
    if phase is Part.ANSWERING:
        participant.end(3)
    return participant


@pytest.mark.parametrize("phase", list(Part))
def test_a_participant_only_repeats_what_it_said_before(phase: Part) -> None:
    """ANSWER-2: END that comes again is answered by the identical statuses; all else does
    nothing."""
    participant = practised(phase)
    assert participant.phase is phase
    before = participant.state
    kinds = set()
    for record in list(participant.heard):
        kinds.add(type(record.envelope.event).__name__)
        participant.given(ParticipantHeard(at_the_end(participant, record)))
        said = [draft for append in participant.all(Append) for draft in append.events]
        assert all(draft in [own.said for own in before.said.pending] for draft in said), record
        assert participant.state == before, record
    assert kinds == EVERY_KIND


def test_an_old_start_that_is_said_again_pauses_nobody() -> None:
    participant = Participant.writing(AT)
    settled_to = participant.state.term.settled_to
    old = replace(started(2, AT, 1, settled_to), paused=True)
    participant.end(1)
    participant.hears(old, transaction=2)
    participant.end(2)
    participant.start(3, AT, settled_to=settled_to)
    participant.hears(old, transaction=2)
    assert not participant.state.term.paused


def test_one_that_just_came_reads_in_vain_at_most() -> None:
    """The first START of an epoch that others have worked in for long gives it an old position."""
    old = practised(Part.WRITING)
    participant = Participant()
    participant.owns(P0, P1)
    participant.hears_itself()
    for record in old.heard:
        participant.given(ParticipantHeard(at_the_end(participant, record)))
    participant.start(9, offsets(40, 50), settled_to=participant.next_offset)
    assert participant.positions == offsets(40, 50)
    said: WriteStatus = participant.answers(9, {P0: 41, P1: 50})
    claims = {p: claim.range.begin for p, claim in said.written.items()}
    assert claims == {P0: 40, P1: 50}


def at_the_end(participant: Participant, record: LogRecord) -> LogRecord:
    at = participant.next_offset
    participant.next_offset += 1
    return replace(record, offset=ControlOffset(at))
