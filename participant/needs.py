"""Records that need columns which the table lacks: propose, wait, write them after all (S2, S4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headgate.control_protocol.columns import joined
from headgate.control_protocol.events import Answer, Proposal, StartCommit, Tables, TableStart
from headgate.control_protocol.identifiers import LEAP_MAX, TopicPartition
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchWritten
from headgate.participant.actions import Action, Append, Tell
from headgate.participant.speech import draft
from headgate.participant.state import Need, OpenTransaction, State
from headgate.participant.waiting import words

WAIT_MS = 5_000
"""After so long without an answer, what lies before the records that wait is written."""

Step = tuple[State, tuple[Action, ...]]
Ranges = Mapping[TopicPartition, OffsetRange]


def met(state: State, batch: Batch, found: BatchNeeds, now_ms: int) -> Step:
    """S2: the batch was read to its end for all that it needs; nothing of it counts."""
    before = state.need.proposal if state.need else None
    proposal = Proposal(
        number=state.proposals + 1,
        table=batch.table.table,
        uuid=batch.table.uuid,
        schema_id=batch.table.schema_id,
        columns=joined(before.columns, found.columns) if before else found.columns,
        first=_earliest(before.first, found.first) if before else found.first,
        records=found.records,
        source=found.source,
    )
    state, said = draft(state, batch.transaction.number, proposal)
    since_ms = state.need.since_ms if state.need else now_ms
    state = replace(
        state,
        batch=None,
        need=Need(said, proposal, since_ms),
        proposals=proposal.number,
        retry_at_ms=None,
        hopeless=0,
        foreign=0,
    )
    return state, (Append((said,)), Tell(words(proposal), event=LogEvent.COLUMNS_AWAITED))


def _earliest(one: Offsets, other: Offsets) -> Offsets:
    both = one.keys() | other.keys()
    return Offsets({p: min(some[p] for some in (one, other) if p in some) for p in both})


def beside_need(state: State, ranges: Ranges, now_ms: int) -> Ranges:
    """S4: nothing while the answer may come soon; then what lies before the records that wait."""
    if state.need is None:
        return ranges
    if now_ms < state.need.since_ms + WAIT_MS:
        return {}
    first = state.need.proposal.first
    cut = {p: OffsetRange(r.begin, _end(r, first.get(p))) for p, r in ranges.items()}
    return {p: r for p, r in cut.items() if not r.empty}


def _end(range_: OffsetRange, first: int | None) -> int:
    if first is None or first < range_.begin:  # others have read it meanwhile
        return range_.end
    return min(range_.end, first)


def answered(state: State, tables: Tables) -> State:
    """S3: the batch is done again under the schema that TABLES names, in the same folder."""
    need = state.need
    if need is None or Answer(state.sender, need.proposal.number) not in tables.answers:
        return state
    now = next((table for table in tables.tables if table.uuid == need.proposal.uuid), None)
    return replace(
        state,
        need=None,
        writing=_renewed(state.writing, now),
        following=_renewed(state.following, now),
        ends_due_ms=0,
    )


def _renewed(opened: OpenTransaction | None, now: TableStart | None) -> OpenTransaction | None:
    if opened is None or now is None or opened.table.uuid != now.uuid:
        return opened
    table = replace(opened.table, schema_id=now.schema_id, refused=now.refused)
    return replace(opened, table=table)


def by_start(state: State, start: StartCommit) -> State:
    """A START under another schema answers too: the records are looked at again."""
    if state.need is None:
        return state
    lead, proposal = start.tables[0], state.need.proposal
    same = (lead.uuid, lead.schema_id) == (proposal.uuid, proposal.schema_id)
    return state if same else replace(state, need=None)


def heard_own(state: State, proposal: Proposal) -> State:
    """G1, G6: it was heard; said in its name by others, it counts on from there."""
    if state.proposals < proposal.number <= state.proposals + LEAP_MAX:
        return replace(state, proposals=proposal.number)
    if state.need is not None and state.need.proposal == proposal:
        return replace(state, need=replace(state.need, heard=True))
    return state


def told_ignored(state: State, written: BatchWritten) -> Step:
    """S6: tell once of each field that becomes no column, with the records that it was met in."""
    new = {path: count for path, count in written.ignored.items() if path not in state.ignored}
    if not new:
        return state, ()
    some = ", ".join(f"{path} ({count} records)" for path, count in sorted(new.items())[:20])
    more = f" and {len(new) - 20} more" if len(new) > 20 else ""
    state = replace(state, ignored=_remembered((*state.ignored, *new)))
    return state, (
        Tell(
            f"ignores fields that become no column: {some}{more}",
            trouble=True,
            event=LogEvent.FIELDS_IGNORED,
        ),
    )


def _remembered(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(list(paths)[-1_000:])
