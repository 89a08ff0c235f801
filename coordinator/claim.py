"""From leadership to the first START: read, check, claim the epoch, begin (C2, C3)."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.identifiers import TransactionId, TransactionNumber
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, TableView
from headgate.control_protocol.record import CommitRecord
from headgate.coordinator.actions import (
    Action,
    CommitTable,
    DescribeSources,
    SourcesDescribed,
    Tell,
)
from headgate.coordinator.ageing import issued
from headgate.coordinator.capacity import refuse_too_many, refuse_unreadable
from headgate.coordinator.moves import Step, move, recover
from headgate.coordinator.recovery import (
    Resumption,
    believed,
    fitted,
    next_epoch,
    recorded,
    refuse_other_group,
    refuse_other_sink,
    refuse_recreated,
    refuse_shared,
)
from headgate.coordinator.requests import paused_at_start
from headgate.coordinator.speech import say
from headgate.coordinator.state import State, Term
from headgate.coordinator.transitions import Phase
from headgate.coordinator.watermark import carried_on


def table_found(state: State, view: TableView) -> Step:
    """The table is read; the sources are next, with the start offsets if this is a first start."""
    first = recorded(view, state.settings) is None
    return replace(state, recovery_view=view), (DescribeSources(first_start=first),)


def claim(state: State, view: TableView, sources: SourcesDescribed) -> Step:
    """C2: an empty snapshot with a higher epoch; nothing is said before it has landed."""
    refuse_other_sink(sources.note, state.identity)
    refuse_recreated(view, state.table_uuid, sources.note, state.settings)
    record = recorded(view, state.settings)
    for other in (record, view.quarantine.settled if view.quarantine else None):
        refuse_other_group(other, state.identity)
    ids = {topic: now.topic_id for topic, now in sources.topics.items()}
    refuse_shared(view, ids, state.identity.shared_with)
    resumption = _resumption(state, record, sources)
    claimed = CommitRecord(
        sink=state.identity.sink,
        group_id=state.identity.group_id,
        transaction=TransactionId(next_epoch(view, state.highest_epoch), TransactionNumber(0)),
        coordinator=state.identity.sender,
        offsets=resumption.offsets,
        topic_ids=resumption.topic_ids,
        valid_through_ms=resumption.valid_through_ms,
        paused=resumption.paused,
        quarantine=view.quarantine.uuid if view.quarantine else None,
        control_topic=state.identity.control_topic,
        control_topic_id=sources.control_topic_id,
    )
    refuse_unreadable(claimed)
    read = frozenset(sources.topics)
    refuse_too_many(
        resumption.offsets.restricted(p for p in resumption.offsets if p.topic in read),
        resumption.topic_ids,
    )
    attempt = CommitAttempt(view, claimed, quarantined=() if view.quarantine else None)
    claiming = move(state, Phase.CLAIMING, attempt=attempt, table_uuid=view.uuid, topics=read)
    return claiming, (*_told(record, claimed), CommitTable(attempt))


def _told(before: CommitRecord | None, now: CommitRecord) -> tuple[Action, ...]:
    """P11: a control topic that is not the one of before; nothing in it is state, so go on."""
    if before is None or before.control_topic_id in (None, now.control_topic_id):
        return ()
    return (
        Tell(
            f"control topic {now.control_topic} has id {now.control_topic_id}, but the last commit "
            f"was made with {before.control_topic} of id {before.control_topic_id}: it was created "
            "anew, or this is another topic or cluster",
            trouble=True,
        ),
    )


def _resumption(state: State, record: CommitRecord | None, found: SourcesDescribed) -> Resumption:
    ids = {topic: now.topic_id for topic, now in found.topics.items()}
    if record is None:
        start = found.start or Offsets()
        return Resumption(fitted(start, {}, found.topics, state.settings), ids)
    offsets = fitted(record.offsets, record.topic_ids, found.topics, state.settings)
    known = {**record.topic_ids, **ids}
    return Resumption(offsets, known, carried_on(record, offsets, ids), record.paused)


def start(state: State, view: TableView, now_ms: int) -> Step:
    """C3: the first START, whose L is its own place in the log. C is what the table holds."""
    claimed, state = state.attempt, replace(state, attempt=None)
    record = view.record
    assert record is not None
    epoch = record.transaction.epoch
    if believed(view, state.highest_epoch) > epoch:
        return recover(state, f"epoch {state.highest_epoch} was heard meanwhile: claims above it")
    term = Term(
        epoch=epoch,
        view=view,
        offsets=record.offsets,
        topic_ids=record.topic_ids,
        awaited=frozenset(record.offsets),
        paused=paused_at_start(state, claimed, stored=record.paused),
        valid_through_ms=record.valid_through_ms,
        committed_at_ms=now_ms,
        quarantined_at_ms=now_ms,
    )
    first = issued((), term.number, now_ms, state.settings.claim_age_max_ms)
    term = replace(term, issued=first)
    starting = move(
        state,
        Phase.STARTING,
        term=term,
        highest_epoch=epoch,
        rival_heard_ms=None,
        pause_asked=None,
    )
    return starting, (Tell(f"epoch {epoch} begins"), *say(starting))
