"""RANGE-1: read in an open transaction, from a known position; a range is what the files hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.participating import SETTINGS, Participant, claimed, rows, started
from protocol.values import P0, P1, P2, folder, offsets

from headgate.control_protocol.events import Limits, StartCommit
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import BatchWritten, PartitionResult
from headgate.participant.inputs_and_actions import BatchEnded, EndOffsetsRead, ReadEndOffsets

AT = offsets(10, 20)


def test_hc06_nothing_is_read_before_start() -> None:
    participant = Participant()
    participant.owns(P0, P1)
    participant.hears_itself()
    participant.ack(1, AT, settled_to=participant.next_offset)  # a position, but no transaction
    assert participant.positions == AT
    participant.waits(1_000)
    assert participant.all(ReadEndOffsets) == []
    participant.start(2, AT, settled_to=participant.next_offset)

    assert participant.only(ReadEndOffsets).partitions == {P0, P1}


def test_hc06_nothing_is_read_between_the_answer_and_the_next_start() -> None:
    participant = Participant.writing(AT)
    participant.answers(1, {P0: 15})
    for _ in range(5):
        participant.waits(1_000)
        assert participant.all(ReadEndOffsets) == []


def test_a_transaction_is_open_to_a_participant_until_its_own_answer() -> None:
    """START 2 is heard, but the files of the answer that is pending lie in transaction 1's
    folder."""
    participant = Participant.writing(AT)
    participant.end(1)
    participant.start(2, AT, settled_to=12)
    participant.source_ends({P0: 15})
    (batch,) = participant.submitted
    assert batch.transaction.number == 1
    participant.batch_written()
    assert participant.state.term.writing is not None
    assert participant.state.term.writing.number == 2
    participant.hears_itself()
    participant.source_ends({P0: 115})

    (batch,) = participant.submitted
    assert batch.transaction.number == 2
    assert batch.table.file_prefix == folder(1, 2)


def test_a_source_that_answers_slower_than_it_is_asked_does_not_keep_the_participant() -> None:
    """Asked again at once, it would be asked for ever: group and log were never heard."""
    participant = Participant.writing(AT)
    participant.waits(1_000)
    assert participant.all(ReadEndOffsets)
    participant.now_ms += 10_000
    participant.given(EndOffsetsRead({}))
    assert participant.actions == ()
    participant.waits(SETTINGS.end_offset_interval_ms)

    assert participant.all(ReadEndOffsets)


def test_nothing_is_read_from_an_unknown_position() -> None:
    participant = Participant.writing(AT)
    participant.owns(P0, P1, P2)
    participant.waits(1_000)

    assert participant.only(ReadEndOffsets).partitions == {P0, P1}


def test_nothing_is_read_of_a_partition_outside_the_fixed_set() -> None:
    participant = Participant.writing(AT)
    participant.owns(P0, P1, P2)
    participant.hears_itself()
    participant.ack(1, offsets(10, 20, 0), settled_to=participant.next_offset)
    assert P2 in participant.positions
    participant.waits(1_000)

    assert participant.only(ReadEndOffsets).partitions == {P0, P1}


def test_the_claim_is_exactly_what_the_batches_covered() -> None:
    participant = Participant.writing(AT)
    participant.writes({P0: 110, P1: 20})
    answer = participant.answers(1, {P0: 117, P1: 23})

    assert claimed(answer) == {P0: (10, 117), P1: (20, 23)}
    assert rows(answer) == 110
    assert len(answer.tables[0].files) == 2


def test_a_partition_without_new_offsets_is_claimed_as_idle() -> None:
    answer = Participant.writing(AT).answers(1, {P0: 12, P1: 20})

    assert claimed(answer)[P1] == (20, 20)


def test_a_batch_that_covers_other_ranges_than_it_was_given_is_no_batch() -> None:
    participant = Participant.writing(AT)
    participant.end(1)
    participant.source_ends({P0: 15})
    short = {P0: PartitionResult(OffsetRange(10, 14), 4, 0)}
    with pytest.raises(AssertionError, match="other ranges"):
        participant.given(BatchEnded(BatchWritten(participant.batch.number, short)))


def test_a_failed_batch_leaves_the_claim_where_it_was() -> None:
    participant = Participant.writing(AT)
    participant.writes({P0: 110, P1: 20})
    participant.source_ends({P0: 210})
    participant.batch_failed()

    assert participant.positions[P0] == 110
    assert len(participant.state.work.files) == 1


def asked_after(participant: Participant) -> int:
    """After how many intervals the source is asked again where it ends."""
    for intervals in range(1, 10):
        participant.waits(SETTINGS.end_offset_interval_ms)
        if participant.all(ReadEndOffsets):
            return intervals
    raise AssertionError("it is not asked")


def test_a_source_with_nothing_new_is_asked_more_seldom_until_something_comes() -> None:
    participant = Participant.writing(AT)
    participant.state = replace(participant.state, idle_intervals=4)
    assert asked_after(participant) == 1, "in this transaction nobody has looked yet"
    participant.source_ends({P0: 10, P1: 20})
    assert asked_after(participant) == 4
    participant.source_ends({P0: 11, P1: 20})
    assert asked_after(participant) == 1
    participant.source_ends({P0: 11})
    assert asked_after(participant) == 1, "one partition could not be asked"


def test_each_transaction_begins_with_a_look_whether_or_not_there_was_something_new() -> None:
    """So what was gained is read no later than ever: its position comes with a START."""
    participant = Participant.writing(AT)
    participant.state = replace(participant.state, idle_intervals=4)
    participant.answers(1, {P0: 10, P1: 20})
    participant.start(2, AT, settled_to=participant.next_offset)
    assert asked_after(participant) == 1


@pytest.mark.parametrize("limits", [Limits(commit_records=800), Limits(commit_bytes=800)])
def test_while_a_limit_may_end_the_transaction_early_each_interval_has_its_look(
    limits: Limits,
) -> None:
    participant = Participant()
    participant.state = replace(participant.state, idle_intervals=4)
    participant.owns(P0, P1)
    participant.hears_itself()
    participant.hears(replace(started(1, AT, 1, None), limits=limits), transaction=1)
    participant.source_ends({P0: 10, P1: 20})
    assert asked_after(participant) == 1


def test_a_backlog_is_written_at_once_and_less_waits_for_end() -> None:
    participant = Participant.writing(AT)
    participant.waits(100)
    participant.source_ends({P0: 10 + SETTINGS.batch_records_max - 1})
    assert participant.submitted == []
    participant.waits(100)
    participant.source_ends({P0: 10 + SETTINGS.batch_records_max})

    assert len(participant.submitted) == 1


def paused_by(number: int, *, paused: bool) -> StartCommit:
    return replace(started(number, AT, 1, 0), paused=paused)


def test_a_paused_sink_reads_nothing_and_answers_all_the_same() -> None:
    participant = Participant.writing(AT)
    participant.end(1)
    participant.hears(paused_by(2, paused=True), transaction=2)
    participant.hears_itself()
    participant.waits(1_000)
    assert participant.all(ReadEndOffsets) == []
    participant.end(2)

    assert claimed(participant.status) == {P0: (10, 10), P1: (20, 20)}


def test_a_resumed_one_reads_again() -> None:
    participant = Participant.writing(AT)
    participant.end(1)
    participant.hears(paused_by(2, paused=True), transaction=2)
    participant.hears_itself()
    participant.end(2)
    participant.hears(paused_by(3, paused=False), transaction=3)
    participant.hears_itself()
    participant.waits(SETTINGS.end_offset_interval_ms)

    assert participant.only(ReadEndOffsets).partitions == {P0, P1}


def test_what_a_full_source_shows_is_read_at_once() -> None:
    """It shows no more before something is read: END would be waited for with idle hands."""
    participant = Participant.writing(AT)
    participant.waits(1_000)
    participant.given(EndOffsetsRead({P0: 15}))
    assert participant.submitted == []
    participant.waits(1_000)
    participant.given(EndOffsetsRead({P0: 15}, full=True))

    assert [batch.ranges for batch in participant.submitted] == [{P0: OffsetRange(10, 15)}]


def test_with_too_many_files_nothing_is_read_before_they_are_announced() -> None:
    participant = Participant.writing(AT, settings=replace(SETTINGS, files_max=1))
    many = {P0: 10 + SETTINGS.batch_records_max}
    participant.writes(many)
    participant.waits(1_000)
    participant.source_ends({P0: 10 + 3 * SETTINGS.batch_records_max})
    assert participant.submitted == []

    participant.end(1)
    participant.source_ends({P0: 10 + 3 * SETTINGS.batch_records_max})
    assert participant.submitted == []
    assert claimed(participant.status) == {P0: (10, many[P0]), P1: (20, 20)}
