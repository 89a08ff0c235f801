"""POSITION-1: a gain is announced; what is given up is announced first; what is lost is dropped."""

from __future__ import annotations

from protocol.participating import Participant, claimed
from protocol.values import P0, P1, P2, offsets

from headgate.control_protocol.events import PresenceKind
from headgate.participant.inputs_and_actions import ReleaseRequested, ReleaseTimedOut
from headgate.participant.state import Timer

AT = offsets(10, 20)


def test_a_gain_is_announced_with_the_partitions_it_concerns() -> None:
    participant = Participant()
    participant.owns(P0)
    assert participant.presence.kind is PresenceKind.JOINED
    assert participant.presence.concerns == {P0}
    participant.owns(P0, P1)

    assert participant.presence.kind is PresenceKind.GAINED
    assert participant.presence.concerns == {P1}


def test_the_same_assignment_again_says_nothing() -> None:
    participant = Participant()
    participant.owns(P0)
    participant.owns(P0)

    assert participant.said == []


def test_x13_gaining_and_losing_others_leaves_the_kept_positions_alone() -> None:
    participant = Participant.writing(AT)
    participant.owns(P0, P1, P2)
    assert participant.positions == AT
    participant.owns(P0)

    assert dict(participant.positions) == {P0: 10}


def test_what_is_given_up_is_announced_before_it_is_let_go() -> None:
    participant = Participant.writing(AT)
    participant.writes({P0: 110, P1: 20})
    participant.given(ReleaseRequested(frozenset({P0})))

    assert claimed(participant.status) == {P0: (10, 110), P1: (20, 20)}
    assert participant.state.work.leaving == frozenset()
    assert set(participant.state.work.owned) == {P1}


def test_nothing_written_nothing_to_announce() -> None:
    participant = Participant.writing(AT)
    participant.given(ReleaseRequested(frozenset({P0})))

    assert participant.said == []
    assert set(participant.state.work.owned) == {P1}


def test_a_running_batch_is_finished_first() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110})
    participant.given(ReleaseRequested(frozenset({P0})))
    assert participant.state.work.leaving == {P0}
    participant.batch_written()

    assert claimed(participant.status)[P0] == (10, 110)
    assert set(participant.state.work.owned) == {P1}


def test_no_new_batch_is_begun_for_somebody_who_waits() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110})
    participant.given(ReleaseRequested(frozenset({P1})))
    participant.batch_written()

    assert participant.submitted == []


def test_a_status_still_unheard_holds_the_last_word_back() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    participant.start(2, AT, settled_to=12)
    participant.writes({P0: 115})
    participant.given(ReleaseRequested(frozenset({P0})))
    assert participant.said == []
    participant.hears_itself()

    assert claimed(participant.status)[P0] == (15, 115)


def test_after_the_time_out_all_unannounced_work_is_dropped() -> None:
    """Files mix partitions: what is kept goes back too."""
    participant = Participant.writing(AT)
    participant.writes({P0: 90, P1: 40})
    participant.source_ends({P0: 190})
    participant.given(ReleaseRequested(frozenset({P0})))
    participant.given(ReleaseTimedOut())

    assert participant.said == []
    assert dict(participant.positions) == {P1: 20}
    assert participant.state.work.files == ()
    assert participant.state.run.batch is None


def test_the_time_out_of_a_release_that_is_done_changes_nothing() -> None:
    participant = Participant.writing(AT)
    participant.given(ReleaseRequested(frozenset({P0})))
    participant.writes({P1: 120})
    participant.given(ReleaseTimedOut())

    assert dict(participant.positions) == {P1: 120}


def test_f32_what_is_lost_without_notice_is_dropped() -> None:
    participant = Participant.writing(AT)
    participant.writes({P0: 90, P1: 40})
    participant.owns(P1)

    assert participant.presence.kind is PresenceKind.LOST
    assert participant.presence.concerns == {P0}
    assert dict(participant.positions) == {P1: 20}
    assert participant.state.work.files == ()


def test_what_was_announced_before_a_loss_stands() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 25})
    participant.hears_itself()
    participant.start(2, AT, settled_to=12)
    participant.owns(P1)

    assert dict(participant.positions) == {P1: 25}
    assert len(participant.state.said.pending) == 1


def test_alive_is_said_regularly_with_positions() -> None:
    participant = Participant.writing(AT)
    participant.now_ms = participant.state.deadlines[Timer.ALIVE]
    participant.waits(0)

    assert participant.presence.kind is PresenceKind.ALIVE
    assert participant.presence.concerns == frozenset()
    assert {p: own.position for p, own in participant.presence.owned.items()} == dict(AT)
