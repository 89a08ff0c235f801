"""BATCH-2: what lies before a record that stops the sink is committed first."""

from __future__ import annotations

from protocol.participating import SETTINGS, Participant, claimed, rows
from protocol.values import P0, P1, offsets

from headgate.control_protocol.errors import PoisonRecord
from headgate.control_protocol.machine_io import Stop
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import BatchFailed
from headgate.participant.batches import CUTS_MAX
from headgate.participant.inputs_and_actions import BatchEnded

AT = offsets(10, 20)
ENDS = {P0: 110, P1: 25}


def begun() -> Participant:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends(ENDS)
    return participant


def poison(first: Offsets) -> PoisonRecord:
    return PoisonRecord("no number", "", first)


def meets(participant: Participant, first: Offsets) -> PoisonRecord:
    error = poison(first)
    participant.given(BatchEnded(BatchFailed(participant.batch.number, str(error), error)))
    return error


def stopped(participant: Participant) -> object:
    (stop,) = participant.all(Stop) or [None]
    return stop and stop.error


def test_the_batch_is_written_up_to_the_record_and_the_sink_stops_once_that_is_settled() -> None:
    participant = begun()
    error = meets(participant, Offsets({P0: 50}))
    assert stopped(participant) is None
    participant.source_ends({P0: 200, P1: 200})
    assert participant.batch.ranges == {P0: OffsetRange(10, 50), P1: OffsetRange(20, 25)}
    participant.batch_written()
    assert stopped(participant) is None

    participant.end(1)
    participant.source_ends({P0: 200, P1: 200})
    assert claimed(participant.status) == {P0: (10, 50), P1: (20, 25)}
    assert rows(participant.status) == 45
    assert participant.status.unknown == {P0}
    assert "no number" in (participant.status.failure or "")
    participant.hears_itself()
    participant.start(2, AT, settled_to=11)
    assert stopped(participant) is None
    participant.ack(1, offsets(50, 25), participant.next_offset)
    assert stopped(participant) is error


def test_work_of_batches_before_is_committed_too() -> None:
    participant = begun()
    participant.batch_written()
    participant.waits(100)
    participant.source_ends({P0: 300, P1: 25})
    error = meets(participant, Offsets({P0: 110}))
    assert stopped(participant) is None
    participant.answers(1, {P0: 200, P1: 30})
    participant.hears_itself()
    participant.ack(1, offsets(110, 25), participant.next_offset)
    assert stopped(participant) is error


def test_a_sink_without_anything_before_the_record_stops_at_once() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 110, P1: 20})
    error = meets(participant, Offsets({P0: 10}))
    assert stopped(participant) is error


def test_an_answer_under_way_waits_for_what_lies_before_the_record() -> None:
    participant = Participant.writing(AT)
    participant.end(1)
    participant.source_ends({P0: 40, P1: 25})
    meets(participant, Offsets({P0: 30, P1: 22}))
    assert participant.said == []
    participant.source_ends({P0: 40, P1: 25})
    participant.batch_written()
    assert claimed(participant.status) == {P0: (10, 30), P1: (20, 22)}


def test_a_claim_that_was_refused_is_done_again_before_the_sink_stops() -> None:
    participant = begun()
    error = meets(participant, Offsets({P0: 50}))
    participant.source_ends(ENDS)
    participant.batch_written()
    participant.answers(1, ENDS)
    participant.hears_itself()
    participant.start(2, AT, settled_to=11)
    participant.ack(1, AT, participant.next_offset)
    assert stopped(participant) is None
    participant.waits(100)
    participant.source_ends(ENDS)
    assert participant.batch.ranges == {P0: OffsetRange(10, 50), P1: OffsetRange(20, 25)}
    participant.batch_written()
    participant.answers(2, ENDS)
    participant.hears_itself()
    participant.ack(2, offsets(50, 25), participant.next_offset)
    assert stopped(participant) is error


def test_a_record_that_another_commit_has_passed_stops_nobody() -> None:
    participant = begun()
    meets(participant, Offsets({P0: 50}))
    participant.source_ends(ENDS)
    participant.batch_written()
    participant.ack(0, offsets(60, 20), participant.next_offset)
    assert stopped(participant) is None
    participant.waits(100)
    participant.source_ends({P0: 200, P1: 25})
    assert participant.batch.ranges[P0] == OffsetRange(60, 155)


def test_a_partition_that_was_lost_stops_nobody() -> None:
    participant = begun()
    meets(participant, Offsets({P0: 50}))
    participant.owns(P1)
    assert stopped(participant) is None
    participant.waits(100)
    participant.source_ends({P1: 125})
    assert participant.batch.ranges == {P1: OffsetRange(20, 120)}


def test_a_new_epoch_begins_again_and_meets_the_record_again() -> None:
    participant = begun()
    meets(participant, Offsets({P0: 50}))
    participant.start(1, AT, epoch=2)
    participant.ack(0, AT, participant.next_offset, epoch=2)
    assert stopped(participant) is None
    assert participant.state.run.stop is None
    participant.waits(100)
    participant.source_ends(ENDS)
    assert participant.batch.ranges[P0] == OffsetRange(10, 105)


def test_a_paused_sink_stops_when_it_has_gone_on() -> None:
    participant = begun()
    meets(participant, Offsets({P0: 50}))
    assert participant.state.run.stop is not None
    participant.source_ends({})
    participant.waits(10_000)
    assert stopped(participant) is None


def test_further_such_records_cut_the_batch_further_but_not_for_ever() -> None:
    participant = begun()
    for cut in range(CUTS_MAX):
        meets(participant, Offsets({P0: 100 - cut}))
        participant.source_ends(ENDS)
        assert participant.batch.ranges[P0] == OffsetRange(10, 100 - cut)
    error = meets(participant, Offsets({P0: 50}))
    assert stopped(participant) is error
    assert participant.state.run.batch is None


def test_where_the_record_is_not_known_the_sink_stops_at_once() -> None:
    participant = begun()
    assert stopped(participant) is None
    for first in (Offsets(), Offsets({P0: 9}), Offsets({P0: 5_000})):
        other = begun()
        assert stopped(other) is None
        error = meets(other, first)
        assert stopped(other) is error


def test_a_batch_that_waits_for_the_source_is_not_taken_for_written() -> None:
    participant = Participant.writing(AT, settings=SETTINGS)
    participant.end(1)
    participant.source_ends({P0: 40, P1: 25})
    meets(participant, Offsets({P0: 30}))
    participant.source_ends({})
    assert claimed(participant.status) == {P0: (10, 10), P1: (20, 20)}
    participant.hears_itself()
    participant.start(2, AT, settled_to=11)
    participant.ack(1, AT, participant.next_offset)
    assert stopped(participant) is None
