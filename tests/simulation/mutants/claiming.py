"""EPOCH-1, EPOCH-2, EPOCH-4, COMMIT-1 and COMMIT-2: the epoch, its STARTs and ENDs, gains,
rivals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol.events import EndCommit, Presence, StartCommit, WriteStatus
from headgate.control_protocol.machine_io import Append, OutgoingEvent
from headgate.control_protocol.ports import TableView
from headgate.coordinator import epoch_claim, machine, phase_steps
from headgate.coordinator.phase_steps import recover_from_table
from headgate.coordinator.phases import Phase
from headgate.coordinator.state import HeardStatus, State, Timer

FAMILY = Family()


@FAMILY.replaces("EPOCH-1", (epoch_claim, "claim_epoch"))
def no_claim(right: Any, state: State, view: TableView, sources: Any, now_ms: int) -> Any:
    """An epoch begins without a commit: the first START is said at once."""
    claiming, (call,) = right(state, view, sources, now_ms)
    believed = replace(view, record=call.attempt.record)
    return epoch_claim.begin_epoch(claiming, believed, 0)


@FAMILY.replaces("EPOCH-1", (epoch_claim, "next_epoch"))
def same_epoch(right: Any, tables: tuple[TableView, ...], highest_heard: int) -> int:
    """The claim does not raise the epoch."""
    return max(highest_heard, *(r.transaction.epoch for r in (tables[0].record,) if r), 1)


@FAMILY.patches("EPOCH-1")
def above_the_table_only() -> tuple[Planted, ...]:
    """The epoch is above the table's, but not above what was heard."""
    begin, following = machine.begin_epoch, epoch_claim.next_epoch
    return (
        (epoch_claim, "next_epoch", lambda view, heard: following(view, 0)),
        (
            machine,
            "begin_epoch",
            lambda state, *given: begin(
                replace(state, watch=replace(state.watch, highest_epoch=0)), *given
            ),
        ),
    )


@FAMILY.replaces(
    "EPOCH-1", (epoch_claim, "fit_offsets_to_sources"), (machine, "fit_offsets_to_sources")
)
def new_partitions_at_their_end(right: Any, offsets: Any, *known: Any) -> Any:
    """A partition that appears later begins where it is, not where its log begins."""
    fit, topics = right(offsets, *known), known[1]
    ends = {p: topics[p.topic].partitions[p.partition].end for p in fit if p not in offsets}
    return fit.with_offsets(ends)


@FAMILY.replaces("EPOCH-2", (machine, "_on_record_in_term"))
def old_epochs_count(right: Any, state: State, record: Any, now_ms: int) -> Any:
    """Statuses of older epochs are judged."""
    said = record.envelope
    if isinstance(said.event, WriteStatus) and state.term and said.epoch < state.term.epoch:
        heard = HeardStatus(record.offset, said.sender, said.transaction, said.event)
        return machine._on_status(state, heard)
    return right(state, record, now_ms)


@FAMILY.replaces("EPOCH-2", (machine, "_on_record_in_term"))
def gains_before_start_count(right: Any, state: State, record: Any, now_ms: int) -> Any:
    """What was gained in front of the first START is named by it still."""
    before = state.term.collection.named_by_presence if state.term else frozenset()
    state, actions = right(state, record, now_ms)
    first = isinstance(record.envelope.event, StartCommit) and record.envelope.transaction == 1
    if first and state.term:
        state = replace(
            state,
            term=replace(
                state.term, collection=replace(state.term.collection, named_by_presence=before)
            ),
        )
    return state, actions


@FAMILY.patches("COMMIT-1")
def start_after_settlement() -> tuple[Planted, ...]:
    """START(n+1) follows the settlement of n: until then nobody may read."""
    right, heard = phase_steps.append_actions_of_phase, machine._on_own_event

    def say(state: State) -> Any:
        said = right(state)
        if state.phase is Phase.CLOSING:
            return tuple(Append(a.events[:1]) for a in said)
        if state.phase is Phase.SETTLING and state.term:
            event = phase_steps.build_start_event(state, first=False)
            start = OutgoingEvent(state.term.epoch, state.term.progress.number, event)
            return tuple(Append((*a.events, start)) for a in said)
        return said

    def heard_own(state: State, record: Any, now_ms: int) -> Any:
        said = record.envelope
        if state.phase is Phase.CLOSING and state.term and isinstance(said.event, EndCommit):
            event = phase_steps.build_start_event(state, first=False)
            said = replace(said, event=event, transaction=state.term.progress.number)
        return heard(state, replace(record, envelope=said), now_ms)

    return (
        (machine, "append_actions_of_phase", say),
        (machine, "append_actions_of_phase", say),
        (machine, "append_actions_of_phase", say),
        (machine, "_on_own_event", heard_own),
    )


@FAMILY.replaces("COMMIT-2", (machine, "_on_gain"))
def gain_names_nothing(right: Any, state: State, gained: Any, now_ms: int) -> Any:
    """A PRESENCE names nothing."""
    return right(state, frozenset(), now_ms)


@FAMILY.replaces("COMMIT-2", (machine, "_on_gain"))
def end_not_soon(right: Any, state: State, gained: Any, now_ms: int) -> Any:
    """A gain waits for the interval."""
    after, actions = right(state, gained, now_ms)
    return after.with_deadline(Timer.END, state.deadlines[Timer.END]), actions


@FAMILY.replaces("COMMIT-2", (machine, "_on_record_in_term"))
def only_gains_of_this_epoch(right: Any, state: State, record: Any, now_ms: int) -> Any:
    """Who gains without having heard of this epoch is not counted."""
    said = record.envelope
    if isinstance(said.event, Presence) and state.term and said.epoch < state.term.epoch:
        return state, ()
    return right(state, record, now_ms)


@FAMILY.replaces("EPOCH-4", (machine, "_on_record"))
def never_superseded(right: Any, state: State, record: Any, now_ms: int) -> Any:
    """A higher epoch on the log is ignored."""
    said = record.envelope
    if state.term and said.epoch > state.term.epoch:
        said = replace(said, epoch=state.term.epoch)
    return right(state, replace(record, envelope=said), now_ms)


@FAMILY.replaces("EPOCH-4", (machine, "_on_leadership_gained"))
def claims_at_once(right: Any, state: State, now_ms: int) -> Any:
    """Who was superseded claims again without any wait."""
    return recover_from_table(state, "leading") if state.phase is Phase.FOLLOWING else (state, ())


@FAMILY.replaces("EPOCH-4", (machine, "_on_leadership_gained"))
def never_claims_again(right: Any, state: State, now_ms: int) -> Any:
    """Who was superseded never claims again."""
    return (state, ()) if state.watch.superseded_ms is not None else right(state, now_ms)
