"""EPOCH-3, RANGE-1, ANSWER-1, ANSWER-2 and TOKEN-1: epochs, batches, answers to END and to its
repetition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family

from headgate.control_protocol import machine_io
from headgate.control_protocol.events import Presence, StartCommit, WriteStatus
from headgate.control_protocol.ports import BatchFailed, BatchWritten, PartitionResult
from headgate.coordinator import machine
from headgate.coordinator.file_admission import Prefixes
from headgate.participant import batches, heard_coordinator
from headgate.participant import machine as participant
from headgate.participant.state import State

FAMILY = Family()

ENTERED = (participant, "enter_epoch")
ENDED = (participant, "_on_end")


@FAMILY.replaces("EPOCH-3", ENTERED)
def keeps_work(right: Any, state: State, *given: Any) -> State:
    """Work outlives its epoch."""
    after: State = right(state, *given)
    return replace(
        after,
        work=replace(after.work, owned=state.work.owned, files=state.work.files),
        run=replace(after.run, batch=state.run.batch),
    )


@FAMILY.replaces("EPOCH-3", ENTERED)
def keeps_statuses(right: Any, state: State, *given: Any) -> State:
    """Announced statuses outlive their epoch."""
    after: State = right(state, *given)
    return replace(after, said=replace(after.said, pending=state.said.pending))


@FAMILY.replaces("EPOCH-3", (participant, "_on_record"))
def obeys_older(right: Any, state: State, record: Any, now_ms: int) -> Any:
    """Lower epochs are obeyed."""
    said = record.envelope
    if said.epoch < state.term.epoch and not isinstance(said.event, Presence | WriteStatus):
        said = replace(said, epoch=state.term.epoch)
    return right(state, replace(record, envelope=said), now_ms)


@FAMILY.replaces("EPOCH-3", (participant, "_on_coordinator_event"))
def same_epoch_same_coordinator(right: Any, state: State, record: Any, now_ms: int) -> Any:
    """Who speaks for the same epoch is taken for who began it."""
    return right(_taken_for(state, record), record, now_ms)


@FAMILY.replaces("EPOCH-3", (participant, "_on_coordinator_event"), unhealed=True)
def only_first_start_tells(right: Any, state: State, record: Any, now_ms: int) -> Any:
    """Another coordinator of the same epoch is known by its first START only."""
    event = record.envelope.event
    first = isinstance(event, StartCommit) and event.settled_to is None
    return right(state if first else _taken_for(state, record), record, now_ms)


def _taken_for(state: State, record: Any) -> State:
    said = record.envelope
    return (
        replace(state, term=replace(state.term, coordinator=said.sender))
        if said.epoch == state.term.epoch
        else state
    )


@FAMILY.replaces("RANGE-1", (participant, "_on_batch_ended"))
def failed_is_done(right: Any, state: State, outcome: Any, now_ms: int) -> Any:
    """A failed batch's range is claimed, as if nothing had been in it."""
    if isinstance(outcome, BatchFailed) and outcome.fatal is None and state.run.batch:
        results = {p: PartitionResult(r, 0, 0) for p, r in state.run.batch.ranges.items()}
        outcome = BatchWritten(outcome.number, results)
    return right(state, outcome, now_ms)


@FAMILY.replaces("RANGE-1", (participant, "with_batch_written"))
def claims_more_than_its_files(right: Any, state: State, written: Any) -> State:
    """A claim reaches to the end that is known, whatever the files hold."""
    after: State = right(state, written)
    owned = dict(after.work.owned)
    for partition in written.partitions:
        own, end = owned[partition], after.source.ends.get(partition, 0)
        if own.work and own.work.range.end < end:
            longer = replace(own.work.range, end=end)
            owned[partition] = replace(own, work=replace(own.work, range=longer))
    return replace(after, work=replace(after.work, owned=owned))


@FAMILY.replaces("ANSWER-1", ENDED)
def abandons_its_batch(right: Any, state: State, number: Any) -> Any:
    """A batch that runs is given up at END."""
    return right(batches._with_batch_cleared(state, state.run), number)


@FAMILY.replaces("ANSWER-1", (heard_coordinator, "take_work_as_status"))
def silent_about_unknown(right: Any, state: State, number: int) -> Any:
    """Silence instead of unknown."""
    state, status = right(state, number)
    return state, replace(status, unknown=frozenset())


@FAMILY.replaces("ANSWER-1", (participant, "_answer_end"))
def no_answer_without_work(right: Any, state: State) -> Any:
    """Nothing to claim, nothing said."""
    if state.work.has_unannounced_ranges:
        return right(state)
    return participant.with_end_answered_and_next_opened(state), ()


@FAMILY.replaces("ANSWER-1", (participant, "_on_end"))
def who_saw_no_start_is_silent(right: Any, state: State, number: Any) -> Any:
    """Who joined too late for START does not answer END."""
    return right(state, number) if state.term.writing else (state, ())


def _said_again(change: Callable[[State, WriteStatus], tuple[State, WriteStatus]]) -> Any:
    def ended(right: Any, state: State, number: Any) -> Any:
        if number > state.term.answered:
            return right(state, number)
        drafts = []
        for own in state.said.pending:
            state, status = change(state, own.status)
            new = status.status_number != own.status.status_number
            number = state.said.sequence if new else own.said.sequence
            drafts.append(replace(own.said, event=status, sequence=number))
        return state, (machine_io.Append(tuple(drafts)),) if drafts else ()

    return ended


@FAMILY.replaces("ANSWER-2", ENDED)
def empty_again(right: Any, state: State, number: Any) -> Any:
    """A repeated END gets claims without files, which were handed over already."""
    return _said_again(_emptied)(right, state, number)


def _emptied(state: State, status: WriteStatus) -> tuple[State, WriteStatus]:
    claims = {p: replace(claim, records=0) for p, claim in status.written.items()}
    return state, replace(status, written=claims, tables=())


@FAMILY.replaces("ANSWER-2", ENDED)
def rebuilt_again(right: Any, state: State, number: Any) -> Any:
    """A repeated END gets a new status with the same claims and files."""
    return _said_again(_rebuilt)(right, state, number)


def _rebuilt(state: State, status: WriteStatus) -> tuple[State, WriteStatus]:
    number = state.said.status_number + 1
    said = replace(state.said, status_number=number, sequence=state.said.sequence + 1)
    return replace(state, said=said), replace(status, status_number=number)


@FAMILY.replaces("TOKEN-1", (Prefixes, "is_allowed"))
def files_of_any_age(right: Any, self: Prefixes, path: str, upto: Any) -> Any:
    """Files are committed however long ago they were written."""
    return right(replace(self, oldest=1), path, upto)


@FAMILY.replaces("TOKEN-1", (machine, "is_attempt_too_old"))
def commits_of_any_age(right: Any, *given: Any) -> bool:
    """A commit whose outcome stays unknown is tried for ever."""
    return False


@FAMILY.replaces("ANSWER-1", (batches, "_is_empty_but_not_known_idle"))
def unseen_is_idle(right: Any, state: State, partition: Any, claim: Any) -> bool:
    """What nobody could ask for its end is said to be idle."""
    return False


@FAMILY.replaces("BATCH-2", (participant, "stop_once_earlier_records_committed"))
def stops_before_it_is_committed(right: Any, state: State) -> Any:
    """A record stops the sink at once, whatever lies before it."""
    if state.run.stop is None:
        return state, ()
    return replace(state, run=replace(state.run, stop=None)), (
        machine_io.Stop(state.run.stop.error),
    )
