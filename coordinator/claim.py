"""From leadership to the first START: read, check, claim the epoch, begin (C2, C3, D9)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from headgate.control_protocol.deleted_records import read_again, refuse_read_again
from headgate.control_protocol.errors import FollowerForeign, MissingRights, TableRecreated
from headgate.control_protocol.generations import kept
from headgate.control_protocol.going_back import refuse_unfinished
from headgate.control_protocol.identifiers import TopicId, TransactionId, TransactionNumber
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, TableView
from headgate.control_protocol.record import CommitRecord, Parked
from headgate.coordinator.actions import (
    Action,
    CommitTable,
    DescribeFollowers,
    DescribeSources,
    FollowersRead,
    ReadTable,
    SourcesDescribed,
    Tell,
)
from headgate.coordinator.ageing import issued
from headgate.coordinator.capacity import refuse_too_many, refuse_unreadable
from headgate.coordinator.debts import (
    carried_on as debts_carried_on,
)
from headgate.coordinator.debts import (
    claimed,
    lapsed_so_far,
    overdue,
    refuse_foreign,
    unpaid,
    without,
)
from headgate.coordinator.dropped import given_up, made_anew, remembered, told_anew
from headgate.coordinator.growth import held_back, not_read
from headgate.coordinator.moves import Step, move, recover, wait
from headgate.coordinator.parking import parked_for, refuse_too_many_parked, told, trouble_of
from headgate.coordinator.payment import begin_paying, told_lapsed
from headgate.coordinator.recovery import (
    Resumption,
    believed,
    fitted,
    newest_epoch,
    next_epoch,
    recorded,
    refuse_other_group,
    refuse_other_sink,
    refuse_recreated,
    refuse_shared,
    refuse_stopped,
    refuse_unlike,
)
from headgate.coordinator.requests import paused_at_start
from headgate.coordinator.settings import TableRecreatedPolicy
from headgate.coordinator.speech import say
from headgate.coordinator.state import State, Term
from headgate.coordinator.transitions import Phase
from headgate.coordinator.watermark import carried_on

_NOT_BY_POLICY = (
    "take the policy out of the sink file, and answer the error that it answers by headgate resume "
    "SINK --accept CODE=CHOICE, with --bring-back-deleted if the deletion was a mistake"
)


def table_found(state: State, view: TableView) -> Step:
    """Read the lead's followers next, if it has any, and then the sources."""
    record = recorded(view, state.settings)
    refuse_stopped(record, state.identity.sink)
    refuse_unfinished(record, state.identity.sink)
    stored = {parked.table: parked for parked in (record.parked if record else ())}
    parked = {**stored, **state.troubled} if state.identity.routed else {}
    found = replace(state, recovery_view=view, recovery_followers={}, recovery_parked=parked)
    found = replace(found, recovery_forgotten=frozenset())
    names, filled = _named(state, record), remembered(state, view, parked)
    if names or filled:
        return found, (DescribeFollowers(names, filled),)
    return found, (DescribeSources(first_start=record is None),)


def _named(state: State, record: CommitRecord | None) -> tuple[str, ...]:
    """Return the followers of the settings, and those that the lead owes, or may owe, something."""
    owed = [debt.table for debt in record.debts] if record else []
    return tuple(dict.fromkeys((*state.identity.followers, *owed, *sorted(state.suspects))))


def followers_found(state: State, given: FollowersRead, now_ms: int) -> Step:
    """D9: judge the followers. Raises the ``StopSink`` error of one that is not in order."""
    view = state.recovery_view
    assert view is not None
    record = recorded(view, state.settings)
    needed = state.identity.followers if state.identity.routed else _named(state, record)
    missing = [name for name in needed if name not in given.views]
    if missing:
        return wait(state, now_ms, f"not reachable: {', '.join(missing)}")
    for name in (name for name in needed if name in given.views):
        refuse_unlike(given.views[name], record, state.settings, routed=state.identity.routed)
    parked = _parked(state, given, needed)
    anew = made_anew(state, given.troubles) - state.recovery_parked.keys()
    found = replace(
        state,
        recovery_followers=given.views,
        recovery_wall_ms=given.wall_ms,
        wall_ahead_ms=given.wall_ms - now_ms,
        recovery_parked={**state.recovery_parked, **parked},
        recovery_forgotten=anew,
    )
    if state.settings.on_table_recreated is not TableRecreatedPolicy.RESTART:
        try:
            judged = {n: each for n, each in given.views.items() if n not in found.recovery_parked}
            refuse_foreign(judged, view, record.debts if record else ())
        except (FollowerForeign, TableRecreated) as error:
            # Others may have claimed and paid between the two reads: the error is believed when a
            # second pair of reads shows it again.
            if error.message in state.doubted:
                raise
            return replace(found, doubted=frozenset({error.message})), (ReadTable(),)
    return found, (*told(parked), *told_anew(anew), DescribeSources(first_start=record is None))


def _parked(state: State, given: FollowersRead, needed: Collection[str]) -> dict[str, Parked]:
    """I1: return the routed tables that are owed something and are not in order."""
    known = {*needed, *state.recovery_parked}
    troubles = {
        name: error
        for name, error in given.troubles.items()
        if name not in known and not isinstance(error, MissingRights)
    }
    for name, follower in given.views.items():
        error = trouble_of(follower, state, {}) if name not in known else None
        if error is not None:
            troubles[name] = error
    found = parked_for(state, troubles, given.wall_ms)
    refuse_too_many_parked({**state.recovery_parked, **found})
    return found


def claim(state: State, view: TableView, sources: SourcesDescribed, now_ms: int) -> Step:
    """C2: commit an empty snapshot with a higher epoch; nothing is said before it has landed."""
    refuse_other_sink(sources.note, state.identity)
    refuse_recreated(view, state.table_uuid, sources.note, state.settings)
    record = recorded(view, state.settings)
    followers = state.recovery_followers
    for other in (record, *(follower.settled for follower in followers.values())):
        refuse_other_group(other, state.identity)
    ids = {topic: now.topic_id for topic, now in sources.topics.items()}
    refuse_shared(view, ids, state.identity.shared_with)
    resumption = _resumption(state, record, sources)
    known = (record.offsets, record.topic_ids) if record else (Offsets(), {})
    state, held = held_back(state, *known, sources.topics, now_ms=now_ms)
    offsets = resumption.offsets.restricted(resumption.offsets.keys() - not_read(state))
    tables = (view, *followers.values())
    _refuse_deleted_back(state, tables, offsets, resumption.topic_ids)
    epoch = next_epoch(tables, state.highest_epoch)
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
        followers={
            name: follower.uuid
            for name, follower in sorted(followers.items())
            if name in state.identity.followers or not state.identity.routed
        },
        routing=state.identity.routing,
        parked=tuple(state.recovery_parked.values()),
        generations=resumption.generations,
    )
    record_claimed = with_debts_of(state, bare, record, view)
    refuse_unreadable(record_claimed)
    read = frozenset(sources.topics)
    refuse_too_many(
        offsets.restricted(p for p in offsets if p.topic in read),
        resumption.topic_ids,
    )
    attempt = CommitAttempt(view, record_claimed, forgets=state.recovery_forgotten)
    claiming = move(
        state,
        Phase.CLAIMING,
        attempt=attempt,
        table_uuid=view.uuid,
        table_epoch=newest_epoch(tables),
        topics=read,
        recovery_stamp=sources.stamp,
    )
    tells = (*told_lapsed(record_claimed, record), *_told(record, record_claimed), *held)
    return claiming, (*tells, CommitTable(attempt))


def _refuse_deleted_back(
    state: State, tables: Sequence[TableView], offsets: Offsets, ids: Mapping[str, TopicId]
) -> None:
    """T8: raise ``DeletedBack`` where a policy would read records again that people deleted."""
    record = tables[0].record
    if state.identity.deleted_back or tables[0].settled is None:
        return
    again = read_again(record.offsets if record else {}, offsets)
    for table in tables:
        refuse_read_again(table.table, table.deleted, again, ids, hint=_NOT_BY_POLICY)


def with_debts_of(
    state: State, claim: CommitRecord, record: CommitRecord | None, view: TableView
) -> CommitRecord:
    """D3: carry on in the claim what is still owed, and claim followers that need it (D9)."""
    followers = state.recovery_followers
    before = unpaid(record.debts, followers, view.uuid) if record else ()
    late = overdue(before, state.recovery_wall_ms, state.settings.claim_age_max_ms)
    late = tuple(dict.fromkeys((*late, *given_up(before, state.recovery_forgotten))))
    routed, named = state.identity.routed, state.identity.followers
    claimable = {n: each for n, each in followers.items() if n in named or not routed}
    claims = claimed(claim, record, claimable, view)
    debts, lost = debts_carried_on(without(before, late), claims, followers)
    lapsed = lapsed_so_far(record, (*late, *(d for d in lost if d.manifest)))
    return replace(claim, debts=debts, lapsed=lapsed)


def _told(before: CommitRecord | None, now: CommitRecord) -> Iterable[Action]:
    """Tell of a control topic that is not the former one (P11); no state is in it, so go on.

    D3: tell as well of settings that decide what a row is, and that have changed.
    """
    if before and before.control_topic_id not in (None, now.control_topic_id):
        yield Tell(
            f"control topic {now.control_topic} has id {now.control_topic_id}, but the last commit "
            f"was made with {before.control_topic} of id {before.control_topic_id}: it was created "
            "anew, or this is another topic or cluster",
            event=LogEvent.SETTINGS_CHANGED,
            trouble=True,
        )
    if before and before.routing and before.routing != now.routing:
        told = "the settings that decide what a row is have changed since the last commit"
        yield Tell(told, event=LogEvent.SETTINGS_CHANGED)


def _resumption(state: State, record: CommitRecord | None, found: SourcesDescribed) -> Resumption:
    ids = {topic: now.topic_id for topic, now in found.topics.items()}
    if record is None:
        start = found.start or Offsets()
        return Resumption(fitted(start, {}, found.topics, state.settings), ids)
    offsets = fitted(record.offsets, record.topic_ids, found.topics, state.settings)
    known = {**record.topic_ids, **ids}
    through = carried_on(record, offsets, ids)
    return Resumption(
        offsets,
        known,
        through,
        record.paused,
        kept(record.generations, record.topic_ids, ids),
    )


def start(state: State, view: TableView, now_ms: int) -> Step:
    """C3: say the first START, whose L is its own place in the log. C is what the table holds.

    Where followers are claimed (D9), it waits until they are: whatever a payment of long ago may
    still bring is then in them, or never will be.
    """
    claim_attempt, state = state.attempt, replace(state, attempt=None)
    record = view.record
    assert record is not None
    epoch = record.transaction.epoch
    tables = (view, *state.recovery_followers.values())
    if believed(tables, state.highest_epoch) >= epoch:
        return recover(state, f"epoch {state.highest_epoch} was heard: claims a higher one")
    followers = state.recovery_followers
    term = Term(
        epoch=epoch,
        view=view,
        offsets=record.offsets,
        topic_ids=record.topic_ids,
        awaited=frozenset(record.offsets),
        paused=paused_at_start(state, claim_attempt, stored=record.paused),
        valid_through_ms=record.valid_through_ms,
        committed_at_ms=now_ms,
        followers=followers,
        debts=record.debts,
        moved_at_ms=dict.fromkeys(followers, now_ms),
        parked={parked.table: parked for parked in record.parked},
        listed_at_ms=now_ms,
        stamp=state.recovery_stamp,
        generations=record.generations,
    )
    first = issued((), term.number, now_ms, state.settings.claim_age_max_ms)
    begun = replace(
        state,
        term=replace(term, issued=first),
        highest_epoch=epoch,
        table_epoch=epoch,
        rival_heard_ms=None,
        pause_asked=None,
        doubted=frozenset(),
        suspects=frozenset(),
        troubled={},
    )
    began = Tell(f"epoch {epoch} begins", event=LogEvent.EPOCH_BEGAN)
    if any(debt.claim for debt in record.debts):
        paying, actions = begin_paying(begun, now_ms)
        return paying, (began, *actions)
    starting = move(begun, Phase.STARTING)
    return starting, (began, *say(starting))
