"""What holds of every state of a participant, whatever it was told.

The comments above the fields of ``participant/state.py`` say it in words. Simulation, exploration
and the tests of the protocol check each state that they bring about; mutants, which break it on
purpose, do so under ``without_checks``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from headgate.participant.schema_proposals import ANSWERS_MAX
from headgate.participant.state import Phase, State, Timer

_checks = [True]


@contextmanager
def without_checks() -> Iterator[None]:
    _checks.append(False)
    try:
        yield
    finally:
        _checks.pop()


def check_step(before: State, after: State) -> State:
    """The state after a step. Raises ``AssertionError`` with what does not hold of it."""
    if after is not before and _checks[-1]:
        broken = [*_faults(before, after), *_faults_between(before, after)]
        assert not broken, f"a participant's state: {'; '.join(broken)}"
    return after


def _faults(before: State, after: State) -> Iterator[str]:
    """What a step left alone was looked at before."""
    term, work = after.term is not before.term, after.work is not before.work
    if term or after.source is not before.source:
        yield from _faults_of_term(after)
    if work:
        yield from _faults_of_work(after)
    if term or work or after.run is not before.run or after.deadlines is not before.deadlines:
        yield from _faults_of_run(after)
    if term or after.said is not before.said or after.needs is not before.needs:
        yield from _faults_of_words(after)


def _faults_of_term(state: State) -> Iterator[str]:
    term, source = state.term, state.source
    if term.answered > term.ended:
        yield "an END was answered that was not heard"
    if term.following and term.ended <= term.answered:
        yield "a START waits, and no END does"
    if term.following and term.writing and term.following.number <= term.writing.number:
        yield "an older START follows"
    if source.last_read_done and state.phase is not Phase.ANSWERING:
        yield "the last read is done, and no END waits for it"
    if source.looked - source.ends.keys():
        yield "an end was seen that is not known"


def _faults_of_work(state: State) -> Iterator[str]:
    work = state.work
    if work.leaving - work.owned.keys():
        yield "a partition leaves that is not owned"
    if work.failed - work.owned.keys():
        yield "a partition failed that is not owned"
    if not work.has_unannounced_ranges and (work.unannounced_file_count or work.troubles):
        yield "files or troubles without a claim that they belong to"
    if bool(work.failed) != (work.failure is not None):
        yield "a failure without partitions, or the other way round"


def _faults_of_run(state: State) -> Iterator[str]:
    run, owned = state.run, state.work.owned
    if (run.batch is None) == (Timer.BATCH in state.deadlines):
        yield "a batch without a deadline, or the other way round"
    if run.batch is None:
        return
    if run.batch.number != run.number or run.batch.transaction.epoch != state.term.epoch:
        yield "a batch of another number or epoch runs"
    for at, span in run.batch.ranges.items():
        own = owned[at].work if at in owned else None
        if own is None or own.range.end != span.begin:
            yield f"the batch does not begin at the position of {at}"


def _faults_of_words(state: State) -> Iterator[str]:
    said, needs = state.said, state.needs
    numbers = [own.status.status_number for own in said.pending]
    places = [own.offset for own in said.pending if own.offset is not None]
    if any(one >= other for one, other in pairwise([*numbers, said.status_number + 1])):
        yield "own statuses are out of order"
    if any(one >= other for one, other in pairwise(places)):
        yield "own statuses were heard out of order"
    if any(place < state.term.settled_to for place in places):
        yield "a status is pending that was settled"
    if any(own.said.epoch != state.term.epoch for own in said.pending):
        yield "a status of another epoch is pending"
    if any(each.sequence > said.sequence for each in said.unheard):
        yield "an own event has a higher sequence than any that was given"
    if len({need.proposal.table for need in needs.open}) != len(needs.open):
        yield "two proposals for one table"
    if any(need.proposal.number > needs.number for need in needs.open):
        yield "a proposal has a higher number than any that was given"
    if len(needs.answers) > ANSWERS_MAX:
        yield "too many answers are remembered"


def _faults_between(before: State, after: State) -> Iterator[str]:
    old, new = before.term, after.term
    same = (old.epoch, old.coordinator) == (new.epoch, new.coordinator)
    # A log that lost its end makes L void as well; what was announced is forgotten with it.
    if same and after.said.pending and new.settled_to < old.settled_to:
        yield "L fell within an epoch"
    if after.said.status_number < before.said.status_number:
        yield "a status number is used again"
    if after.said.sequence < before.said.sequence:
        yield "a sequence is used again"
    if after.needs.number < before.needs.number:
        yield "a proposal's number is used again"
