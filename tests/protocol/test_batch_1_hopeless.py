"""BATCH-1: what trying again hardly helps is tried a few times in a row, then named."""

from __future__ import annotations

from dataclasses import replace

from protocol.participating import SETTINGS, Participant
from protocol.values import P0, P1, offsets

from headgate.control_protocol.errors import BatchHopeless, BatchStuck, StopSink
from headgate.control_protocol.machine_io import LogLine, Stop
from headgate.control_protocol.ports import BatchFailed
from headgate.participant.inputs_and_actions import BatchEnded
from headgate.participant.state import Timer

AT = offsets(10, 20)
FEW = replace(SETTINGS, batch_attempts_max=3, batch_timeout_ms=60_000)
REASON = "HG-404 batch 1: KeyError: 'x'"


def begun() -> Participant:
    participant = Participant.writing(AT, settings=FEW)
    participant.waits(100)
    participant.source_ends({P0: 110, P1: 25})
    assert participant.state.run.batch is not None
    return participant


def fails(participant: Participant, *, unforeseen: bool) -> None:
    outcome = BatchFailed(participant.batch.number, REASON, unforeseen=unforeseen)
    participant.given(BatchEnded(outcome))


def tries_again(participant: Participant) -> None:
    participant.waits(SETTINGS.retry_backoff_max_ms)
    begins = participant.positions
    participant.source_ends({P0: begins[P0] + 100, P1: begins[P1] + 5})
    assert participant.state.run.batch is not None


def stopped(participant: Participant) -> StopSink | None:
    stops = [action.error for action in participant.actions if isinstance(action, Stop)]
    assert len(stops) <= 1
    found = stops[0] if stops else None
    assert found is None or isinstance(found, StopSink)
    return found


def test_what_no_other_system_is_to_blame_for_ends_the_sink_and_is_named() -> None:
    participant = begun()
    for _ in range(2):
        fails(participant, unforeseen=True)
        assert stopped(participant) is None
        tries_again(participant)
    fails(participant, unforeseen=True)

    error = stopped(participant)
    assert isinstance(error, BatchHopeless)
    assert error.code == "HG-218"
    places = [f"trips partition {n} offsets {begin} to " for n, begin in ((0, 10), (1, 20))]
    for part in (*places, "3 batches", REASON):
        assert part in str(error)


def test_what_others_are_to_blame_for_is_tried_for_ever() -> None:
    participant = begun()
    for _ in range(50):
        fails(participant, unforeseen=False)
        assert stopped(participant) is None
        tries_again(participant)


def test_only_failures_in_a_row_count() -> None:
    participant = begun()
    for _ in range(10):
        fails(participant, unforeseen=True)
        tries_again(participant)
        fails(participant, unforeseen=False)
        tries_again(participant)
        participant.batch_written()
        assert stopped(participant) is None
        tries_again(participant)


def test_a_batch_that_does_not_end_is_given_up_and_done_again() -> None:
    participant = begun()
    first = participant.batch
    participant.waits(59_999)
    assert participant.state.run.batch is first
    participant.waits(1)
    assert participant.state.run.batch is None
    told = [action.text for action in participant.actions if isinstance(action, LogLine)]
    assert len(told) == 1
    assert "HG-219" in told[0]
    tries_again(participant)
    assert participant.batch.ranges == first.ranges
    assert participant.batch.number > first.number

    participant.given(BatchEnded(BatchFailed(first.number, "too late")))
    assert participant.batch.ranges == first.ranges, "an abandoned batch's outcome says nothing"


def test_what_hangs_again_and_again_ends_the_sink_and_is_named() -> None:
    participant = begun()
    for _ in range(2):
        participant.waits(60_000)
        assert stopped(participant) is None
        tries_again(participant)
    participant.waits(60_000)

    error = stopped(participant)
    assert isinstance(error, BatchStuck)
    assert "partition 0 offsets 10 to " in str(error)
    assert "60000 ms, 3 in a row" in str(error)


def test_a_batch_that_hangs_holds_an_answer_up_for_so_long_only() -> None:
    participant = begun()
    participant.end(1)
    participant.waits(59_999)
    assert participant.said == []
    participant.waits(1)
    assert participant.status.unknown == {P0, P1}
    assert "HG-219" in (participant.status.failure or "")


def test_pauses_double_while_another_system_is_to_blame() -> None:
    settings = replace(SETTINGS, retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    participant = Participant.writing(AT, settings=settings)
    pauses = []
    for _ in range(6):
        participant.waits(1_000)
        begins = participant.positions
        participant.source_ends({P0: begins[P0] + 100, P1: begins[P1] + 5})
        now_ms = participant.now_ms
        fails(participant, unforeseen=False)
        pauses.append(participant.state.deadlines[Timer.RETRY] - now_ms)
    assert pauses == [100, 200, 400, 800, 1_000, 1_000]


def test_pauses_begin_anew_once_a_batch_has_ended_well() -> None:
    settings = replace(SETTINGS, retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    participant = Participant.writing(AT, settings=settings)
    pauses = []
    for _ in range(2):
        for _ in range(2):
            participant.waits(1_000)
            begins = participant.positions
            participant.source_ends({P0: begins[P0] + 100, P1: begins[P1] + 5})
            now_ms = participant.now_ms
            fails(participant, unforeseen=False)
            pauses.append(participant.state.deadlines[Timer.RETRY] - now_ms)
        tries_again(participant)
        participant.batch_written()
    assert pauses == [100, 200, 100, 200]
