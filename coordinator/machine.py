"""Decides what the coordinator does: ``step(state, input, now) -> (state, actions)``, pure.

The caller executes the actions in order and feeds the results back. Time is monotonic milliseconds.
An event that was appended takes effect when it is *heard*: the log's order is the only order.

The handlers of a single table's inputs stand here, in the order of a transaction: leadership, time,
what is heard, END with the next START, and from collected statuses to a settled transaction. What a
commit of one table needs besides is in ``table_checks`` (what others did to the table),
``status_validation`` (which statuses count), ``recovery`` (what the table and the sources say),
``file_admission`` (which files may come) and ``phase_steps`` (what is appended).
``epoch_claim`` leads from leadership to the first START. What serves secondary tables, keys and
columns is asked only where there are any: ``secondary_delivery``, ``secondary_pending_commits``,
``table_suspension``, ``added_partitions``, ``schema_changes``, ``repeated_refusals``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.errors import (
    FolderElsewhere,
    HeadgateError,
    LeadershipReleased,
    TooManyBadRecords,
)
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    BufferedAmounts,
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
    Sender,
    TopicId,
    TopicPartition,
)
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import Heard, LogLine, LogTruncated, Tick
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Refused,
    TableView,
    TopicState,
)
from headgate.coordinator.added_partitions import (
    admit_due_partitions,
    held_partitions,
    hold_added_partitions,
    without_new_topics_of_unknown_size,
)
from headgate.coordinator.epoch_claim import (
    begin_epoch,
    on_look_before_claim,
    on_operator_request,
    on_primary_read_before_claim,
)
from headgate.coordinator.inputs_and_actions import (
    Action,
    CallFailed,
    CommitAnswered,
    CommitTable,
    DeliveriesAnswered,
    Input,
    LeadershipGained,
    Look,
    Looked,
    ManifestsStaged,
    SecondariesRead,
    SourcesDescribed,
    Stopped,
    TableEvolved,
    TablesChanged,
)
from headgate.coordinator.phase_steps import (
    Step,
    append_actions_of_phase,
    ask_look,
    enter_phase,
    leader_unanswered_max_ms,
    partitions_of_newest_start,
    recover_from_table,
    should_release_leadership,
    step_down,
    stop_sink,
    suspension_reasons,
    term_of,
    wait_and_retry,
    with_described_topics,
    with_former_data_roots,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import (
    Resolution,
    fit_offsets_to_sources,
    judge_attempt,
    newest_epoch,
    require_record_not_too_large,
    require_sources_fit_in_start,
    require_sources_unshared,
)
from headgate.coordinator.repeated_refusals import (
    act_on_repeated_refusals,
    with_repeated_refusals_counted,
)
from headgate.coordinator.schema_changes import (
    ask_for_table_changes,
    must_end_come_first,
    on_proposal,
    on_table_evolved,
    on_tables_changed,
    on_tables_event,
    wait_and_retry_table_changes,
)
from headgate.coordinator.secondary_delivery import (
    actions_to_tidy_staged_manifests,
    begin_delivering,
    commits_due_for_delivery,
    find_expiring_commits,
    has_unfenced_expired_commit,
    newly_expired_log_lines,
    on_deliveries_answered,
    on_delivery_call_failed,
    on_read_for_staging,
    on_secondaries_read,
    on_staged,
    record_with_pending_and_expired,
    recover_unless_primary_as_decided,
    reread_before_restaging,
    retry_delivery,
    stage_or_commit,
    tables_behind_in_valid_through,
    term_with_lingering_commits,
)
from headgate.coordinator.secondary_pending_commits import find_secondaries_ahead
from headgate.coordinator.settings import TimeoutPolicy
from headgate.coordinator.state import (
    OVERDUE,
    HeardStatus,
    ReplayWindow,
    Sample,
    State,
    Term,
    Timer,
)
from headgate.coordinator.status_validation import (
    ValidationResult,
    activity_with_ranges,
    admission_criteria,
    always_late_log_lines,
    is_attempt_too_old,
    merge_committed_paths,
    partitions_named_by_statuses,
    valid_through_of_partitions,
    validate_statuses,
)
from headgate.coordinator.table_checks import (
    is_tag_renewal_due,
    look_before_end,
    note_primary_changes_by_others,
    on_look_at_secondaries,
    with_resume_requests_added,
)
from headgate.coordinator.table_suspension import (
    resuming_tables_needing_empty_commit,
    secondary_uuids_for_record,
    suspend_or_take_in_read_tables,
    tables_to_read_before_validation,
    with_forgetting_done,
)


def step(state: State, given: Input, now_ms: int) -> Step:
    """Process one input. Errors of the kind ``StopSink`` become the action ``Stop``."""
    if state.phase is Phase.STOPPED:
        return state, ()
    try:
        after, actions = _dispatch(state, given, now_ms)
    except HeadgateError as error:
        return stop_sink(state, error)
    if state.term and after.term and state.term.epoch == after.term.epoch:
        term = with_former_data_roots(state.term, after.term)
        after = after if term is after.term else replace(after, term=term)
    return after, actions


def _dispatch(state: State, given: Input, now_ms: int) -> Step:
    match given:
        case Tick():
            return _on_tick(state, now_ms)
        case Heard(record):
            return _on_record(state, record, now_ms)
        case LeadershipGained():
            return _on_leadership_gained(state, now_ms)
        case Looked():
            return _on_looked(state, given, now_ms)
        case ManifestsStaged() if state.phase is Phase.DRAFTING:
            return on_staged(state, given, now_ms)
        case DeliveriesAnswered() if state.phase is Phase.DELIVERING:
            return on_deliveries_answered(state, given, now_ms)
        case CommitAnswered(outcome):
            return on_commit_answer(state, outcome, now_ms)
        case TableEvolved() | TablesChanged():
            return _on_tables_changed(state, given, now_ms)
        case CallFailed(reason) if state.phase is not Phase.FOLLOWING:
            return _on_call_failed(state, reason, now_ms)
        case LogTruncated(reason):
            return _on_log_truncated(state, reason)
        case Stopped(error):
            return stop_sink(state, error)
        case _:
            return state, ()


def _on_tables_changed(state: State, given: TableEvolved | TablesChanged, now_ms: int) -> Step:
    if isinstance(given, TableEvolved):
        return on_table_evolved(state, given.evolved)
    return on_tables_changed(state, given.tables, now_ms)


def _on_call_failed(state: State, reason: str, now_ms: int) -> Step:
    if state.phase is Phase.DELIVERING:
        return on_delivery_call_failed(state, now_ms, reason)
    if state.phase is Phase.EVOLVING and term_of(state).changes.tables is None:
        return wait_and_retry_table_changes(state, now_ms, reason)
    return wait_and_retry(state, now_ms, reason)


def _on_looked(state: State, found: Looked, now_ms: int) -> Step:
    """Take in the answer to the question of this phase; nobody waits for another one."""
    if state.call.asked is None:
        return state, ()
    state = replace(state, call=state.call.with_question_answered())
    match state.phase, found:
        case Phase.RECOVERING, Looked(primary=TableView() as view):
            return on_primary_read_before_claim(state, view)
        case Phase.RECOVERING, _:
            return on_look_before_claim(state, found, now_ms)
        case Phase.PREPARING, _:
            return _on_look_before_end(state, found, now_ms)
        case Phase.COLLECTING, _:
            return on_look_before_validation(state, found, now_ms)
        case Phase.DRAFTING, Looked(secondaries=SecondariesRead() as secondaries):
            return on_read_for_staging(state, secondaries, now_ms)
        case Phase.DELIVERING, _:
            return _on_look_while_delivering(state, found, now_ms)
        case _, Looked(primary=TableView() as view) if state.call.attempt:
            return on_read_after_attempt(state, view, now_ms)
        case _:
            return state, ()


def _on_look_while_delivering(state: State, found: Looked, now_ms: int) -> Step:
    if found.primary is not None:
        state, actions = recover_unless_primary_as_decided(state, found.primary, now_ms)
        if state.phase is not Phase.DELIVERING:
            return state, actions
    return on_secondaries_read(state, found.secondaries or SecondariesRead({}), now_ms)


# ------------------------------------------------------------------------------------ leadership


def _on_leadership_gained(state: State, now_ms: int) -> Step:
    """EPOCH-4: after being superseded, claim only after a fixed wait."""
    if state.phase is not Phase.FOLLOWING:
        return state, ()
    since_ms = state.watch.superseded_ms
    if since_ms is not None and now_ms < since_ms + _superseded_wait_ms(state):
        return state, ()
    return recover_from_table(state, "leading: reads table and sources")


def _superseded_wait_ms(state: State) -> int:
    """Return how long others lead at least: by then a live one has finished a transaction."""
    settings = state.settings
    return settings.election_timeout_ms + settings.commit_interval_ms + settings.commit_timeout_ms


def _on_log_truncated(state: State, reason: str) -> Step:
    """LOG-3: what was said may be lost, so begin a new epoch."""
    if state.term is None:
        return state, (LogLine(reason, trouble=True, event=LogEvent.CONTROL_TOPIC_UNAVAILABLE),)
    return recover_from_table(state, f"{reason}: a new epoch is due")


# ------------------------------------------------------------------------------------------ time


def _on_tick(state: State, now_ms: int) -> Step:
    if state.call.unanswered_since_ms is not None and should_release_leadership(state, now_ms):
        return stop_sink(state, leadership_released_error(state, now_ms))
    if Timer.RETRY in state.deadlines:
        return (
            _retry_call_or_append(state, now_ms)
            if state.is_due(Timer.RETRY, now_ms)
            else (state, ())
        )
    match state.phase:
        case Phase.OPEN if state.is_due(Timer.CHANGES, now_ms) and not must_end_come_first(
            state, now_ms
        ):
            return ask_for_table_changes(state)
        case Phase.OPEN if state.is_due(Timer.END, now_ms) or is_size_limit_reached(state):
            return look_before_end(state, now_ms)
        case Phase.COLLECTING:
            return decide_when_ready(state, now_ms)
        case Phase.STARTING | Phase.CLOSING | Phase.SETTLING | Phase.EVOLVING:
            # LOG-1: confirmed is not heard; a truncated log may have lost the event
            again_ms = now_ms + state.settings.commit_timeout_ms
            return state.with_deadline(Timer.RETRY, again_ms), ()
        case _:
            return state, ()


def _retry_call_or_append(state: State, now_ms: int) -> Step:
    """Retry what failed; a commit's outcome is read from the table, never assumed (OUTCOME-2)."""
    state = state.with_deadline(Timer.RETRY, None)
    match state.phase:
        case Phase.RECOVERING | Phase.CLAIMING | Phase.COMMITTING:
            return ask_look(state, Look(primary=True))
        case Phase.PREPARING if state.call.asked is not None:
            return ask_look(state, with_resume_requests_added(state, state.call.asked))
        case Phase.COLLECTING:
            # statuses that came meanwhile may name other tables
            repeated = replace(state, call=state.call.with_question_answered())
            return decide_when_ready(repeated, now_ms)
        case Phase.DRAFTING:
            return reread_before_restaging(state, now_ms)
        case Phase.DELIVERING:
            return retry_delivery(state, now_ms)
        case _:
            return state, append_actions_of_phase(state)


# ------------------------------------------------------------------------------ what is heard


def _on_record(state: State, record: LogRecord, now_ms: int) -> Step:
    said = record.envelope
    # This order is the rule. A repetition first: it says nothing new of epochs either. Then an
    # epoch that nobody can have counted to, before it is remembered as the highest. Only then who
    # leads: a higher epoch ends this term before its event could count in it.
    if isinstance(said.event, Presence | WriteStatus | Proposal):
        if is_repeated_event(state, said):
            return _with_heard_offset(state, record), ()
        state = with_possible_successor_heard(with_sequence_number_heard(state, said), said, now_ms)
    if is_epoch_too_far(state, said):
        return _with_heard_offset(state, record), ()
    if isinstance(said.event, Pause | Resume):
        return on_operator_request(_with_heard_offset(state, record), said, now_ms), ()
    coordinates = isinstance(said.event, StartCommit | EndCommit | Settlement | Tables)
    rival = coordinates and said.sender != state.identity.sender
    if said.epoch > state.watch.highest_epoch:
        state = replace(state, watch=state.watch.with_heard_epoch(said.epoch))
    if state.term is None:
        return state, ()
    if said.epoch > state.term.epoch:
        if rival:
            return step_down(state, said.epoch, now_ms)
        return recover_from_table(
            state, f"{said.sender} has seen epoch {said.epoch}: claims a higher epoch"
        )
    if coordinates and not rival and is_future_transaction(state.term, said):
        return recover_from_table(state, "another process uses its name: claims a new epoch")
    if rival and said.epoch == state.term.epoch:
        # The table lost a claim (re-created while its coordinator slept), or the catalog confirmed
        # one that it never made: neither finds out by itself while it has nothing to commit.
        return recover_from_table(
            state, f"{said.sender} also uses epoch {said.epoch}: claims a higher one"
        )
    return _on_record_in_term(_with_heard_offset(state, record), record, now_ms)


def _with_heard_offset(state: State, record: LogRecord) -> State:
    if state.term is None:
        return state
    progress = state.term.progress.with_heard_offset(record.offset)
    return replace(state, term=replace(state.term, progress=progress))


def _on_record_in_term(state: State, record: LogRecord, now_ms: int) -> Step:
    said, term = record.envelope, term_of(state)
    current = said.epoch == term.epoch
    if current and isinstance(said.event, Presence):
        state = with_buffered_amounts(state, said.sender, said.event)
    match said.event:
        case WriteStatus() as status if current:
            heard = HeardStatus(record.offset, said.sender, said.transaction, status)
            return _on_status(state, heard)
        case Proposal() as proposal if current:
            return on_proposal(state, said, proposal, now_ms), ()
        case Presence(concerns=gained) if is_gain(said):
            return _on_gain(state, gained, now_ms)
        case _ if current and said.sender == state.identity.sender:
            return _on_own_event(state, record, now_ms)
        case _:
            return state, ()


def _on_own_event(state: State, record: LogRecord, now_ms: int) -> Step:
    """Let the event take effect now that it is heard (LOG-1).

    A PAUSE or RESUME heard between the append and the hearing of a START contradicts it: the next
    START, which follows at once, corrects that.
    """
    said, term = record.envelope, term_of(state)
    next_end_ms = now_ms + state.settings.commit_interval_ms
    match state.phase, said.event:
        case Phase.STARTING, StartCommit(paused=paused):
            # Sinks that begin together, as after an outage, would ask their catalog together.
            interval_ms = state.settings.commit_interval_ms
            next_end_ms = now_ms + round(state.identity.first_interval * interval_ms)
            started = replace(
                term,
                progress=term.progress.with_settled_to_first_start(),
                collection=term.collection.without_heard_before_first_start(),
            )
            state = state.with_deadline(
                Timer.END, next_end_ms if paused == term.pause.paused else now_ms
            )
            tidying = (
                actions_to_tidy_staged_manifests(started) if started.delivery.secondaries else ()
            )
            return _open_transaction_or_deliver(replace(state, term=started), now_ms, tidying)
        case Phase.CLOSING, StartCommit(paused=paused) if said.transaction == term.progress.number:
            state = state.with_deadline(
                Timer.END, next_end_ms if paused == term.pause.paused else now_ms
            ).with_deadline(Timer.TIME_OUT, now_ms + state.settings.commit_timeout_ms)
            collecting = replace(term, collection=term.collection.without_buffered_amounts())
            return enter_phase(state, Phase.COLLECTING, term=collecting, failures=0), ()
        case Phase.EVOLVING, Tables() as tables:
            return on_tables_event(state, tables, now_ms)
        case Phase.SETTLING, Settlement() if said.transaction == term.previous_transaction_number:
            return _open_transaction_or_deliver(state, now_ms)
        case _:
            return state, ()


def _open_transaction_or_deliver(state: State, now_ms: int, also: tuple[Action, ...] = ()) -> Step:
    """Open the transaction; before it may be ended, secondary tables are delivered to
    (PENDING-7)."""
    if state.refused and (given_up := act_on_repeated_refusals(state, now_ms)):
        state, told = given_up
        also = (*also, *told)
        if state.phase is Phase.RECOVERING:
            return state, also
    if term_of(state).delivery.pending and commits_due_for_delivery(state, now_ms):
        delivering, actions = begin_delivering(state, now_ms)
        return delivering, (*also, *actions)
    return enter_phase(state, Phase.OPEN, failures=0), also


def _on_status(state: State, heard: HeardStatus) -> Step:
    """COMMIT-3: count a status, whatever transaction it answers."""
    term = term_of(state)
    # TOKEN-1: its owner may have moved the table's data; the look finds out, and the next START
    # says so
    if (heard.status.failure or "").startswith(FolderElsewhere.code):
        state = state.with_deadline(Timer.LOOK, OVERDUE)
    heard_it = replace(
        term,
        collection=term.collection.with_status(heard, partitions_named_by_statuses((heard,))),
    )
    return replace(state, term=heard_it), ()


def _on_gain(state: State, gained: frozenset[TopicPartition], now_ms: int) -> Step:
    """COMMIT-2: a gain names its partitions "unknown", and makes END come soon."""
    term = term_of(state)
    state = state.with_end_due_by(now_ms + state.settings.rebalance_delay_ms)
    gaining = replace(term, collection=term.collection.with_gain(gained))
    return replace(state, term=gaining), ()


# From one transaction to the next: what is new in the sources begins with its START (COMMIT-1).


def _on_look_before_end(state: State, found: Looked, now_ms: int) -> Step:
    """Take in what was looked at for an END, and say it."""
    tells: tuple[Action, ...] = ()
    if found.primary is not None:
        state = note_primary_changes_by_others(state, found.primary)
    if found.secondaries is not None:
        state, tells = on_look_at_secondaries(state, found.secondaries, now_ms)
    assert found.sources is not None
    if found.primary is None and found.sources.topics.keys() - term_of(state).sources.topic_ids:
        # TABLE-5: another sink may have begun on a new topic since the table was read
        asking, actions = ask_look(state, Look(primary=True, sources=True))
        return asking, (*tells, *actions)
    ended, actions = append_end_and_start(state, found.sources, now_ms)
    return ended, (*tells, *actions)


def append_end_and_start(state: State, sources: SourcesDescribed, now_ms: int) -> Step:
    """COMMIT-1: append END(n) with START(n+1) right behind it, which names what is new in the
    sources."""
    term = term_of(state)
    fit = fit_offsets_to_sources(
        term.progress.offsets, term.sources.topic_ids, sources.topics, state.settings
    )
    held: tuple[LogLine, ...] = ()
    if state.identity.may_have_keyed_tables:
        known = term.progress.offsets, term.sources.topic_ids
        state, held = hold_added_partitions(state, *known, sources.topics, now_ms=now_ms)
        fit, late = without_new_topics_of_unknown_size(state, fit, *known, topics=sources.topics)
        held += late
    ids = {topic: now.topic_id for topic, now in sources.topics.items()}
    require_sources_unshared(term.primary.view, ids, state.identity.shared_with)
    # A topic that was created again looks like the old one where its offsets fit by chance: only
    # the id tells. Work on the old one may still arrive: it would be rows of the new one.
    anew = any(term.sources.topic_ids.get(topic, id_) != id_ for topic, id_ in ids.items())
    if anew or any(
        fit.get(partition) != offset for partition, offset in term.progress.offsets.items()
    ):
        return recover_from_table(
            state, "a source lost stored offsets: claims again as the policy says"
        )
    cohorts, told = term.sources.cohorts, tuple[LogLine, ...]()
    if state.held:
        state, cohorts, told = admit_due_partitions(state, sources.topics)
        fit = fit.restricted_to(fit.keys() - held_partitions(state))
    all_ids = {**term.sources.topic_ids, **ids}
    if len(fit) > len(term.progress.offsets):
        require_sources_fit_in_start(
            fit.restricted_to(p for p in fit if p.topic in sources.topics), all_ids
        )
        stored = term.primary.view.record
        assert stored is not None
        # START need not name what is gone, as the next commit does
        require_record_not_too_large(stored.with_offsets(fit, all_ids))
    progress = term.progress.with_next_transaction(fit)
    age_max_ms = state.settings.claim_age_max_ms
    described_ends = term.sources.with_known_ends(source_ends_of(sources.topics, all_ids))
    closing = replace(
        term,
        progress=progress,
        sources=replace(described_ends, topic_ids=all_ids, cohorts=cohorts),
        tokens=term.tokens.with_start(progress.number, sources.stamp, now_ms, age_max_ms),
    )
    described = with_described_topics(state, sources.topics)
    moved = enter_phase(described, Phase.CLOSING, term=closing, failures=0)
    return moved, (*held, *told, *append_actions_of_phase(moved))


# From collected statuses to a settled transaction: judge, commit, settle (COMMIT-3, RANGE-2,
# OUTCOME-2, COMMIT-4).


_REFUSALS_AT_ONCE = 3
"""Up to this many refusals in a row are retried without a wait: foreign commits are quick."""

_REASON_CHARACTERS_MAX = 1000
_TOO_OLD = "the transaction is so old that its files may have been cleaned up: begins again"


def decide_when_ready(state: State, now_ms: int) -> Step:
    """COMMIT-3, RANGE-2: judge once every awaited partition is named (a set, no count), or at the
    time-out."""
    if state.call.asked is not None:
        return state, ()
    ready = not _unheard_partitions(state)
    if not ready and not state.is_due(Timer.TIME_OUT, now_ms):
        return state, ()
    if not ready and state.settings.timeout_policy is TimeoutPolicy.ABORT:
        return _abort_transaction(state)
    strangers = tables_to_read_before_validation(state) if state.identity.routed else ()
    beyond = has_ranges_beyond_ends(state)
    if strangers or beyond:
        return ask_look(state, Look(tables=strangers, sources=beyond))
    return decide_by_heard_statuses(state, now_ms)


def on_look_before_validation(state: State, found: Looked, now_ms: int) -> Step:
    """LEDGER-1, RANGE-2: judge with the routed tables, and the logs' ends, as they are now.

    A secondary table beyond the primary table's decisions shows a newer coordinator, or a
    primary table that was set back: a claim reads the primary table first, and finds out which.
    """
    tells: tuple[Action, ...] = ()
    if given := found.secondaries:
        if beyond := find_secondaries_ahead(given.views, term_of(state).primary.view):
            why = (
                f"{', '.join(sorted(beyond))} was delivered by a later transaction: reads the "
                "primary table again"
            )
            return recover_from_table(
                replace(state, suspicion=state.suspicion.with_secondaries_ahead(beyond)), why
            )
        state, tells = suspend_or_take_in_read_tables(state, given, now_ms)
    if found.sources is not None:
        state = with_source_ends(state, found.sources.topics)
    judged, actions = decide_by_heard_statuses(state, now_ms)
    return judged, (*tells, *actions)


def decide_by_heard_statuses(state: State, now_ms: int) -> Step:
    """RANGE-2: judge what was heard."""
    ready = not _unheard_partitions(state)
    verdict = validate_statuses(
        term_of(state).collection.statuses, admission_criteria(state, now_ms)
    )
    reason = (
        ""
        if ready
        else f"time-out; nothing admissible from {_describe_some_partitions(verdict.unsure)}"
    )
    tokens = term_of(state).tokens.with_stale_counted(verdict.heeded, verdict.stale)
    told = always_late_log_lines(state.settings, tokens, verdict.stale - verdict.heeded)
    if verdict.refusals or state.refused:
        state = with_repeated_refusals_counted(state, verdict, now_ms)
    state = replace(state, term=replace(term_of(state), tokens=tokens))
    decided, actions = _decide_transaction(state, verdict, reason, now_ms)
    return decided, (*told, *actions)


def _unheard_partitions(state: State) -> frozenset[TopicPartition]:
    """COMMIT-3: return the partitions not heard of yet, of those that anybody was given to read.

    Where files are stamped, an answer to an earlier END names none (TOKEN-2): its files cannot be
    admitted, and an END that is ready by it is settled just before its own answer comes, which is
    stale in its turn, again and again.
    """
    term = term_of(state)
    counts = term.previous_transaction_number if term.tokens.marks[1:] else 0
    answers = (each for each in term.collection.statuses if each.transaction >= counts)
    heard = partitions_named_by_statuses(answers) | term.collection.named_by_presence
    # Partitions, never a count of participants: one that left may have been heard, and the one that
    # took over its partitions not yet.
    return (partitions_of_newest_start(state) & term.collection.awaited) - heard


def _abort_transaction(state: State) -> Step:
    """Settle under the policy ``abort``: nothing that was heard is admitted."""
    term = term_of(state)
    silent = _describe_some_partitions(_unheard_partitions(state))
    settlement = AbortCommit(
        settled_to=term.progress.heard_to,
        offsets=term.progress.offsets,
        tables=(TableSettlement(term.primary.view.table, None),),
        valid_through_ms=term.progress.valid_through_ms,
        reason=f"time-out; nothing heard from {silent}",
        suspended=suspension_reasons(term),
    )
    term = replace(
        term,
        collection=term.collection.without_judged(),
        progress=term.progress.with_settlement_prepared(settlement, term.progress.activity),
    )
    return settle_transaction(replace(state, term=term), None)


def _describe_some_partitions(partitions: frozenset[TopicPartition]) -> str:
    shown = ", ".join(str(partition) for partition in sorted(partitions)[:5])
    return shown + (f" and {len(partitions) - 5} more" if len(partitions) > 5 else "")


def _decide_transaction(state: State, verdict: ValidationResult, reason: str, now_ms: int) -> Step:
    """RANGE-2: commit if any range is not empty, with or without rows; otherwise make no
    snapshot."""
    before = term_of(state)
    sample = _updated_bad_record_sample(state, verdict)
    activity = activity_with_ranges(before.progress.activity, verdict.ranges, now_ms)
    through = before.progress.valid_through_ms
    if not verdict.unsure:
        through = valid_through_of_partitions(
            through, activity, now_ms - state.settings.idleness_ms
        )
    settlement = AckCommit(
        settled_to=before.progress.heard_to,
        offsets=verdict.offsets,
        tables=_table_settlements(before.primary.view, verdict),
        valid_through_ms=through,
        reason="; ".join(filter(None, (reason, *verdict.refusal_texts)))[:_REASON_CHARACTERS_MAX],
        suspended=suspension_reasons(before),
    )
    term = replace(
        before,
        collection=before.collection.without_judged(sample),
        progress=before.progress.with_settlement_prepared(settlement, activity),
    )
    judged = replace(state, term=term)
    if not _is_worth_a_commit(judged, verdict, through, now_ms):
        return settle_transaction(judged, None)
    record = record_with_pending_and_expired(
        judged, _build_commit_record(judged, verdict, through), now_ms
    )
    attempt = CommitAttempt(
        term.primary.view, record, verdict.files, forgets=term.suspensions.forgotten
    )
    return stage_or_commit(judged, attempt, verdict, now_ms)


def _updated_bad_record_sample(state: State, verdict: ValidationResult) -> Sample:
    """QUARANTINE-5: judge quiet topics over several transactions. Raises ``TooManyBadRecords``."""
    before = term_of(state).collection.sample
    records = before.records + verdict.read_record_count
    sample = Sample(records, before.bad + verdict.bad_record_count)
    objection = state.limits.reason_if_too_many(
        verdict.bad_record_count
    ) or state.limits.reason_if_too_often(sample.bad, records)
    if objection:
        raise TooManyBadRecords(
            f"{objection}; none of them is committed",
            "look at the quarantine, fix the producer or the table, or raise the limits under "
            "[quarantine]",
        )
    return Sample() if state.limits.is_large_enough_sample(records) else sample


def _is_worth_a_commit(
    state: State, verdict: ValidationResult, through_ms: int | None, now_ms: int
) -> bool:
    term = term_of(state)
    stored = term.primary.view.record
    assert stored is not None
    moved = any(not each.range.is_empty for _, each in verdict.ranges)
    expires = bool(find_expiring_commits(state, now_ms)) or has_unfenced_expired_commit(state)
    suspended = term.suspensions.suspended
    resumes = bool(suspended and resuming_tables_needing_empty_commit(term, term.delivery.pending))
    refreshes = bool(tables_behind_in_valid_through(state, through_ms, ()))
    suspends = tuple(suspended.values()) != stored.suspended or bool(term.suspensions.forgotten)
    pauses = stored.paused != term.pause.paused
    return (
        moved
        or expires
        or resumes
        or refreshes
        or suspends
        or pauses
        or is_tag_renewal_due(state, term.primary.view.table, now_ms)
    )


def _build_commit_record(
    state: State, verdict: ValidationResult, through: int | None
) -> CommitRecord:
    term = term_of(state)
    stored = term.primary.view.record
    assert stored is not None
    return CommitRecord(
        sink=state.identity.sink,
        group_id=state.identity.group_id,
        transaction=term.closing_transaction_id,
        coordinator=state.identity.sender,
        offsets=verdict.offsets,
        topic_ids=term.sources.topic_ids,
        records=verdict.row_count,
        quarantined=verdict.quarantined_count,
        skipped=verdict.skipped_count,
        valid_through_ms=through,
        paused=term.pause.paused,
        control_topic=state.identity.control_topic,
        secondaries=secondary_uuids_for_record(state) if term.delivery.secondaries else {},
        routing=state.identity.routing,
        control_topic_id=stored.control_topic_id,
        suspended=tuple(term.suspensions.suspended.values()),
        cohorts=term.sources.cohorts,
        recreated_topics=stored.recreated_topics,
    )


def on_commit_answer(state: State, outcome: CommitOutcome, now_ms: int) -> Step:
    """OUTCOME-2: judge the view that came with "landed" like a read; after any other answer read
    the table.
    """
    if state.call.attempt is None:
        return state, ()
    if isinstance(outcome, Landed):
        return on_read_after_attempt(state, outcome.view, now_ms)
    if isinstance(outcome, Refused) and outcome.for_good:
        # without a read: the files are gone, and the same ones would be asked for again for ever
        return recover_from_table(state, f"commit refused for good: {outcome.reason}")
    if isinstance(outcome, Refused) and state.call.failures < _REFUSALS_AT_ONCE:
        refused = replace(state, call=state.call.with_failure_counted())
        told = f"commit refused: {outcome.reason}"
        asking, actions = ask_look(refused, Look(primary=True))
        return asking, (LogLine(told, trouble=True, event=LogEvent.COMMIT_REFUSED), *actions)
    answer = isinstance(outcome, Refused) or outcome.rights
    return wait_and_retry(state, now_ms, f"commit not confirmed: {outcome.reason}", refused=answer)


def on_read_after_attempt(state: State, view: TableView, now_ms: int) -> Step:
    """Judge the table as read after an attempt, or as returned with the answer that it landed."""
    attempt = state.call.attempt
    assert attempt is not None
    match judge_attempt(attempt, view):
        case Resolution.LANDED:
            return _on_commit_landed(state, view, now_ms)
        case Resolution.AGAIN if state.term and is_attempt_too_old(state, attempt, now_ms):
            return recover_from_table(state, _TOO_OLD)
        case Resolution.AGAIN:
            again = replace(attempt, base=view)
            return replace(state, call=state.call.with_attempt(again)), (CommitTable(again),)
        case Resolution.SUPERSEDED:
            return step_down(state, newest_epoch((view,)), now_ms)
        case Resolution.RECOVER:
            return recover_from_table(state, "the table changed under the commit: begins again")


def _on_commit_landed(state: State, view: TableView, now_ms: int) -> Step:
    if state.phase is Phase.CLAIMING:
        return begin_epoch(state, view, now_ms)
    attempt, term = state.call.attempt, term_of(state)
    stored, found = term.primary.view.record, view.record
    assert stored is not None
    assert found is not None
    answered = (
        term.pause.answered if stored.paused == found.paused else term.previous_transaction_number
    )
    committed = replace(
        term,
        primary=term.primary.with_landed(view),
        delivery=term.delivery.with_decided_commits(view.table, found.pending_commits, now_ms),
        pause=term.pause.with_request_answered_in(answered),
    )
    if attempt:
        files = (*attempt.files, *(file for draft in term.delivery.drafts for file in draft.files))
        known = merge_committed_paths(admission_criteria(state, now_ms), files)
        tokens = term.tokens.with_committed_paths(known)
        committed = replace(committed, tokens=tokens)
        if attempt.forgets:
            committed = with_forgetting_done(committed, attempt.forgets)
    told = newly_expired_log_lines(found, stored) if found.expired else ()
    landed = replace(state, term=committed)
    if committed.delivery.pending or committed.delivery.lingering:
        landed = replace(landed, term=term_with_lingering_commits(landed, now_ms))
    settled, actions = settle_transaction(landed, view)
    return settled, (*told, *actions)


def settle_transaction(state: State, landed: TableView | None) -> Step:
    """COMMIT-4: settle, only once the outcome is known."""
    term = term_of(state)
    assert term.progress.settlement is not None
    tables = tuple(_with_primary_snapshot_id(t, landed) for t in term.progress.settlement.tables)
    settlement = replace(term.progress.settlement, tables=tables)
    settled = replace(term, progress=term.progress.with_settlement_applied(settlement))
    moved = enter_phase(state, Phase.SETTLING, term=settled)
    return moved, append_actions_of_phase(moved)


def _table_settlements(view: TableView, verdict: ValidationResult) -> tuple[TableSettlement, ...]:
    """Return what to settle; secondary tables are named only in a transaction that brings them
    rows."""
    return (
        TableSettlement(view.table, None, verdict.row_count),
        *(
            TableSettlement(name, None, sum(file.records for file in files))
            for name, files in verdict.secondary_files.items()
        ),
    )


def _with_primary_snapshot_id(table: TableSettlement, landed: TableView | None) -> TableSettlement:
    """Add the snapshot to the primary table; what is pending for secondary tables is in no snapshot
    yet."""
    if landed is None or table.table != landed.table:
        return table
    return replace(table, snapshot_id=landed.tag)


# Where the sources' logs end, as far as a judgement needs it (RANGE-2).
#
# They are described before each END. Participants read on until they answer, so an honest range may
# end behind that; only then are the sources asked once more.


def source_ends_of(
    topics: Mapping[str, TopicState], topic_ids: Mapping[str, TopicId]
) -> Mapping[TopicPartition, int]:
    """Return the logs' ends; none for a topic that was created again."""
    return {
        TopicPartition(topic, number): log.end
        for topic, now in topics.items()
        if topic_ids.get(topic) == now.topic_id
        for number, log in now.partitions.items()
    }


def has_ranges_beyond_ends(state: State) -> bool:
    """Return whether a status that waits for its judgement has ranges beyond the known ends."""
    term = term_of(state)
    return any(
        each.range.end > term.sources.ends.get(partition, 0)
        for heard in term.collection.statuses
        for partition, each in heard.status.written.items()
        if not each.range.is_empty
    )


def with_source_ends(state: State, topics: Mapping[str, TopicState]) -> State:
    """Take in the answer. For a partition that could not be asked, the known end stays."""
    term = term_of(state)
    sources = term.sources.with_known_ends(source_ends_of(topics, term.sources.topic_ids))
    call = state.call.without_failures()
    return replace(state, call=call, term=replace(term, sources=sources))


# Ignores events that are repeated, or whose numbers nobody can have counted to (LOG-5, LOG-6).


_GAINS = (PresenceKind.JOINED, PresenceKind.GAINED)

WINDOWS_MAX = 4_096
"""Of so many participants: what anybody may say takes bounded memory (LOG-6)."""


def is_repeated_event(state: State, said: Envelope) -> bool:
    """LOG-5: return whether this participant was heard saying this before, or so long ago that
    nobody knows.

    A gain so far behind counts: somebody else may have used a higher number in its name, and to be
    wrong costs an END that comes soon, instead of one that waits for the new owner (COMMIT-2).
    """
    heard = state.watch.windows.get(said.sender, ReplayWindow()).has_number_or_none(said.sequence)
    return not is_gain(said) if heard is None else heard


def with_sequence_number_heard(state: State, said: Envelope) -> State:
    """Remember the event's number, and forget the sender that was not heard for longest."""
    window = state.watch.windows.get(said.sender, ReplayWindow()).with_number(said.sequence)
    others = [each for each in state.watch.windows.items() if each[0] != said.sender]
    windows = dict([*others, (said.sender, window)][-WINDOWS_MAX:])
    return replace(state, watch=state.watch.with_replay_windows(windows))


def is_gain(said: Envelope) -> bool:
    """Return whether the event reports gained partitions."""
    return isinstance(said.event, Presence) and said.event.kind in _GAINS


def is_epoch_too_far(state: State, said: Envelope) -> bool:
    """LOG-6: return whether the epoch leaps too far: who claimed above it would run out of
    numbers."""
    if isinstance(said.event, Pause | Resume):
        return False
    return said.epoch > state.watch.table_epoch + LEAP_MAX


def is_future_transaction(term: Term, said: Envelope) -> bool:
    """LOG-6: return whether the transaction of this epoch was never opened, or is not ended yet."""
    open_one = isinstance(said.event, StartCommit | Tables)
    newest = term.progress.number if open_one else term.previous_transaction_number
    return said.epoch == term.epoch and said.transaction > newest


# Decides when a transaction holds enough to be ended before its time (rule COMMIT-5).


def with_buffered_amounts(state: State, sender: Sender, presence: Presence) -> State:
    """Record what this participant holds now, where there is a limit."""
    if not (state.settings.commit_records or state.settings.commit_bytes):
        return state
    amounts = BufferedAmounts(presence.buffered_records, presence.buffered_bytes)
    term = term_of(state)
    collection = term.collection.with_buffered_amounts(sender, amounts)
    return replace(state, term=replace(term, collection=collection))


def is_size_limit_reached(state: State) -> bool:
    """Return whether all participants together hold as much as one of the limits."""
    limits = (state.settings.commit_records, state.settings.commit_bytes)
    held = term_of(state).collection.buffered.values()
    return any(
        limit and sum(amounts[of] for amounts in held) >= limit for of, limit in enumerate(limits)
    )


# Leaves the lead to another participant where the own calls are not answered (ELECTION-2).
#
# While it leads nobody else can, and what hangs or fails may be its own way to catalog and store.


PEERS_MAX = 256
"""Of so many, some are alive; what anybody may say takes bounded memory (LOG-6)."""


def with_possible_successor_heard(state: State, said: Envelope, now_ms: int) -> State:
    """Remember when another participant was heard; one that gave up all it had is no heir.

    Only where the lead may be given up soon: at all other times it does not matter who is there.
    """
    since_ms, name = state.call.unanswered_since_ms, said.sender.member
    if since_ms is None or now_ms - since_ms < leader_unanswered_max_ms(state.settings) // 2:
        return state
    if name == state.identity.sender.member or not isinstance(said.event, Presence | WriteStatus):
        return state
    peers = {known: at_ms for known, at_ms in state.watch.peers.items() if known != name}
    if not _has_sender_left(said.event):
        peers[name] = now_ms
    while len(peers) > PEERS_MAX:
        del peers[next(iter(peers))]
    return replace(state, watch=state.watch.with_peers(peers))


def _has_sender_left(event: Presence | WriteStatus) -> bool:
    return isinstance(event, Presence) and event.kind is PresenceKind.LOST and not event.owned


def leadership_released_error(state: State, now_ms: int) -> LeadershipReleased:
    """Return the error that ends this participant's part for a while."""
    since_ms, away_ms = state.call.unanswered_since_ms, leader_unanswered_max_ms(state.settings)
    assert since_ms is not None
    return LeadershipReleased(
        f"catalog and store have not done what the coordinator in {state.identity.sender.member} "
        f"asks for {(now_ms - since_ms) // 1000} s: it leaves the lead to others, and the group",
        f"it comes back after {away_ms // 1000} s, once the table can be read from there; check "
        "whether catalog and store answer this machine",
        away_ms,
    )
