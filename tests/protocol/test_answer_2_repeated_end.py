"""ANSWER-2: a repeated END gets the identical statuses that are not settled; failures are done
again."""

from __future__ import annotations

from protocol.participating import SETTINGS, Participant, claimed
from protocol.values import P0, P1, offsets

from headgate.control_protocol.errors import PoisonRecord
from headgate.control_protocol.events import WriteStatus
from headgate.control_protocol.machine_io import Stop
from headgate.participant.inputs_and_actions import Submit

AT = offsets(10, 20)


def test_hc28_repeated_end_gets_the_identical_status_files_included() -> None:
    participant = Participant.writing(AT)
    answer = participant.answers(1, {P0: 15, P1: 20})
    participant.hears_itself()
    participant.end(1)

    assert participant.status == answer
    assert answer.tables[0].files != ()


def test_hc28_also_when_the_next_transaction_is_open_and_has_work() -> None:
    participant = Participant.writing(AT)
    answer = participant.answers(1, {P0: 15, P1: 20})
    participant.hears_itself()
    participant.start(2, AT, settled_to=12)
    participant.writes({P0: 115})
    participant.end(1)

    assert participant.status == answer
    assert participant.positions[P0] == 115


def test_one_that_is_settled_is_not_said_again() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    participant.hears_itself()
    participant.ack(1, offsets(15, 20), settled_to=participant.next_offset)
    participant.end(1)

    assert participant.said == []


def test_hc30_end_for_a_transaction_that_was_never_open_here_is_answered_with_what_there_is() -> (
    None
):
    participant = Participant.writing(AT)
    participant.writes({P0: 110, P1: 20})
    answer = participant.answers(7, {P0: 110, P1: 20})

    assert claimed(answer)[P0] == (10, 110)
    assert len(answer.tables[0].files) == 1


def test_all_statuses_that_are_not_settled_are_said_again_in_order() -> None:
    participant = Participant.writing(AT)
    first = participant.answers(1, {P0: 15, P1: 20})
    participant.hears_itself()
    participant.start(2, AT, settled_to=12)
    second = participant.answers(2, {P0: 17, P1: 20})
    participant.hears_itself()
    participant.end(2)

    assert participant.said == [first, second]


def test_heard_twice_a_status_stands_where_it_was_heard_first() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15, P1: 20})
    (at,) = participant.hears_itself()
    participant.end(1)
    participant.hears_itself()

    (pending,) = participant.state.said.pending
    assert pending.offset == at


def test_a_failed_range_is_done_again_after_a_wait() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110})
    ranges = participant.batch.ranges
    participant.batch_failed()
    participant.waits(SETTINGS.retry_backoff_ms - 1)
    assert participant.actions == ()
    participant.waits(SETTINGS.end_offset_interval_ms)
    participant.source_ends({P0: 110})

    assert participant.only(Submit).batch.ranges == ranges


def test_the_range_of_a_failed_answer_is_done_again_in_the_next_transaction() -> None:
    participant = Participant.writing(AT)
    participant.end(1)
    participant.source_ends({P0: 15})
    participant.batch_failed()
    assert isinstance(participant.said[0], WriteStatus)
    participant.hears_itself()
    participant.start(2, AT, settled_to=12)
    participant.now_ms += SETTINGS.retry_backoff_ms
    answer = participant.answers(2, {P0: 15, P1: 20})

    assert claimed(answer)[P0] == (10, 15)
    assert answer.failure is None


def test_hc20_a_poison_record_stops_the_sink_with_its_reason() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110})
    poison = PoisonRecord("trips/0 offset 12: no number")
    participant.batch_failed(poison.message, fatal=poison)

    assert participant.only(Stop).error is poison
