"""Q1 to Q7: the quarantine, its two calls, and what is left out where it is ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, CommitAttempt, CommitOutcome, Landed
from headgate.control_protocol.testing import FakeBatchWriter
from headgate.coordinator import admission, commitment, machine, speech, standard
from headgate.coordinator.state import Sample, State
from headgate.coordinator.tables import quarantined
from headgate.coordinator.tables.quarantined import QuarantinedTable
from headgate.participant import machine as participant
from headgate.participant import settling, work

FAMILY = Family()

COMMIT = (QuarantinedTable, "commit")
RECORD = (quarantined, "quarantine_record")


@FAMILY.replaces("Q1", COMMIT)
def quarantine_unlocked(right: Any, self: Any, attempt: CommitAttempt) -> CommitOutcome:
    """The quarantine is committed to as it is now: its tag is no lock."""
    now = self._quarantine.read()
    if attempt.record.same_commit(now.record):
        now = attempt.base.quarantine
    return right(self, replace(attempt, base=replace(attempt.base, quarantine=now)))


@FAMILY.replaces("Q2", (machine, "claim"))
def quarantine_unclaimed(right: Any, state: State, view: Any, sources: Any) -> Any:
    """A claim claims the table, and leaves the quarantine to whoever had it."""
    state, (commit,) = right(state, view, sources)
    attempt = replace(state.attempt, quarantined=None)
    return replace(state, attempt=attempt), (replace(commit, attempt=attempt),)


@FAMILY.replaces("Q2", RECORD)
def claim_covers(right: Any, record: Any, quarantine: Any) -> Any:
    """A claim raises the quarantine's offsets to the table's."""
    return replace(right(record, quarantine), offsets=record.offsets, topic_ids=record.topic_ids)


@FAMILY.replaces("Q2", RECORD)
def quarantine_goes_back(right: Any, record: Any, quarantine: Any) -> Any:
    """The quarantine's offsets are the last commit's, also where it read a range again."""
    after = right(record, quarantine)
    return after if record.claim else replace(after, offsets=record.offsets)


@FAMILY.replaces("Q3", COMMIT)
def table_first(right: Any, self: Any, attempt: CommitAttempt) -> CommitOutcome:
    """The table is committed before the quarantine."""
    base = replace(attempt.base, quarantine=None)
    outcome = self._table.commit(replace(attempt, base=base, quarantined=None))
    aside = attempt.base.quarantine
    if not isinstance(outcome, Landed) or aside is None:
        return outcome
    if attempt.quarantined is not None:
        record = quarantined.quarantine_record(attempt.record, aside)
        second = self._quarantine.commit(CommitAttempt(aside, record, attempt.quarantined))
        aside = second.view if isinstance(second, Landed) else self._quarantine.read()
    return replace(outcome, view=replace(outcome.view, quarantine=aside))


@FAMILY.replaces("Q3", COMMIT)
def quarantine_twice(right: Any, self: Any, attempt: CommitAttempt) -> CommitOutcome:
    """That the quarantine has this commit already is not looked at."""
    aside = attempt.base.quarantine
    assert aside is not None
    if attempt.record.same_commit(aside.record):
        other = replace(aside.record, coordinator=replace(aside.record.coordinator, member="x"))
        base = replace(attempt.base, quarantine=replace(aside, record=other))
        attempt = replace(attempt, base=base)
    return right(self, attempt)


@FAMILY.replaces("Q3", COMMIT)
def quarantine_hoped_for(right: Any, self: Any, attempt: CommitAttempt) -> CommitOutcome:
    """The table is committed whatever became of the quarantine."""
    aside = attempt.base.quarantine
    assert aside is not None
    if attempt.quarantined is not None and not attempt.record.same_commit(aside.record):
        record = quarantined.quarantine_record(attempt.record, aside)
        first = self._quarantine.commit(CommitAttempt(aside, record, attempt.quarantined))
        aside = first.view if isinstance(first, Landed) else aside
    base = replace(attempt.base, quarantine=aside)
    return right(self, replace(attempt, base=base, quarantined=None))


@FAMILY.replaces("Q4", (commitment, "judge"))
def judged_apart(right: Any, statuses: Any, by: Any) -> Any:
    """The quarantine's files are in, whatever becomes of the claims that they belong to."""
    verdict = right(statuses, by)
    aside = {
        file.path: file
        for heard in statuses
        for table in heard.status.tables
        if by.quarantine and table.table == by.quarantine.table
        for file in table.files
    }
    return replace(verdict, quarantine_files=tuple(aside.values()))


@FAMILY.replaces("Q4", (work, "_tables"))
def bad_records_unsaid(right: Any, writing: Any, claims: Any, state: Any) -> Any:
    """A status does not name the quarantine's files."""
    return right(writing, claims, state)[:1]


@FAMILY.patches("Q4")
def bad_records_unsaid_and_uncounted() -> tuple[Planted, ...]:
    """A status does not name the quarantine's files, and nobody counts them."""
    tables = work._tables
    return (
        (work, "_tables", lambda *given: tables(*given)[:1]),
        (admission, "_misquarantined", lambda *_: None),
    )


@FAMILY.patches("Q4")
def dropped_without_its_bad_records() -> tuple[Planted, ...]:
    """When work is dropped, the quarantine's files of it stay; nobody counts them."""
    dropped = work.dropped

    def drops(state: Any) -> Any:
        return replace(dropped(state), quarantined=state.quarantined)

    return (
        (admission, "_misquarantined", lambda *_: None),
        (participant, "dropped", drops),
        (settling, "dropped", drops),
    )


@FAMILY.replaces("Q5", (speech, "quarantine_ahead"), (standard, "quarantine_ahead"))
def start_says_nothing_of_it(right: Any, state: State) -> Offsets:
    """START does not say where the quarantine is ahead."""
    return Offsets()


@FAMILY.replaces("Q5", (FakeBatchWriter, "_asked"))
def quarantine_not_asked(right: Any, self: Any, batch: Batch) -> Any:
    """Who reads such a range again does not ask what the quarantine holds of it."""
    return frozenset()


@FAMILY.replaces("Q5", (FakeBatchWriter, "_asked"))
def decided_anew(right: Any, self: Any, batch: Batch) -> Any:
    """What is bad now, below the quarantine's offsets, is taken for what it holds."""
    ahead = batch.quarantine.offsets if batch.quarantine else {}
    return frozenset(
        record
        for at, span in batch.ranges.items()
        if span.begin < ahead.get(at, 0)
        for record in self._source.records(at, OffsetRange(span.begin, ahead[at]))
        if self.bad(record)
    )


@FAMILY.replaces("Q7", (commitment, "_sampled"))
def any_number_of_bad_records(right: Any, state: State, verdict: Any) -> Sample:
    """The coordinator does not count the bad records of a transaction."""
    return Sample()
