"""ANSWER-1: every END is answered once, by one status that names every owned partition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.participating import SETTINGS, Participant, claimed, started
from protocol.values import BOB, P0, P1, P2, gain, offsets

from headgate.control_protocol.events import Pause
from headgate.participant.inputs_and_actions import ReadEndOffsets, ReleaseRequested
from headgate.participant.state import Phase

AT = offsets(10, 20)


def test_w1_one_status_names_every_owned_partition() -> None:
    participant = Participant.writing(AT)
    participant.owns(P0, P1, P2)
    answer = participant.answers(1, {P0: 15, P1: 20})

    assert claimed(answer) == {P0: (10, 15), P1: (20, 20)}
    assert answer.unknown == {P2}


def test_w4_no_end_no_status() -> None:
    participant = Participant.writing(AT)
    participant.hears(Pause())
    participant.hears(gain(P2), BOB)
    for _ in range(10):
        participant.waits(1_000)
        assert participant.said == []


def test_hc13_one_that_joined_late_answers_unknown_though_it_saw_no_start() -> None:
    participant = Participant()
    participant.owns(P0, P1)
    participant.hears_itself()
    participant.end(4)

    assert participant.status.unknown == {P0, P1}
    assert participant.status.tables == ()
    assert participant.phase is Phase.WAITING


def test_one_that_owns_nothing_says_nothing() -> None:
    participant = Participant()
    participant.start(1, AT)
    participant.end(1)

    assert participant.said == []
    assert participant.phase is not Phase.ANSWERING


def test_a_batch_that_runs_is_finished_first() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110})
    participant.end(1)
    participant.waits(1_000)
    assert participant.said == []
    participant.batch_written()

    assert claimed(participant.status)[P0] == (10, 110)


def test_there_is_one_last_look_at_the_source_and_only_one() -> None:
    participant = Participant.writing(AT)
    participant.end(1)
    assert participant.only(ReadEndOffsets)
    participant.source_ends({P0: 500})
    participant.batch_written()

    assert claimed(participant.status)[P0] == (10, 110)


def test_a_source_that_does_not_answer_does_not_hold_the_answer_back() -> None:
    participant = Participant.writing(AT)
    participant.end(1)
    participant.source_ends({})

    assert claimed(participant.status) == {P0: (10, 10), P1: (20, 20)}


def test_one_slow_answer_covers_several_ends() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110})
    participant.end(1)
    participant.start(2, AT, settled_to=12)
    participant.end(2)
    participant.start(3, AT, settled_to=14)
    participant.batch_written()
    assert claimed(participant.status)[P0] == (10, 110)
    assert participant.unheard[-1].transaction == 2
    participant.hears_itself()
    participant.waits(1)

    assert participant.phase is Phase.WRITING
    assert participant.state.term.writing is not None
    assert participant.state.term.writing.number == 3
    assert participant.said == []


def test_each_end_gets_an_answer_of_its_own() -> None:
    participant = Participant.writing(AT)
    numbers = []
    for transaction in (1, 2, 3):
        end = 10 + 5 * transaction
        numbers.append(participant.answers(transaction, {P0: end, P1: 20}).status_number)
        participant.hears_itself()
        participant.start(transaction + 1, AT, settled_to=12)

    assert numbers == [1, 2, 3]


def test_f23_a_writers_failure_is_answered_with_its_reason() -> None:
    participant = Participant.writing(AT)
    participant.end(1)
    participant.source_ends({P0: 15})
    participant.batch_failed("disk full")

    assert participant.status.failure == "disk full"
    assert participant.status.tables == ()


@pytest.mark.parametrize("by_settlement", [False, True])
def test_what_failed_is_forgotten_with_a_partition_that_others_have_read(
    *, by_settlement: bool
) -> None:
    """Every later status named it *unknown* for the old reason, though it was idle."""
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 10, P1: 120})
    participant.batch_failed("disk full")
    done = AT.with_offsets({P1: 120})
    if by_settlement:
        participant.ack(1, done, participant.next_offset)
    else:
        participant.owns(P0)
        participant.owns(P0, P1)
        participant.hears_itself()
        participant.ack(1, done, participant.next_offset)
    participant.waits(SETTINGS.retry_backoff_ms)
    answer = participant.answers(1, {P0: 10, P1: 120})

    assert claimed(answer) == {P0: (10, 10), P1: (120, 120)}
    assert (answer.unknown, answer.failure) == (frozenset(), None)


def test_a_partition_whose_end_cannot_be_asked_is_not_idle() -> None:
    participant = Participant.writing(AT)
    answer = participant.answers(1, {P0: 15})

    assert claimed(answer) == {P0: (10, 15), P1: (20, 20)}
    assert answer.unknown == {P1}


def test_one_that_is_at_its_end_is() -> None:
    participant = Participant.writing(AT)
    answer = participant.answers(1, {P0: 10, P1: 20})

    assert claimed(answer) == {P0: (10, 10), P1: (20, 20)}
    assert answer.unknown == frozenset()


def test_an_end_that_was_seen_in_an_earlier_transaction_says_nothing_now() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 10, P1: 20})
    participant.hears_itself()
    participant.start(2, AT, settled_to=participant.next_offset)
    answer = participant.answers(2, {})

    assert answer.unknown == {P0, P1}


def test_what_waits_for_room_is_not_idle() -> None:
    settings = replace(SETTINGS, files_max=0)
    participant = Participant.writing(AT, settings=settings)
    answer = participant.answers(1, {P0: 15, P1: 20})

    assert claimed(answer) == {P0: (10, 10), P1: (20, 20)}
    assert answer.unknown == {P0}


def test_a_paused_sink_asks_nothing_and_is_not_idle() -> None:
    """Valid-through passed what a paused sink left unread (seed 17543 of the simulation)."""
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 10, P1: 20})
    participant.hears_itself()
    paused = replace(started(2, AT, 1, participant.next_offset), paused=True)
    participant.hears(paused, transaction=2)
    participant.end(2)

    assert claimed(participant.status) == {P0: (10, 10), P1: (20, 20)}
    assert participant.status.unknown == {P0, P1}


def test_what_was_seen_before_the_batch_that_end_waits_for_counts() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110, P1: 20})
    participant.end(1)
    participant.batch_written()

    assert claimed(participant.status) == {P0: (10, 110), P1: (20, 20)}
    assert participant.status.unknown == frozenset()


def test_one_answer_to_several_ends_calls_nothing_idle() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110, P1: 20})
    participant.end(1)
    participant.start(2, AT, settled_to=participant.next_offset)
    participant.end(2)
    participant.batch_written()

    assert claimed(participant.status) == {P0: (10, 110), P1: (20, 20)}
    assert participant.status.unknown == {P1}


def test_what_is_said_before_end_calls_nothing_idle() -> None:
    """Records may come until END: nobody may take the table for complete beyond them."""
    participant = Participant.writing(offsets(10, 20, 30))
    participant.writes({P0: 110, P1: 20, P2: 30})
    participant.source_ends({P0: 110, P1: 20, P2: 30})
    participant.given(ReleaseRequested(frozenset({P1})))
    assert claimed(participant.status) == {P0: (10, 110), P1: (20, 20), P2: (30, 30)}
    assert participant.status.unknown == {P1, P2}
    participant.hears_itself()
    assert participant.answers(1, {P0: 110, P2: 30}).unknown == frozenset()
