"""Records that need columns which the table lacks: propose, wait, then write them (S2, S4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce

from headgate.control_protocol.columns import Struct, joined, named_fields
from headgate.control_protocol.events import (
    Destination,
    Proposal,
    StartCommit,
    Tables,
    TableStart,
)
from headgate.control_protocol.identifiers import LEAP_MAX, TopicPartition
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.machine_io import Append, LogLine, OutgoingEvent
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchWritten, TableNeed
from headgate.control_protocol.schema_evolution import COLUMNS_MAX
from headgate.participant.actions import Action
from headgate.participant.batches import backlog, describe_proposal
from headgate.participant.outgoing_events import number_event
from headgate.participant.state import (
    Need,
    OpenTransaction,
    Phase,
    State,
    TableAnswer,
)

REFUSED_MS = 60_000
"""A table that was not made is asked for again after this time."""

ANSWERS_MAX = 1_000
_NAME_CHARACTERS_MAX = 200
WAIT_MS = 5_000
"""After this time without an answer, the records in front of those that wait are written."""

Step = tuple[State, tuple[Action, ...]]
Ranges = Mapping[TopicPartition, OffsetRange]


def on_batch_needs(state: State, batch: Batch, found: BatchNeeds, now_ms: int) -> Step:
    """S2: propose what the batch lacks; it was read to its end for that, and counts for nothing."""
    primary = batch.table
    of_primary = Destination(primary.table, primary.uuid, primary.schema_id)
    needs = found.tables or (TableNeed(of_primary, found.columns, found.first, found.records),)
    actions: list[Action] = []
    drafts: list[OutgoingEvent] = []
    for need in needs:
        state, said, told = _propose(state, need, found.source, now_ms)
        drafts.append(said)
        actions.append(told)
    ends = state.again or {at: span.end for at, span in batch.ranges.items()}
    state = replace(state, batch=None, retry_at_ms=None, hopeless=0, foreign=0, again=ends)
    return state, (Append(tuple(drafts)), *actions)


def _propose(
    state: State, need: TableNeed, source: str, now_ms: int
) -> tuple[State, OutgoingEvent, Action]:
    """Propose once, in place of an older proposal for the same table.

    A proposal asks for no more than any table has room for; the rest is asked for after it.
    """
    at = need.at
    older = next((each for each in state.needs if each.proposal.table == at.table), None)
    before = older.proposal if older else None
    proposal = Proposal(
        number=state.proposals + 1,
        table=at.table,
        uuid=at.uuid,
        schema_id=at.schema_id,
        columns=_join_columns(before.columns, need.columns) if before else need.columns,
        first=before.first.earliest(need.first) if before else need.first,
        records=need.records,
        source=source,
        raw=need.raw,
    )
    assert state.batch is not None, "it was a batch that met it"
    state, said = number_event(state, state.batch.transaction.number, proposal)
    others = tuple(each for each in state.needs if each is not older)
    waits = Need(said, proposal, older.since_ms if older else now_ms)
    state = replace(state, needs=(*others, waits), proposals=proposal.number)
    return state, said, LogLine(describe_proposal(proposal), event=LogEvent.COLUMNS_AWAITED)


def _join_columns(before: Struct, columns: Struct) -> Struct:
    """Return what both ask for; only the first where no table has room for all of it."""
    both = joined(before, columns)
    return both if sum(1 for _ in named_fields(both)) <= COLUMNS_MAX else before


def before_waiting_records(state: State, ranges: Ranges, now_ms: int) -> Ranges:
    """S4: return no ranges while an answer may come soon; then, and for an END, those before
    records that wait."""
    if not state.needs:
        return _clip(ranges, repeat_until(state))
    if now_ms < min(need.since_ms for need in state.needs) + WAIT_MS:
        if state.phase is not Phase.ANSWERING:
            return {}
        ranges = _clip(ranges, repeat_until(state))
    first = reduce(Offsets.earliest, (need.proposal.first for need in state.needs))
    cut = {p: OffsetRange(r.begin, _end_before(r, first.get(p))) for p, r in ranges.items()}
    return {p: r for p, r in cut.items() if not r.empty}


def repeat_until(state: State) -> Mapping[TopicPartition, int]:
    """S3: return where a batch ends that is done again; empty when that is done.

    Further records may need further columns: with them the batch would be done again for ever. A
    partition that cannot be read now holds nothing up.
    """
    there = backlog(state)
    left = any(at in there and there[at].begin < end for at, end in state.again.items())
    return state.again if left else {}


def _clip(ranges: Ranges, ends: Mapping[TopicPartition, int]) -> Ranges:
    if not ends:
        return ranges
    upto = {at: min(span.end, ends.get(at, 0)) for at, span in ranges.items()}
    return {at: OffsetRange(r.begin, upto[at]) for at, r in ranges.items() if r.begin < upto[at]}


def _end_before(range_: OffsetRange, first: int | None) -> int:
    if first is None or first < range_.begin:  # others have read it meanwhile
        return range_.end
    return min(range_.end, first)


def on_tables(state: State, tables: Tables, now_ms: int) -> State:
    """S3, N1: repeat the batch with the tables that TABLES names, in the same folder."""
    numbers = {said.number for said in tables.answers if said.sender == state.sender}
    done = [need for need in state.needs if need.proposal.number in numbers]
    if not done:
        return state
    primary = state.writing or state.following
    now = next(
        (table for table in tables.tables if primary and table.uuid == primary.table.uuid), None
    )
    return replace(
        state,
        needs=tuple(need for need in state.needs if need not in done),
        writing=_with_new_schema(state.writing, now),
        following=_with_new_schema(state.following, now),
        told=_newest_answers(state, tables, now_ms) if now is None else state.told,
        ends_due_ms=0,
    )


def _newest_answers(state: State, tables: Tables, now_ms: int) -> Mapping[str, TableAnswer]:
    """Return the newest statement about each table, in bounds."""
    told = dict(state.told)
    for start in tables.tables:
        told.pop(start.table, None)
        told[start.table] = TableAnswer(start, None if start.uuid else now_ms + REFUSED_MS)
    return dict(list(told.items())[-ANSWERS_MAX:])


def forget_refusals(state: State, now_ms: int) -> State:
    """N3, R4: forget refusals after a while, so that the table is asked for again."""
    kept = {
        name: said
        for name, said in state.told.items()
        if said.until_ms is None or now_ms < said.until_ms
    }
    return state if len(kept) == len(state.told) else replace(state, told=kept)


def _with_new_schema(
    opened: OpenTransaction | None, now: TableStart | None
) -> OpenTransaction | None:
    if opened is None or now is None or opened.table.uuid != now.uuid:
        return opened
    table = replace(opened.table, schema_id=now.schema_id, refused=now.refused)
    return replace(opened, table=table)


def answer_needs_by_start(state: State, start: StartCommit) -> State:
    """Take a START under another schema as an answer too: the records are looked at again.

    What is not answered is repeated: the coordinator may have had no room for it (G6).
    """
    primary = start.tables[0]
    now = Destination(primary.table, primary.uuid, primary.schema_id)
    still = tuple(
        replace(need, heard=False)
        for need in state.needs
        if need.proposal.table != primary.table or _destination(need) == now
    )
    return replace(state, needs=still)


def _destination(need: Need) -> Destination:
    return Destination(need.proposal.table, need.proposal.uuid, need.proposal.schema_id)


def on_own_proposal(state: State, proposal: Proposal) -> State:
    """G1, G6: note that it was heard; if others used its name, go on counting from there."""
    if state.proposals < proposal.number <= state.proposals + LEAP_MAX:
        return replace(state, proposals=proposal.number)
    heard = (
        replace(need, heard=True) if need.proposal == proposal else need for need in state.needs
    )
    return replace(state, needs=tuple(heard))


def log_ignored_fields(state: State, written: BatchWritten) -> Step:
    """S6: log once each field that becomes no column, with the records in which it was met."""
    new = {path: count for path, count in written.ignored.items() if path not in state.ignored}
    if not new:
        return state, ()
    some = ", ".join(
        f"{_shorten(path)} ({count} records)" for path, count in sorted(new.items())[:20]
    )
    more = f" and {len(new) - 20} more" if len(new) > 20 else ""
    state = replace(state, ignored=_newest_paths((*state.ignored, *new)))
    return state, (
        LogLine(
            f"ignores fields that become no column: {some}{more}",
            trouble=True,
            event=LogEvent.FIELDS_IGNORED,
        ),
    )


def _shorten(path: str) -> str:
    """Cut a name that producers made, which may be as long as a record."""
    return path if len(path) <= _NAME_CHARACTERS_MAX else f"{path[:_NAME_CHARACTERS_MAX]}..."


def _newest_paths(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(list(paths)[-1_000:])
