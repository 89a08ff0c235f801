"""The coordinator's behaviour: ``step(state, input, now) -> (state, actions)``, pure.

The caller executes the actions in order and feeds the results back. Time is monotonic milliseconds.
An event that was appended takes effect when it is *heard*: the log's order is the only order. Rules
C1-C10 of PROTOCOL.md are named where they live: ``epoch_claim`` holds C2 and C3, ``commitment`` C6,
C7, C8 and C10, and this module handles events and timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import FolderElsewhere, HeadgateError, TooManyBadRecords
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    EndCommit,
    Envelope,
    LogRecord,
    Pause,
    Presence,
    PresenceKind,
    Proposal,
    Resume,
    Settlement,
    StartCommit,
    Tables,
    TableSettlement,
    WriteStatus,
)
from headgate.control_protocol.identifiers import (
    LEAP_MAX,
    ControlOffset,
    Sender,
    TopicId,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.machine_io import Heard, LogLine, LogTruncated, Tick
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Refused,
    TableView,
    TopicState,
)
from headgate.coordinator.actions import (
    Action,
    CallFailed,
    CommitAnswered,
    CommitTable,
    DeliveriesAnswered,
    DescribeSecondaries,
    DescribeSources,
    Drafted,
    Input,
    LeadershipGained,
    ReadTable,
    SecondariesRead,
    SourcesDescribed,
    Stopped,
    TableEvolved,
    TableRead,
    TablesChanged,
)
from headgate.coordinator.commit_tokens import issued
from headgate.coordinator.epoch_claim import (
    answered_by,
    claim_epoch,
    requested,
    secondaries_found,
    start,
    table_found,
)
from headgate.coordinator.leadership_release import lacks_answers, released, with_peer
from headgate.coordinator.outgoing_events import (
    Step,
    fixed_set,
    move,
    recover,
    say,
    stop,
    superseded,
    term_of,
    wait,
    with_former_data,
)
from headgate.coordinator.pending_commits import ahead
from headgate.coordinator.pending_delivery import (
    again,
    begin_delivering,
    behind,
    deliveries_answered,
    drafted,
    drafted_for,
    drafts_again,
    expiring,
    failed,
    fences,
    looked,
    looked_at_secondaries,
    paced,
    pending_now,
    prepared,
    primary_read,
    read_for_drafts,
    renews,
    secondaries_read,
    tidied,
    told_expired,
    with_what_is_pending,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import (
    Resolution,
    fitted,
    newest_epoch,
    refuse_shared,
    refuse_too_many,
    resolve,
)
from headgate.coordinator.repeated_refusals import counted, heeded
from headgate.coordinator.schema_changes import (
    changed,
    due,
    evolve,
    evolved,
    heard_tables,
    not_evolved,
    proposed,
)
from headgate.coordinator.secondary_tables import (
    asked_again,
    asking_tables,
    recorded_uuids,
    said,
    unknown_tables,
    with_tables,
)
from headgate.coordinator.secondary_tables import landed as forgot
from headgate.coordinator.settings import TimeoutPolicy
from headgate.coordinator.source_partitions import admitted, held_back, not_read
from headgate.coordinator.state import HeardStatus, Sample, State, Term
from headgate.coordinator.status_validation import (
    STAMPS_KEPT,
    Verdict,
    judge,
    named,
    observed,
    standard,
    starving,
    too_old,
    valid_through,
    with_committed,
)

# Where the sources' logs end, as far as a judgement needs it (C7).
#
# They are described before each END. Participants read on until they answer, so an honest claim may
# end behind that; only then are the sources asked once more.


def ends_of(
    topics: Mapping[str, TopicState], topic_ids: Mapping[str, TopicId]
) -> Mapping[TopicPartition, int]:
    """Return the logs' ends; none for a topic that was created again."""
    return {
        TopicPartition(topic, number): log.end
        for topic, now in topics.items()
        if topic_ids.get(topic) == now.topic_id
        for number, log in now.partitions.items()
    }


def claimed_beyond(state: State) -> bool:
    """Return whether a status that waits for its judgement claims more than the known ends."""
    term = term_of(state)
    return any(
        claim.range.end > term.ends.get(partition, 0)
        for heard in term.statuses
        for partition, claim in heard.status.claims.items()
        if not claim.range.empty
    )


def asking(state: State) -> State:
    """Let the judgement wait for the sources' answer."""
    return replace(state, term=replace(term_of(state), asks_ends=True))


def told(state: State, topics: Mapping[str, TopicState]) -> State:
    """Take in the answer. For a partition that could not be asked, the known end stays."""
    term = term_of(state)
    ends = {**term.ends, **ends_of(topics, term.topic_ids)}
    return replace(state, failures=0, term=replace(term, ends=ends, asks_ends=False))


# From one transaction to the next: what is new in the sources begins with its START (C4).


def end_and_start(state: State, sources: SourcesDescribed, now_ms: int) -> Step:
    """C4: append END(n) with START(n+1) right behind it, which names what is new in the sources."""
    term = term_of(state)
    fit = fitted(term.offsets, term.topic_ids, sources.topics, state.settings)
    state, held = held_back(state, term.offsets, term.topic_ids, sources.topics, now_ms=now_ms)
    ids = {topic: now.topic_id for topic, now in sources.topics.items()}
    refuse_shared(term.view, ids, state.identity.shared_with)
    # a re-created topic whose offsets fit by chance: work on the old one may still arrive
    anew = any(term.topic_ids.get(topic, id_) != id_ for topic, id_ in ids.items())
    if anew or any(fit.get(partition) != offset for partition, offset in term.offsets.items()):
        return recover(state, "a source lost stored offsets: claims again as the policy says")
    state, generations, told = admitted(state, sources.topics)
    fit = fit.restricted(fit.keys() - not_read(state))
    known = {**term.topic_ids, **ids}
    if len(fit) > len(term.offsets):
        refuse_too_many(fit.restricted(p for p in fit if p.topic in sources.topics), known)
    number = TransactionNumber(term.number + 1)
    past = tuple(filter(None, (term.closing_stamp, *term.past_stamps)))
    closing = replace(
        term,
        offsets=fit,
        topic_ids=known,
        number=number,
        ends=ends_of(sources.topics, known),
        issued=issued(term.issued, number, now_ms, state.settings.claim_age_max_ms),
        stamp=sources.stamp,
        closing_stamp=term.stamp,
        past_stamps=past[:STAMPS_KEPT],
        generations=generations,
    )
    topics = frozenset(sources.topics)
    moved = move(state, Phase.CLOSING, term=closing, topics=topics, failures=0)
    return moved, (*held, *told, *say(moved))


# From collected statuses to a settled transaction: judge, commit, settle (C6, C7, C8, C10).


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
        secondaries=recorded_uuids(state),
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
        return refused, (LogLine(told, trouble=True, event=LogEvent.COMMIT_REFUSED), ReadTable())
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


# Ignores events that are repeated, or whose numbers nobody can have counted to (G5, G6).


_GAINS = (PresenceKind.JOINED, PresenceKind.GAINED)

_GAINS_KEPT = 256
"""Repeating an older one makes an END come soon once more, which is harmless."""

_RIVALS_KEPT = 256
"""Repeating an older one's words makes the claim wait for it once more (C9)."""


def said_again(state: State, said: Envelope) -> bool:
    """C5: return whether a gain is a repetition: it would make ENDs come soon for nothing.

    Compared by its very number: a forged higher one hides no gain (G6).
    """
    return gains(said) and (said.sender, said.sequence) in state.gains


def with_gain(state: State, said: Envelope) -> State:
    """Return the state that remembers the gain, if the event is one."""
    if not gains(said):
        return state
    return replace(state, gains=(*state.gains, (said.sender, said.sequence))[-_GAINS_KEPT:])


def gains(said: Envelope) -> bool:
    """Return whether the event reports gained partitions."""
    return isinstance(said.event, Presence) and said.event.kind in _GAINS


def leaps(state: State, said: Envelope) -> bool:
    """G6: return whether the epoch leaps too far: who claimed above it would run out of numbers."""
    if isinstance(said.event, Pause | Resume):
        return False
    return said.epoch > state.table_epoch + LEAP_MAX


def beyond(term: Term, said: Envelope) -> bool:
    """G6: return whether the transaction of this epoch was never opened, or is not ended yet."""
    open_one = isinstance(said.event, StartCommit | Tables)
    newest = term.number if open_one else term.closing
    return said.epoch == term.epoch and said.transaction > newest


def news(state: State, said: Envelope) -> tuple[State, bool]:
    """C9: return whether the event is new; a repetition is no sign that its speaker is alive."""
    if said.sequence <= state.rivals.get(said.sender, -1):
        return state, False
    others = [rival for rival in state.rivals.items() if rival[0] != said.sender]
    rivals = dict([*others, (said.sender, said.sequence)][-_RIVALS_KEPT:])
    return replace(state, rivals=rivals), True


# Decides when a transaction holds enough to be ended before its time (rule C12).


def heard_of(state: State, sender: Sender, presence: Presence) -> State:
    """Record what this participant holds now, where there is a limit."""
    if not (state.settings.commit_records or state.settings.commit_bytes):
        return state
    amounts = (presence.buffered_records, presence.buffered_bytes)
    term = term_of(state)
    return replace(state, term=replace(term, held={**term.held, sender: amounts}))


def enough(state: State) -> bool:
    """Return whether all participants together hold as much as one of the limits."""
    limits = (state.settings.commit_records, state.settings.commit_bytes)
    held = term_of(state).held.values()
    return any(
        limit and sum(amounts[of] for amounts in held) >= limit for of, limit in enumerate(limits)
    )


def step(state: State, given: Input, now_ms: int) -> Step:
    """Process one input. Errors of the kind ``StopSink`` become the action ``Stop``."""
    if state.phase is Phase.STOPPED:
        return state, ()
    try:
        after, actions = _dispatch(state, given, now_ms)
    except HeadgateError as error:
        return stop(state, error)
    if state.term and after.term and state.term.epoch == after.term.epoch:
        term = with_former_data(state.term, after.term)
        after = after if term is after.term else replace(after, term=term)
    return after, actions


def _dispatch(state: State, given: Input, now_ms: int) -> Step:
    match given:
        case Tick():
            return _ticked(state, now_ms)
        case Heard(record):
            return _heard(state, record, now_ms)
        case LeadershipGained():
            return _led(state, now_ms)
        case TableRead(view):
            return _table_read(state, view, now_ms)
        case SecondariesRead() | Drafted() | DeliveriesAnswered():
            return _of_secondaries(state, given, now_ms)
        case SourcesDescribed():
            return _described(state, given, now_ms)
        case CommitAnswered(outcome):
            return answered(state, outcome, now_ms)
        case TableEvolved() | TablesChanged():
            return _changed(state, given, now_ms)
        case CallFailed(reason) if state.phase is not Phase.FOLLOWING:
            return _call_failed(state, reason, now_ms)
        case LogTruncated(reason):
            return _discontinued(state, reason)
        case Stopped(error):
            return stop(state, error)
        case _:
            return state, ()


def _changed(state: State, given: TableEvolved | TablesChanged, now_ms: int) -> Step:
    if isinstance(given, TableEvolved):
        return evolved(state, given.evolved)
    return changed(state, given.tables, now_ms)


def _call_failed(state: State, reason: str, now_ms: int) -> Step:
    if state.phase is Phase.DELIVERING:
        return failed(state, now_ms, reason)
    if state.phase is Phase.EVOLVING and term_of(state).tables is None:
        return not_evolved(state, now_ms, reason)
    return wait(state, now_ms, reason)


def _table_read(state: State, view: TableView, now_ms: int) -> Step:
    if state.phase is Phase.RECOVERING:
        return table_found(state, view)
    if state.phase is Phase.DELIVERING:
        return primary_read(state, view, now_ms)
    if state.attempt:
        return resolved(state, view, now_ms)
    return looked(state, view) if state.term else (state, ())


def _of_secondaries(
    state: State, given: SecondariesRead | Drafted | DeliveriesAnswered, now_ms: int
) -> Step:
    match state.phase, given:
        case Phase.RECOVERING, SecondariesRead() if state.recovery_view:
            return secondaries_found(state, given, now_ms)
        case Phase.PREPARING, SecondariesRead():
            return looked_at_secondaries(state, given, now_ms)
        case Phase.COLLECTING, SecondariesRead() if term_of(state).asks_tables:
            return tables_told(state, given, now_ms)
        case Phase.DRAFTING, SecondariesRead():
            return read_for_drafts(state, given, now_ms)
        case Phase.DRAFTING, Drafted():
            return drafted(state, given, now_ms)
        case Phase.DELIVERING, SecondariesRead():
            return secondaries_read(state, given, now_ms)
        case Phase.DELIVERING, DeliveriesAnswered():
            return deliveries_answered(state, given, now_ms)
        case _:
            return state, ()


# ------------------------------------------------------------------------------------ leadership


def _led(state: State, now_ms: int) -> Step:
    """C9: after being superseded, claim only when the rival has been silent for long enough."""
    if state.phase is not Phase.FOLLOWING:
        return state, ()
    if state.rival_heard_ms is not None and now_ms < state.rival_heard_ms + _silence_ms(state):
        return state, ()
    return recover(state, "leading: reads table and sources")


def _silence_ms(state: State) -> int:
    """Return how long a rival must be silent: a live one speaks once per interval and time-out."""
    settings = state.settings
    return settings.election_timeout_ms + settings.commit_interval_ms + settings.commit_timeout_ms


def _discontinued(state: State, reason: str) -> Step:
    if state.term is None:
        return state, (LogLine(reason, trouble=True, event=LogEvent.CONTROL_TOPIC_UNAVAILABLE),)
    return recover(state, f"{reason}: a new epoch is due")


# ------------------------------------------------------------------------------------------ time


def _ticked(state: State, now_ms: int) -> Step:
    if state.unanswered_since_ms is not None and lacks_answers(state, now_ms):
        return stop(state, released(state, now_ms))
    if state.retry_at_ms is not None:
        return _retry(state, now_ms) if now_ms >= state.retry_at_ms else (state, ())
    match state.phase:
        case Phase.OPEN if due(term_of(state), now_ms):
            return evolve(state)
        case Phase.OPEN if now_ms >= term_of(state).end_due_ms or enough(state):
            return prepared(state, now_ms)
        case Phase.COLLECTING:
            return collected(state, now_ms)
        case Phase.STARTING | Phase.CLOSING | Phase.SETTLING | Phase.EVOLVING:
            # G1: confirmed is not heard; a truncated log may have lost the event
            again_ms = now_ms + state.settings.commit_timeout_ms
            return replace(state, retry_at_ms=again_ms), ()
        case _:
            return state, ()


def _retry(state: State, now_ms: int) -> Step:
    """Retry what failed; a commit's outcome is read from the table, never assumed (C8)."""
    state = replace(state, retry_at_ms=None)
    match state.phase:
        case Phase.RECOVERING | Phase.CLAIMING | Phase.COMMITTING:
            return state, (ReadTable(),)
        case Phase.PREPARING | Phase.COLLECTING:
            return state, (asked_again(state),)
        case Phase.DRAFTING:
            return drafts_again(state, now_ms)
        case Phase.DELIVERING:
            return again(state, now_ms)
        case _:
            return state, say(state)


def _described(state: State, sources: SourcesDescribed, now_ms: int) -> Step:
    if state.phase is Phase.RECOVERING and state.recovery_view:
        return claim_epoch(state, state.recovery_view, sources, now_ms)
    if state.phase is Phase.PREPARING:
        return end_and_start(state, sources, now_ms)
    if state.phase is Phase.COLLECTING and term_of(state).asks_ends:
        return judged(told(state, sources.topics), now_ms)
    return state, ()


# ------------------------------------------------------------------------------ what is heard


def _heard(state: State, record: LogRecord, now_ms: int) -> Step:
    said = record.envelope
    state = with_peer(state, said, now_ms)
    if said_again(state, said) or leaps(state, said):
        return _at(state, record), ()
    state = with_gain(state, said)
    if isinstance(said.event, Pause | Resume):
        return requested(_at(state, record), said, now_ms), ()
    coordinates = isinstance(said.event, StartCommit | EndCommit | Settlement | Tables)
    rival = coordinates and said.sender != state.identity.sender
    if said.epoch > state.highest_epoch:
        state = replace(state, highest_epoch=said.epoch, rivals={})
    if rival and said.epoch == state.highest_epoch:
        state, fresh = news(state, said)
        if fresh and state.term is None and state.rival_heard_ms is not None:
            state = replace(state, rival_heard_ms=now_ms)
    if state.term is None:
        return state, ()
    if said.epoch > state.term.epoch:
        if rival:
            return superseded(state, said.epoch, now_ms)
        return recover(state, f"{said.sender} has seen epoch {said.epoch}: claims a higher epoch")
    if coordinates and not rival and beyond(state.term, said):
        return recover(state, "another process uses its name: claims a new epoch")
    if rival and said.epoch == state.term.epoch:
        # The table lost a claim (re-created while its coordinator slept), or the catalog confirmed
        # one that it never made: neither finds out by itself while it has nothing to commit.
        return recover(state, f"{said.sender} also uses epoch {said.epoch}: claims a higher one")
    return _heard_in_term(_at(state, record), record, now_ms)


def _at(state: State, record: LogRecord) -> State:
    if state.term is None:
        return state
    return replace(state, term=replace(state.term, heard_to=ControlOffset(record.offset + 1)))


def _heard_in_term(state: State, record: LogRecord, now_ms: int) -> Step:
    said, term = record.envelope, term_of(state)
    current = said.epoch == term.epoch
    if current and isinstance(said.event, Presence):
        state = heard_of(state, said.sender, said.event)
    match said.event:
        case WriteStatus() as status if current:
            heard = HeardStatus(record.offset, said.sender, said.transaction, status)
            return _heard_status(state, heard)
        case Proposal() as proposal if current:
            return proposed(state, said, proposal, now_ms), ()
        case Presence(concerns=gained) if gains(said):
            return _heard_gain(state, gained, now_ms)
        case _ if current and said.sender == state.identity.sender:
            return _heard_own(state, record, now_ms)
        case _:
            return state, ()


def _heard_own(state: State, record: LogRecord, now_ms: int) -> Step:
    """Let the event take effect now that it is heard (G1).

    A PAUSE or RESUME heard between the append and the hearing of a START contradicts it: the next
    START, which follows at once, corrects that.
    """
    said, term = record.envelope, term_of(state)
    next_end_ms = now_ms + state.settings.commit_interval_ms
    match state.phase, said.event:
        case Phase.STARTING, StartCommit(paused=paused):
            started = replace(
                term,
                settled_to=term.heard_to,
                statuses=(),
                held={},
                named_by_presence=frozenset(),  # gains before L take their position from here
                end_due_ms=next_end_ms if paused == term.paused else now_ms,
                started=True,
            )
            return _opened(replace(state, term=started), now_ms, tidied(started))
        case Phase.CLOSING, StartCommit(paused=paused) if said.transaction == term.number:
            due_ms = now_ms + state.settings.commit_timeout_ms
            collecting = replace(
                term,
                held={},
                time_out_ms=due_ms,
                end_due_ms=next_end_ms if paused == term.paused else now_ms,
            )
            return move(state, Phase.COLLECTING, term=collecting, failures=0), ()
        case Phase.EVOLVING, Tables() as tables:
            return heard_tables(state, tables, now_ms)
        case Phase.SETTLING, Settlement() if said.transaction == term.closing:
            return _opened(state, now_ms)
        case _:
            return state, ()


def _opened(state: State, now_ms: int, also: tuple[Action, ...] = ()) -> Step:
    """Open the transaction; before it may be ended, secondary tables are delivered to (D7)."""
    if given_up := heeded(state, now_ms):
        state, told = given_up
        also = (*also, *told)
        if state.phase is Phase.RECOVERING:
            return state, also
    if pending_now(state, now_ms):
        delivering, actions = begin_delivering(state, now_ms)
        return delivering, (*also, *actions)
    return move(state, Phase.OPEN, failures=0), also


def _heard_status(state: State, heard: HeardStatus) -> Step:
    """C6: count a status once, by its identity, whatever transaction it answers."""
    term = term_of(state)
    number = heard.status.status_number
    known = any(
        s.sender == heard.sender and s.status.status_number == number for s in term.statuses
    )
    behind = term.judged.get(heard.sender, 0) - number
    if known or 0 <= behind <= LEAP_MAX:  # G6: nobody can have counted further than that
        return state, ()
    awaited = term.awaited | named((heard,))
    held = {sender: amounts for sender, amounts in term.held.items() if sender != heard.sender}
    statuses = (*term.statuses, heard)
    # P9: its owner may have moved the table's data; the look finds out, and the next START says so
    soon = term.look_soon or (heard.status.failure or "").startswith(FolderElsewhere.code)
    heard_it = replace(term, statuses=statuses, awaited=awaited, held=held, look_soon=soon)
    return replace(state, term=heard_it), ()


def _heard_gain(state: State, gained: frozenset[TopicPartition], now_ms: int) -> Step:
    """C5: a gain names its partitions "unknown", and makes END come soon."""
    term = term_of(state)
    soon = min(term.end_due_ms, now_ms + state.settings.rebalance_delay_ms)
    gaining = replace(
        term,
        end_due_ms=soon,
        named_by_presence=term.named_by_presence | gained,
        awaited=term.awaited | gained,
    )
    return replace(state, term=gaining), ()
