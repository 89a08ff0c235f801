"""Leads from leadership to the first START: read, check, claim the epoch, begin (EPOCH-1, EPOCH-2,
PENDING-9).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from headgate.control_protocol.commit_record import (
    CommitRecord,
    Suspended,
    cohorts_without_recreated_topics,
    require_rollback_finished,
)
from headgate.control_protocol.errors import MissingRights, SecondaryForeign, TableRecreated
from headgate.control_protocol.events import Envelope, Pause, Resume
from headgate.control_protocol.identifiers import Epoch, TopicId, TransactionId, TransactionNumber
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, TableView
from headgate.control_protocol.rows_deleted_by_people import (
    ranges_read_again,
    require_deleted_rows_stay_deleted,
)
from headgate.coordinator.added_partitions import (
    held_partitions,
    hold_added_partitions,
    without_new_topics_of_unknown_size,
)
from headgate.coordinator.file_admission import Tokens
from headgate.coordinator.inputs_and_actions import (
    Action,
    CommitTable,
    Look,
    Looked,
    SecondariesRead,
    SourcesDescribed,
)
from headgate.coordinator.phase_steps import (
    Step,
    append_actions_of_phase,
    ask_look,
    enter_phase,
    recover_from_table,
    wait_and_retry,
    with_described_topics,
    with_next_table_check_due,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import (
    Resumption,
    credible_heard_epoch_or_zero,
    fit_offsets_to_sources,
    newest_epoch,
    next_epoch,
    record_to_resume_from,
    require_group_not_taken,
    require_not_stopped,
    require_quarantine_intact,
    require_record_not_too_large,
    require_sink_name_not_taken,
    require_sources_fit_in_start,
    require_sources_unshared,
    require_table_not_recreated,
    valid_through_of_claim,
)
from headgate.coordinator.secondary_delivery import (
    begin_delivering,
    newly_expired_log_lines,
)
from headgate.coordinator.secondary_pending_commits import (
    claims_needed_of_secondaries,
    expired_commits_for_record,
    find_overdue_commits,
    find_undelivered_commits,
    pending_commits_without,
    require_secondaries_own_and_not_ahead,
    split_pending_at_claim,
    with_unknown_ages_begun,
)
from headgate.coordinator.settings import TableRecreatedPolicy
from headgate.coordinator.state import (
    OVERDUE,
    Delivery,
    PauseRequest,
    PauseState,
    PrimaryState,
    Progress,
    Recovery,
    SourceState,
    State,
    StatusCollection,
    Suspensions,
    Suspicion,
    Term,
    Timer,
)
from headgate.coordinator.table_checks import with_unseen_tables_listed
from headgate.coordinator.table_suspension import (
    build_suspensions_or_raise,
    dropped_tables_log_lines,
    find_missing_tables_to_recreate,
    find_table_trouble,
    on_resume_request,
    pending_commits_of_tables,
    require_not_too_many_suspended,
    suspended_tables_log_lines,
    tables_to_suspend_if_missing,
)

# Handles an operator's requests to pause or to go on, each exactly once (rule PAUSE-1).
#
# A request bears the newest transaction that the operator read in the table. The control topic may
# hold it for long, and anybody may repeat it: it counts only while nothing has answered it.


_NEVER = TransactionId(Epoch(0), TransactionNumber(0))


def on_operator_request(state: State, said: Envelope, now_ms: int) -> State:
    """Remember a request while there is no term, act on it in one; ignore what was answered.

    One for suspended tables is remembered in a term only, for it is repeated until it was answered.
    """
    if isinstance(said.event, Resume) and said.event.tables:
        return on_resume_request(state, said.event.tables, now_ms) if state.term else state
    request = PauseRequest(
        isinstance(said.event, Pause), TransactionId(said.epoch, said.transaction)
    )
    term = state.term
    if term is None:
        known = state.pause_asked
        return state if known and request.seen < known.seen else replace(state, pause_asked=request)
    if request.paused == term.pause.paused:
        return state
    if request.seen < TransactionId(term.epoch, term.pause.answered):
        # old, or the table is not the one that this coordinator knows: a look will tell
        return state.with_deadline(Timer.LOOK, OVERDUE)
    paused = replace(term, pause=replace(term.pause, paused=request.paused))
    return replace(state, term=paused).with_end_due_by(now_ms)


def is_new_term_paused(state: State, attempt: CommitAttempt | None, *, stored_pause: bool) -> bool:
    """Return whether the new term begins paused: as stored, or as asked since the last commit.

    ``attempt``: it says which commit was the last one.
    """
    request = state.pause_asked
    before = attempt.base.current_record if attempt else None
    if request is None or request.seen < (before.transaction if before else _NEVER):
        return stored_pause
    return request.paused


_NOT_BY_POLICY = (
    "take the policy out of the sink file, and answer the error that it answers by headgate resume "
    "SINK --accept CODE=CHOICE, with --bring-back-deleted if the deletion was a mistake"
)


def on_primary_read_before_claim(state: State, view: TableView) -> Step:
    """Look at the primary table's secondary tables next, if it has any, and at the sources."""
    record = record_to_resume_from(view, state.settings)
    require_not_stopped(record, state.identity.sink)
    require_rollback_finished(record, state.identity.sink)
    stored = {suspended.table: suspended for suspended in (record.suspended if record else ())}
    suspended = {**stored, **state.suspicion.troubled} if state.identity.routed else {}
    found = replace(state, recovery=Recovery(Looked(view), suspended))
    names = _secondaries_to_read(state, record)
    filled = (
        tables_to_suspend_if_missing(state, view, suspended)
        if state.identity.routed
        else frozenset[str]()
    )
    first = record is None
    return ask_look(found, Look(tables=names, remembered=filled, sources=True, first_start=first))


def _recovery_of(state: State) -> Recovery:
    assert state.recovery is not None, f"phase {state.phase} claims nothing"
    return state.recovery


def _primary_to_claim(state: State) -> TableView:
    view = _recovery_of(state).found.primary
    assert view is not None
    return view


def _secondaries_to_read(state: State, record: CommitRecord | None) -> tuple[str, ...]:
    """Return the secondary tables of the settings, and those for which something is, or may be,
    pending."""
    pending = [pending_commit.table for pending_commit in record.pending_commits] if record else []
    beyond = sorted(state.suspicion.beyond)
    return tuple(dict.fromkeys((*state.identity.secondaries, *pending, *beyond)))


def on_look_before_claim(state: State, found: Looked, now_ms: int) -> Step:
    """PENDING-9: judge the secondary tables, and claim. Raises the ``StopSink`` error of one that
    is not in order."""
    view = _primary_to_claim(state)
    recovery = replace(_recovery_of(state), found=replace(found, primary=view))
    # whether or not there are tables to read: what the epoch decides for new ones has an age, too
    state = replace(state, recovery=recovery, wall_ahead_ms=recovery.wall_ms - now_ms)
    tells: tuple[LogLine, ...] = ()
    if found.secondaries is not None:
        if missing := required_secondaries_unread(state, found.secondaries):
            return wait_and_retry(state, now_ms, f"not reachable: {', '.join(missing)}")
        state, tells = _suspend_or_forget_secondaries(state, found.secondaries)
        error = _foreign_secondary_error(state, found.secondaries)
        # Others may have claimed and delivered between the two reads: the error is believed when
        # a second pair of reads shows it again.
        if error is not None and error.message != state.suspicion.doubted:
            doubting = replace(
                state, suspicion=state.suspicion.with_unconfirmed_error(error.message)
            )
            return ask_look(doubting, Look(primary=True))
        if error is not None:
            raise error
    assert found.sources is not None
    claiming, actions = claim_epoch(state, view, found.sources, now_ms)
    return claiming, (*tells, *actions)


def _secondaries_required_for_claim(state: State) -> tuple[str, ...]:
    """Return the secondary tables without which nothing is claimed."""
    if state.identity.routed:
        return state.identity.secondaries
    return _secondaries_to_read(
        state, record_to_resume_from(_primary_to_claim(state), state.settings)
    )


def required_secondaries_unread(state: State, given: SecondariesRead) -> tuple[str, ...]:
    """Return what does not answer, though nothing is claimed without it, and why."""
    return tuple(
        f"{name} ({given.unread.get(name, 'it is busy')})"
        for name in _secondaries_required_for_claim(state)
        if name not in given.views
    )


def _suspend_or_forget_secondaries(
    state: State, given: SecondariesRead
) -> tuple[State, tuple[LogLine, ...]]:
    """SUSPEND-1, LEDGER-2: find out what the claim suspends and forgets. Raises what stops."""
    recovery, needed = _recovery_of(state), _secondaries_required_for_claim(state)
    record = record_to_resume_from(_primary_to_claim(state), state.settings)
    for name in (name for name in needed if name in given.views):
        require_quarantine_intact(
            given.views[name], record, state.settings, routed=state.identity.routed
        )
    suspended = _find_suspensions(state, given, needed)
    anew = find_missing_tables_to_recreate(state, given.troubles) - recovery.suspended.keys()
    all_suspended = {**recovery.suspended, **suspended}
    judged = replace(state, recovery=replace(recovery, suspended=all_suspended, forgotten=anew))
    return judged, (*suspended_tables_log_lines(suspended), *dropped_tables_log_lines(anew))


def _foreign_secondary_error(
    state: State, given: SecondariesRead
) -> SecondaryForeign | TableRecreated | None:
    """PENDING-9: return what is wrong if a secondary table was filled by another primary table."""
    if state.settings.on_table_recreated is TableRecreatedPolicy.RESTART:
        return None
    view, suspended = _primary_to_claim(state), _recovery_of(state).suspended
    record = record_to_resume_from(view, state.settings)
    judged = {name: each for name, each in given.views.items() if name not in suspended}
    try:
        require_secondaries_own_and_not_ahead(
            judged, view, record.pending_commits if record else ()
        )
    except (SecondaryForeign, TableRecreated) as error:
        return error
    return None


def _find_suspensions(
    state: State, given: SecondariesRead, needed: Collection[str]
) -> dict[str, Suspended]:
    """SUSPEND-1: return the routed tables to suspend at the claim. Raises where too many would be
    suspended."""
    before = _recovery_of(state).suspended
    known = {*needed, *before}
    troubles = {
        name: error
        for name, error in given.troubles.items()
        if name not in known and not isinstance(error, MissingRights)
    }
    for name, secondary in given.views.items():
        error = find_table_trouble(secondary, state, {}) if name not in known else None
        if error is not None:
            troubles[name] = error
    found = build_suspensions_or_raise(state, troubles, _recovery_of(state).wall_ms)
    require_not_too_many_suspended({**before, **found})
    return found


def claim_epoch(state: State, view: TableView, sources: SourcesDescribed, now_ms: int) -> Step:
    """EPOCH-1: commit an empty snapshot with a higher epoch; nothing is said before it has
    landed.

    It moves the tag that every call of an earlier coordinator requires: whatever such a one still
    sends, awake or from the grave, is refused from then on.
    """
    require_group_not_taken(sources.offset_metadata, state.identity)
    require_table_not_recreated(view, state.table_uuid, sources.offset_metadata, state.settings)
    record = record_to_resume_from(view, state.settings)
    recovery = _recovery_of(state)
    secondaries = recovery.secondaries
    for other in (record, *(secondary.current_record for secondary in secondaries.values())):
        require_sink_name_not_taken(other, state.identity)
    ids = {topic: now.topic_id for topic, now in sources.topics.items()}
    require_sources_unshared(view, ids, state.identity.shared_with)
    resumption = _starting_point_of_claim(state, record, sources)
    known = (record.offsets, record.topic_ids) if record else (Offsets(), {})
    held: tuple[LogLine, ...] = ()
    offsets = resumption.offsets
    if state.identity.may_have_keyed_tables:
        state, held = hold_added_partitions(state, *known, sources.topics, now_ms=now_ms)
        offsets = offsets.restricted_to(offsets.keys() - held_partitions(state))
        # Told anew by each epoch: the ids that the record knows say nothing of it.
        offsets, late = without_new_topics_of_unknown_size(
            state, offsets, known[0], {}, topics=sources.topics
        )
        held += late
    tables = (view, *secondaries.values())
    _require_no_deleted_records_read_again(state, tables, offsets, resumption.topic_ids)
    # above the secondary tables', too: a primary table that was restored counts from an old value,
    # while folders and records of a higher epoch exist already
    epoch = next_epoch(tables, state.watch.highest_epoch)
    bare = CommitRecord(
        sink=state.identity.sink,
        group_id=state.identity.group_id,
        transaction=TransactionId(epoch, TransactionNumber(0)),
        coordinator=state.identity.sender,
        offsets=offsets,
        topic_ids=resumption.topic_ids,
        valid_through_ms=resumption.valid_through_ms,
        paused=resumption.paused,
        control_topic=state.identity.control_topic,
        control_topic_id=sources.control_topic_id,
        secondaries={
            name: secondary.uuid
            for name, secondary in sorted(secondaries.items())
            if name in state.identity.secondaries or not state.identity.routed
        },
        routing=state.identity.routing,
        suspended=tuple(recovery.suspended.values()),
        cohorts=resumption.cohorts,
        recreated_topics=record.accumulated_recreated_topics(ids) if record else "",
    )
    record_claimed = add_pending_commits_to_claim(state, bare, record, view)
    require_record_not_too_large(record_claimed)
    read = frozenset(sources.topics)
    require_sources_fit_in_start(
        offsets.restricted_to(p for p in offsets if p.topic in read),
        resumption.topic_ids,
    )
    attempt = CommitAttempt(view, record_claimed, forgets=recovery.forgotten)
    claiming = enter_phase(
        with_described_topics(state, sources.topics),
        Phase.CLAIMING,
        attempt=attempt,
        table_uuid=view.uuid,
        watch=state.watch.with_table_epoch(newest_epoch(tables)),
    )
    expired = newly_expired_log_lines(record_claimed, record) if record_claimed.expired else ()
    tells = (*expired, *_changed_settings_log_lines(record, record_claimed), *held)
    return claiming, (*tells, CommitTable(attempt))


def _require_no_deleted_records_read_again(
    state: State, tables: Sequence[TableView], offsets: Offsets, ids: Mapping[str, TopicId]
) -> None:
    """COMPACTION-1: raise ``DeletedBack`` where a policy would read records again that people
    deleted."""
    record = tables[0].record
    if state.identity.deleted_back or tables[0].current_record is None:
        return
    again = ranges_read_again(record.offsets if record else {}, offsets)
    for table in tables:
        require_deleted_rows_stay_deleted(
            table.table, table.deleted, again, ids, hint=_NOT_BY_POLICY
        )


def add_pending_commits_to_claim(
    state: State, claim: CommitRecord, stored: CommitRecord | None, view: TableView
) -> CommitRecord:
    """PENDING-3: carry on in the claim what is still pending, and claim secondary tables that need
    it (PENDING-9)."""
    recovery = _recovery_of(state)
    secondaries = recovery.secondaries
    if not (secondaries or (stored and (stored.pending_commits or stored.expired))):
        return claim
    before = (
        find_undelivered_commits(stored.pending_commits, secondaries, view.uuid) if stored else ()
    )
    before = with_unknown_ages_begun(before, recovery.wall_ms)
    late = find_overdue_commits(before, recovery.wall_ms, state.settings.claim_age_max_ms)
    late = tuple(dict.fromkeys((*late, *pending_commits_of_tables(before, recovery.forgotten))))
    routed, named = state.identity.routed, state.identity.secondaries
    claimable = {n: each for n, each in secondaries.items() if n in named or not routed}
    claims = claims_needed_of_secondaries(claim, stored, claimable, view)
    pending_commits, lost = split_pending_at_claim(
        pending_commits_without(before, late), claims, secondaries
    )
    expired = expired_commits_for_record(stored, (*late, *(d for d in lost if d.manifest)))
    return claim.with_pending(pending_commits, expired)


def _changed_settings_log_lines(before: CommitRecord | None, now: CommitRecord) -> Iterable[Action]:
    """Yield the line on a control topic that is not the former one (CONFIG-1): no state is in it.

    PENDING-3: tell as well of settings that decide what a row is, and that have changed.
    """
    if before and before.control_topic_id not in (None, now.control_topic_id):
        yield LogLine(
            f"control topic {now.control_topic} has id {now.control_topic_id}, but the last commit "
            f"was made with {before.control_topic} of id {before.control_topic_id}: it was created "
            "anew, or this is another topic or cluster",
            event=LogEvent.SETTINGS_CHANGED,
            trouble=True,
        )
    if before and before.routing and before.routing != now.routing:
        told = "the settings that decide what a row is have changed since the last commit"
        yield LogLine(told, event=LogEvent.SETTINGS_CHANGED)


def _starting_point_of_claim(
    state: State, record: CommitRecord | None, found: SourcesDescribed
) -> Resumption:
    ids = {topic: now.topic_id for topic, now in found.topics.items()}
    if record is None:
        start = found.start or Offsets()
        return Resumption(fit_offsets_to_sources(start, {}, found.topics, state.settings), ids)
    offsets = fit_offsets_to_sources(record.offsets, record.topic_ids, found.topics, state.settings)
    known = {**record.topic_ids, **ids}
    through = valid_through_of_claim(record, offsets, ids)
    return Resumption(
        offsets,
        known,
        through,
        record.paused,
        cohorts_without_recreated_topics(record.cohorts, record.topic_ids, ids),
    )


def begin_epoch(state: State, view: TableView, now_ms: int) -> Step:
    """EPOCH-2: append the first START, whose L is its own place in the log. C is what the table
    holds.

    Where secondary tables are claimed (PENDING-9), it waits until they are: whatever a delivery of
    long ago may still bring is then in them, or never will be.
    """
    record = view.record
    assert record is not None
    epoch = record.transaction.epoch
    recovery = _recovery_of(state)
    secondaries = recovery.secondaries
    tables = (view, *secondaries.values())
    if credible_heard_epoch_or_zero(tables, state.watch.highest_epoch) >= epoch:
        # all who heard the higher one would ignore a START of this one
        return recover_from_table(
            state, f"epoch {state.watch.highest_epoch} was heard: claims a higher one"
        )
    paused = is_new_term_paused(state, state.call.attempt, stored_pause=record.paused)
    suspended = {each.table: each for each in record.suspended}
    term = Term(
        epoch=epoch,
        primary=PrimaryState(view=view),
        progress=Progress(offsets=record.offsets, valid_through_ms=record.valid_through_ms),
        sources=SourceState(topic_ids=record.topic_ids, cohorts=record.cohorts),
        collection=StatusCollection(awaited=frozenset(record.offsets)),
        pause=PauseState(paused=paused),
        delivery=Delivery(
            secondaries=secondaries,
            pending=record.pending_commits,
            moved_at_ms=dict.fromkeys((view.table, *secondaries), now_ms),
        ),
        suspensions=Suspensions(
            suspended=suspended,
            refused_access=state.suspicion.refused_access.without_tables(suspended),
        ),
    )
    age_max_ms = state.settings.claim_age_max_ms
    first = Tokens().with_start(term.progress.number, recovery.stamp, now_ms, age_max_ms)
    begun = replace(
        state,
        term=replace(term, tokens=first),
        watch=state.watch.with_claim_landed(epoch),
        pause_asked=None,
        recovery=None,
        suspicion=Suspicion(),
    )
    begun = with_next_table_check_due(begun, now_ms)
    begun = with_unseen_tables_listed(begun) if state.identity.refresh_ms else begun
    began = LogLine(f"epoch {epoch} begins", event=LogEvent.EPOCH_BEGAN)
    if any(pending_commit.is_claim for pending_commit in record.pending_commits):
        delivering, actions = begin_delivering(begun, now_ms)
        return delivering, (began, *actions)
    starting = enter_phase(begun, Phase.STARTING)
    return starting, (began, *append_actions_of_phase(starting))
