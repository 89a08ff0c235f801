"""What settlements and new epochs do to positions and announced statuses (P1, P6, P7, P8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.errors import OtherConfiguration
from headgate.control_protocol.events import DIGEST, LogRecord, Settlement, StartCommit
from headgate.control_protocol.identifiers import (
    LEAP_MAX,
    ControlOffset,
    Epoch,
    Sender,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.participant.batches import drop_work, empty_claim
from headgate.participant.state import Ownership, OwnStatus, State


def is_believed(state: State, record: LogRecord) -> bool:
    """Return whether to believe an event: P1 ignores lower epochs, G6 leaps and impossible Ls.

    A START is believed however far it leaps, for its coordinator may have had to claim above words
    that this participant ignored. A START of the true coordinator leads back from a false one.
    """
    said, known = record.envelope, state.epoch
    match said.event:
        case StartCommit(settled_to=place) | Settlement(settled_to=place):
            possible = place is None or place <= record.offset
        case _:
            possible = True
    if known == 0:
        return possible
    near = known <= said.epoch <= known + LEAP_MAX
    far = abs(said.epoch - known) > LEAP_MAX
    return possible and (near or (far and isinstance(said.event, StartCommit)))


def enter_epoch(state: State, epoch: Epoch) -> State:
    """P1: enter a higher epoch: all work, announced statuses and known positions are void."""
    return replace(
        drop_work(state),
        epoch=epoch,
        writing=None,
        following=None,
        ended=TransactionNumber(0),
        answered=TransactionNumber(0),
        settled_to=ControlOffset(0),
        pending=(),
        failure=None,
        failed=frozenset(),
        last_read_done=False,
        looked=frozenset(),
        needs=(),
        told={},
        again={},
        stop=None,
        owned={p: replace(own, work=None) for p, own in state.owned.items()},
    )


def apply_settlement(state: State, offsets: Offsets, settled_to: ControlOffset) -> State:
    """Apply C, settled up to L. A settlement older than one already applied is ignored."""
    if settled_to < state.settled_to:
        return state
    pending = tuple(own for own in state.pending if _is_late(own, settled_to))
    expected = _chain_late_statuses(offsets, pending)
    unheeded = _count_unheeded(state, offsets, settled_to)
    state = replace(state, pending=pending, settled_to=settled_to, unheeded=unheeded)
    if any(_contradicts(expected, p, own) for p, own in state.owned.items()):
        state = drop_work(state)
        state = replace(state, owned={p: _move_to(p, o, expected) for p, o in state.owned.items()})
    return replace(state, owned=_learn_positions(state.owned, expected, settled_to))


def _count_unheeded(state: State, offsets: Offsets, settled_to: ControlOffset) -> int:
    """G6: return how many statuses in a row had no effect: C has not reached what they claim."""
    count = state.unheeded
    for own in state.pending:
        if not _is_late(own, settled_to) and any(len(span) for span in own.ranges.values()):
            reached = all(offsets.get(p, span.end) >= span.end for p, span in own.ranges.items())
            count = 0 if reached else count + 1
    return count


def _contradicts(expected: Offsets, partition: TopicPartition, own: Ownership) -> bool:
    """Return whether C contradicts the position; a partition that C leaves out does not count."""
    return (
        own.work is not None
        and partition in expected
        and expected[partition] != own.work.range.begin
    )


def _is_late(own: OwnStatus, settled_to: ControlOffset) -> bool:
    """P8: return whether the status is late, so that it waits for the next settlement."""
    return own.offset is None or own.offset >= settled_to


def _chain_late_statuses(offsets: Offsets, pending: tuple[OwnStatus, ...]) -> Offsets:
    """P7: return what C will be once the own late statuses are judged, as the coordinator would."""
    for own in pending:
        if offsets.admits(own.ranges):
            offsets = offsets.after(own.ranges)
    return offsets


def _move_to(partition: TopicPartition, own: Ownership, expected: Offsets) -> Ownership:
    known = own.work is not None and partition in expected
    return replace(own, work=empty_claim(expected[partition])) if known else own


def _learn_positions(
    owned: Mapping[TopicPartition, Ownership], expected: Offsets, settled_to: ControlOffset
) -> Mapping[TopicPartition, Ownership]:
    """P6: take a gained partition's position from the first settlement behind its PRESENCE."""
    return {
        p: replace(own, work=empty_claim(expected[p]))
        if own.work is None and own.since is not None and own.since < settled_to and p in expected
        else own
        for p, own in owned.items()
    }


def find_other_configuration(
    state: State, coordinator: Sender, start: StartCommit
) -> OtherConfiguration | None:
    """P11: return the error if this participant's configuration differs from START's.

    What it wrote would go elsewhere, or be another row than its file says.
    """
    own = {**state.configuration}
    if state.table is not None:
        own["table.identifier"] = state.table
    differences = describe_differences(start, own)
    if not differences:
        return None
    return OtherConfiguration(
        f"sink {state.sink!r} is coordinated by {coordinator.member} with another sink file than "
        f"this participant's: {differences}",
        "give all participants of the sink the same file (to change these parts, stop all of them "
        "first), or this one another name and group",
    )


def describe_differences(start: StartCommit, own: Mapping[str, str]) -> str:
    """P11: say in which parts both have, START's configuration and this one differ, if any."""
    said = {"table.identifier": start.tables[0].table, **start.configuration}
    other = sorted(name for name in own.keys() & said.keys() if own[name] != said[name])
    return "; ".join(_describe_difference(name, said[name], own[name]) for name in other)


def _describe_difference(name: str, said: str, own: str) -> str:
    if own.startswith(DIGEST) or said.startswith(DIGEST):
        return f"{name} is not the same"
    return f"{name} is {said!r} there and {own!r} here"
