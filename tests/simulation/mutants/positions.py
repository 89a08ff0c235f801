"""POSITION-1 to POSITION-4: gains and releases, where a position comes from, what a settlement does
to work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol.events import StartCommit
from headgate.control_protocol.identifiers import ControlOffset
from headgate.control_protocol.offsets import Offsets
from headgate.participant import batches, heard_coordinator
from headgate.participant import machine as participant
from headgate.participant.batches import drop_unannounced_work, empty_written_range
from headgate.participant.state import State

FAMILY = Family()

GAINED = (participant, "_announce_gain")
SETTLED = (participant, "apply_settlement")


@FAMILY.replaces("POSITION-1", (participant, "_try_announce_and_release"))
def gives_up_silently(right: Any, state: State) -> Any:
    """Work is not announced when partitions are given up."""
    return participant.without_lost_partitions(drop_unannounced_work(state), state.work.leaving), ()


@FAMILY.replaces("POSITION-1", GAINED)
def gain_unsaid(right: Any, state: State, gained: Any, kind: Any) -> Any:
    """A gain is not announced; the next settlement gives the position."""
    after, _ = right(state, gained, kind)
    owned = {
        p: replace(own, since=ControlOffset(-1)) if p in gained else own
        for p, own in after.work.owned.items()
    }
    return replace(
        after,
        work=replace(after.work, owned=owned),
        said=replace(after.said, unheard=state.said.unheard),
    ), ()


@FAMILY.replaces("POSITION-2", (batches, "_with_first_settled_positions"))
def any_position(right: Any, owned: Any, expected: Offsets, settled_to: Any) -> Any:
    """The position is C of any settlement, however old its L."""
    return {
        p: replace(own, work=empty_written_range(expected[p]))
        if own.work is None and p in expected
        else own
        for p, own in owned.items()
    }


@FAMILY.patches("POSITION-2")
def position_of_an_older_start() -> tuple[Planted, ...]:
    """A gained partition begins where the newest START said, whenever that was."""
    newest: dict[tuple[Any, Any], Offsets] = {}
    gained, started = participant._announce_gain, participant._on_start

    def remembers(state: State, record: Any, start: StartCommit) -> State:
        newest[state.sender, state.term.epoch] = start.offsets
        return started(state, record, start)

    def gains(state: State, partitions: Any, kind: Any) -> Any:
        state, actions = gained(state, partitions, kind)
        known = newest.get((state.sender, state.term.epoch), Offsets())
        owned = {
            p: replace(own, work=empty_written_range(known[p]))
            if p in partitions and p in known
            else own
            for p, own in state.work.owned.items()
        }
        return replace(state, work=replace(state.work, owned=owned)), actions

    return (participant, "_on_start", remembers), (participant, "_announce_gain", gains)


@FAMILY.patches("POSITION-2")
def position_from_the_group() -> tuple[Planted, ...]:
    """The position is what the last owner stored in the group when it announced its work."""
    stored: dict[Any, int] = {}
    gained, announce = participant._announce_gain, participant.append_status

    def announces(state: State, transaction: Any) -> Any:
        stored.update((p, offset) for p, offset in state.positions.items())
        return announce(state, transaction)

    def gains(state: State, partitions: Any, kind: Any) -> Any:
        state, actions = gained(state, partitions, kind)
        owned = {
            p: replace(own, work=empty_written_range(stored[p]))
            if p in partitions and p in stored
            else own
            for p, own in state.work.owned.items()
        }
        return replace(state, work=replace(state.work, owned=owned)), actions

    return (participant, "append_status", announces), (participant, "_announce_gain", gains)


@FAMILY.replaces("POSITION-3", SETTLED)
def no_drop(right: Any, state: State, offsets: Offsets, settled_to: Any) -> State:
    """Work that contradicts C is kept."""
    if settled_to < state.term.settled_to:
        return state
    pending = tuple(
        own for own in state.said.pending if heard_coordinator._is_late(own, settled_to)
    )
    chained = heard_coordinator._offsets_after_late_statuses(offsets, pending)
    owned = batches._with_first_settled_positions(state.work.owned, chained, settled_to)
    return replace(
        state,
        said=replace(state.said, pending=pending),
        term=replace(state.term, settled_to=settled_to),
        work=replace(state.work, owned=owned),
    )


@FAMILY.replaces("POSITION-3", SETTLED, unhealed=True)
def drops_by_halves(right: Any, state: State, offsets: Offsets, settled_to: Any) -> State:
    """Only the partition that differs is dropped; the files mix them."""
    after: State = right(state, offsets, settled_to)
    if after.work.files or not state.work.files:
        return after
    owned = {
        p: own
        for p, own in state.work.owned.items()
        if own.work and after.positions.get(p) == own.work.range.begin
    }
    return replace(
        after, work=replace(after.work, owned={**after.work.owned, **owned}, files=state.work.files)
    )


@FAMILY.patches("POSITION-3")
def older_ack_applies() -> tuple[Planted, ...]:
    """An ACK that comes twice, or late, is obeyed again."""
    heard, settled = participant._on_coordinator_event, participant.apply_settlement

    def obeys(state: State, record: Any, now_ms: int) -> Any:
        return heard(
            replace(state, term=replace(state.term, settled_to=ControlOffset(0))), record, now_ms
        )

    def applies(state: State, offsets: Offsets, settled_to: Any) -> State:
        return settled(
            replace(state, term=replace(state.term, settled_to=ControlOffset(0))),
            offsets,
            settled_to,
        )

    return (participant, "_on_coordinator_event", obeys), (participant, "apply_settlement", applies)


@FAMILY.replaces("POSITION-3", (heard_coordinator, "_offsets_after_late_statuses"))
def not_chained(right: Any, offsets: Offsets, pending: Any) -> Offsets:
    """Late statuses are not chained onto C."""
    return offsets


@FAMILY.replaces("POSITION-4", (heard_coordinator, "_is_late"))
def late_is_refused(right: Any, own: Any, settled_to: Any) -> bool:
    """A status behind L is taken for refused: its range is read and announced again."""
    return False
