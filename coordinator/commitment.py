"""From collected statuses to a settled transaction: judge, commit, settle (C6, C7, C8, C10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headgate.control_protocol.errors import TooManyBadRecords
from headgate.control_protocol.events import AbortCommit, AckCommit, TableSettlement
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Landed, Refused, TableView
from headgate.control_protocol.record import CommitRecord
from headgate.coordinator.actions import (
    CommitTable,
    DescribeSecondaries,
    DescribeSources,
    ReadTable,
    SecondariesRead,
    Tell,
)
from headgate.coordinator.admission import Verdict, judge, named, with_committed
from headgate.coordinator.claim import start
from headgate.coordinator.delivery import told_expired
from headgate.coordinator.drafting import drafted_for, expiring, fences, with_what_is_pending
from headgate.coordinator.dropped import landed as forgot
from headgate.coordinator.fencing import Resolution, resolve
from headgate.coordinator.log_ends import asking, claimed_beyond
from headgate.coordinator.moves import Step, move, recover, superseded, term_of, wait
from headgate.coordinator.pacing import paced
from headgate.coordinator.pending_commits import ahead
from headgate.coordinator.recovery import newest_epoch
from headgate.coordinator.refreshing import behind
from headgate.coordinator.refusals import counted
from headgate.coordinator.renewal import renews
from headgate.coordinator.requests import answered_by
from headgate.coordinator.routed import asking_tables, remembered, unknown_tables, with_tables
from headgate.coordinator.settings import TimeoutPolicy
from headgate.coordinator.speech import fixed_set, say
from headgate.coordinator.standard import standard, too_old
from headgate.coordinator.starving import starving
from headgate.coordinator.state import HeardStatus, Sample, State
from headgate.coordinator.suspension import said
from headgate.coordinator.transitions import Phase
from headgate.coordinator.watermark import observed, valid_through

_REFUSALS_AT_ONCE = 3
"""Up to this many refusals in a row are retried without a wait: foreign commits are quick."""

_REASON_CHARACTERS_MAX = 1000
_TOO_OLD = "the transaction is so old that its files may have been cleaned up: begins again"


def collected(state: State, now_ms: int) -> Step:
    """C6, C7: judge once every awaited partition is named (a set, no count), or at the time-out."""
    term = term_of(state)
    if term.asks_ends or term.asks_tables:
        return state, ()
    ready = not _unnamed(state)
    if not ready and now_ms < term.time_out_ms:
        return state, ()
    if not ready and state.settings.timeout_policy is TimeoutPolicy.ABORT:
        return _aborted(state)
    if strangers := unknown_tables(state):
        return asking_tables(state), (DescribeSecondaries(strangers),)
    return _asked(state, now_ms)


def tables_told(state: State, given: SecondariesRead, now_ms: int) -> Step:
    """R5: take in the routed tables that were read, as far as they can be.

    A secondary table delivered beyond the primary table's decisions shows a newer coordinator, or a
    primary table that was set back: a claim reads the primary table first, and finds out which.
    """
    if beyond := ahead(given.views, term_of(state).view):
        why = (
            f"{', '.join(sorted(beyond))} was delivered by a later transaction: reads the "
            "primary table again"
        )
        return recover(replace(state, suspects=beyond), why)
    known, tells = with_tables(state, given, now_ms)
    judging, actions = _asked(known, now_ms)
    return judging, (*tells, *actions)


def _asked(state: State, now_ms: int) -> Step:
    if claimed_beyond(state):
        return asking(state), (DescribeSources(),)
    return judged(state, now_ms)


def judged(state: State, now_ms: int) -> Step:
    """C7: judge what was heard."""
    ready = not _unnamed(state)
    verdict = judge(term_of(state).statuses, standard(state, now_ms))
    reason = "" if ready else f"time-out; nothing admissible from {_some(verdict.unsure)}"
    late, told = starving(state, verdict)
    refused = counted(state, verdict, now_ms)
    state = replace(state, refused=refused, term=replace(term_of(state), late=late))
    decided, actions = _decided(state, verdict, reason, now_ms)
    return decided, (*told, *actions)


def _unnamed(state: State) -> frozenset[TopicPartition]:
    """C6: return the partitions not heard of yet, of those that anybody was given to read.

    Where files are stamped, an answer to an earlier END names none (P13): its files cannot be
    admitted, and an END that is ready by it is settled just before its own answer comes, which is
    late in its turn, again and again.
    """
    term = term_of(state)
    counts = term.closing if term.closing_stamp else 0
    answers = (each for each in term.statuses if each.transaction >= counts)
    heard = named(answers) | term.named_by_presence
    return (fixed_set(state) & term.awaited) - heard


def _aborted(state: State) -> Step:
    """Settle under the policy ``abort``: nothing that was heard is admitted."""
    term = term_of(state)
    settlement = AbortCommit(
        settled_to=term.heard_to,
        offsets=term.offsets,
        tables=(TableSettlement(term.view.table, None),),
        valid_through_ms=term.valid_through_ms,
        reason=f"time-out; nothing heard from {_some(_unnamed(state))}",
        suspended=said(term),
    )
    term = replace(
        term,
        judged={**term.judged, **_newest(term.statuses)},
        statuses=(),
        named_by_presence=frozenset(),
        settlement=settlement,
    )
    return settle(replace(state, term=term), None)


def _newest(statuses: Iterable[HeardStatus]) -> Mapping[Sender, int]:
    numbers: dict[Sender, int] = {}
    for heard in statuses:
        number = heard.status.status_number
        numbers[heard.sender] = max(numbers.get(heard.sender, 0), number)
    return numbers


def _some(partitions: frozenset[TopicPartition]) -> str:
    shown = ", ".join(str(partition) for partition in sorted(partitions)[:5])
    return shown + (f" and {len(partitions) - 5} more" if len(partitions) > 5 else "")


def _decided(state: State, verdict: Verdict, reason: str, now_ms: int) -> Step:
    """C7: commit if any range is not empty, with or without rows; otherwise make no snapshot."""
    before = term_of(state)
    sample = _sampled(state, verdict)
    activity = observed(before.activity, verdict.claims, now_ms)
    through = before.valid_through_ms
    if not verdict.unsure:
        through = valid_through(through, activity, now_ms - state.settings.idleness_ms)
    settlement = AckCommit(
        settled_to=before.heard_to,
        offsets=verdict.offsets,
        tables=_settlements(before.view, verdict),
        valid_through_ms=through,
        reason="; ".join(filter(None, (reason, *verdict.refused)))[:_REASON_CHARACTERS_MAX],
        suspended=said(before),
    )
    term = replace(
        before,
        judged={**before.judged, **_newest(before.statuses)},
        statuses=(),
        named_by_presence=frozenset(),
        activity=activity,
        settlement=settlement,
        sample=sample,
    )
    judged = replace(state, term=term)
    if not _worth_committing(judged, verdict, through, now_ms):
        return settle(judged, None)
    record = with_what_is_pending(judged, _record(judged, verdict, through), now_ms)
    attempt = CommitAttempt(term.view, record, verdict.files, forgets=term.forgotten)
    return drafted_for(judged, attempt, verdict, now_ms)


def _sampled(state: State, verdict: Verdict) -> Sample:
    """Q7: judge quiet topics over several transactions. Raises ``TooManyBadRecords``."""
    before = term_of(state).sample
    records = before.records + verdict.read
    sample = Sample(records, before.bad + verdict.bad)
    objection = state.limits.too_many(verdict.bad) or state.limits.too_often(sample.bad, records)
    if objection:
        raise TooManyBadRecords(
            f"{objection}; none of them is committed",
            "look at the quarantine, fix the producer or the table, or raise the limits under "
            "[quarantine]",
        )
    return Sample() if state.limits.sampled(records) else sample


def _worth_committing(state: State, verdict: Verdict, through_ms: int | None, now_ms: int) -> bool:
    term = term_of(state)
    stored = term.view.record
    assert stored is not None
    moved = any(not claim.range.empty for _, claim in verdict.claims)
    expires = bool(expiring(state, now_ms)) or fences(state)
    refreshes = bool(behind(state, through_ms, ()))
    suspends = tuple(term.suspended.values()) != stored.suspended or bool(term.forgotten)
    pauses = stored.paused != term.paused
    return moved or expires or refreshes or suspends or pauses or renews(state, now_ms)


def _record(state: State, verdict: Verdict, through: int | None) -> CommitRecord:
    term = term_of(state)
    stored = term.view.record
    assert stored is not None
    return CommitRecord(
        sink=state.identity.sink,
        group_id=state.identity.group_id,
        transaction=term.closing_id,
        coordinator=state.identity.sender,
        offsets=verdict.offsets,
        topic_ids=term.topic_ids,
        records=verdict.records,
        quarantined=verdict.quarantined,
        skipped=verdict.skipped,
        valid_through_ms=through,
        paused=term.paused,
        control_topic=state.identity.control_topic,
        secondaries=remembered(state),
        routing=state.identity.routing,
        control_topic_id=stored.control_topic_id,
        suspended=tuple(term.suspended.values()),
        generations=term.generations,
    )


def answered(state: State, outcome: CommitOutcome, now_ms: int) -> Step:
    """C8: judge the view that came with "landed" like a read; after any other answer read the
    table.
    """
    if state.attempt is None:
        return state, ()
    if isinstance(outcome, Landed):
        return resolved(state, outcome.view, now_ms)
    if isinstance(outcome, Refused) and outcome.for_good:
        return recover(state, f"commit refused for good: {outcome.reason}")
    if isinstance(outcome, Refused) and state.failures < _REFUSALS_AT_ONCE:
        refused = replace(state, failures=state.failures + 1)
        told = f"commit refused: {outcome.reason}"
        return refused, (Tell(told, trouble=True, event=LogEvent.COMMIT_REFUSED), ReadTable())
    answer = isinstance(outcome, Refused) or outcome.rights
    return wait(state, now_ms, f"commit not confirmed: {outcome.reason}", refused=answer)


def resolved(state: State, view: TableView, now_ms: int) -> Step:
    """Judge the table as read after an attempt, or as returned with the answer that it landed."""
    attempt = state.attempt
    assert attempt is not None
    match resolve(attempt, view):
        case Resolution.LANDED:
            return _landed(state, view, now_ms)
        case Resolution.AGAIN if state.term and too_old(state, attempt, now_ms):
            return recover(state, _TOO_OLD)
        case Resolution.AGAIN:
            again = replace(attempt, base=view)
            return replace(state, attempt=again), (CommitTable(again),)
        case Resolution.SUPERSEDED:
            return superseded(state, newest_epoch((view,)), now_ms)
        case Resolution.RECOVER:
            return recover(state, "the table changed under the commit: begins again")


def _landed(state: State, view: TableView, now_ms: int) -> Step:
    if state.phase is Phase.CLAIMING:
        return start(state, view, now_ms)
    attempt, landed = state.attempt, replace(state, attempt=None)
    term = term_of(landed)
    stored, found = term.view.record, view.record
    assert stored is not None
    assert found is not None
    answered = answered_by(term, before=stored.paused, now=found.paused)
    committed = replace(
        term,
        view=view,
        pending_commits=found.pending_commits,
        committed_at_ms=now_ms,
        overtaken=False,
        pause_answered=answered,
    )
    if attempt:
        files = (*attempt.files, *(file for draft in term.drafts for file in draft.files))
        known = with_committed(standard(landed, now_ms), files)
        committed = forgot(replace(committed, committed=known), attempt.forgets)
    told = told_expired(found, stored)
    landed = replace(landed, term=replace(committed, drafts=()))
    settled, actions = settle(replace(landed, term=paced(landed, now_ms)), view)
    return settled, (*told, *actions)


def settle(state: State, landed: TableView | None) -> Step:
    """C10: settle, only once the outcome is known; C and L move here, and nowhere else."""
    term = term_of(state)
    assert term.settlement is not None
    tables = tuple(_settled_table(t, landed) for t in term.settlement.tables)
    settlement = replace(term.settlement, tables=tables)
    settled = replace(
        term,
        settlement=settlement,
        offsets=settlement.offsets,
        settled_to=settlement.settled_to,
        valid_through_ms=settlement.valid_through_ms,
    )
    moved = move(state, Phase.SETTLING, term=settled)
    return moved, say(moved)


def _settlements(view: TableView, verdict: Verdict) -> tuple[TableSettlement, ...]:
    """Return what to settle; secondary tables are named only in a transaction that brings them
    rows."""
    return (
        TableSettlement(view.table, None, verdict.records),
        *(
            TableSettlement(name, None, sum(file.records for file in files))
            for name, files in verdict.secondary_files.items()
        ),
    )


def _settled_table(table: TableSettlement, landed: TableView | None) -> TableSettlement:
    """Add the snapshot to the primary table; what is pending for secondary tables is in no snapshot
    yet."""
    if landed is None or table.table != landed.table:
        return table
    return replace(table, snapshot_id=landed.tag)
