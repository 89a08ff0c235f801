"""Handles records that need columns which the table lacks: propose, wait, then write them
(SCHEMA-2, SCHEMA-4).

Owner of ``SchemaNeeds``. A batch that needs nothing does not come by here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from headgate.control_protocol.columns import Struct, named_fields_with_parent_ids, unify_columns
from headgate.control_protocol.events import (
    Destination,
    Proposal,
    StartCommit,
    Tables,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import Append, LogLine, OutgoingEvent
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds, TableNeed
from headgate.control_protocol.schema_evolution import COLUMNS_MAX
from headgate.participant.batches import describe_proposal, find_backlog
from headgate.participant.heard_coordinator import (
    number_event,
    number_to_continue_from,
    with_schema,
)
from headgate.participant.inputs_and_actions import Action
from headgate.participant.state import Need, Phase, SchemaNeeds, State, TableAnswer, Timer

REFUSED_MS = 60_000
"""A table that was not made is asked for again after this time."""

ANSWERS_MAX = 1_000
_IGNORED_KEPT_MAX = 1_000
_NAME_CHARACTERS_MAX = 200
WAIT_MS = 5_000
"""After this time without an answer, the records in front of those that wait are written."""

Step = tuple[State, tuple[Action, ...]]
Ranges = Mapping[TopicPartition, OffsetRange]


def on_batch_needs(state: State, batch: Batch, found: BatchNeeds, now_ms: int) -> Step:
    """SCHEMA-2: propose what the batch lacks; it was read to its end for that, and counts for
    nothing."""
    primary = batch.table
    of_primary = Destination(primary.table, primary.uuid, primary.schema_id)
    needs = found.tables or (TableNeed(of_primary, found.columns, found.first, found.records),)
    lines: list[Action] = []
    events: list[OutgoingEvent] = []
    for need in needs:
        state, said, line = _propose(state, batch, need, found.source, now_ms=now_ms)
        events.append(said)
        lines.append(line)
    again = state.needs.again or {at: span.end for at, span in batch.ranges.items()}
    state = replace(state, needs=replace(state.needs, again=again))
    return state, (Append(tuple(events)), *lines)


def _propose(
    state: State, batch: Batch, need: TableNeed, source: str, *, now_ms: int
) -> tuple[State, OutgoingEvent, Action]:
    """Propose once, in place of an older proposal for the same table.

    A proposal asks for no more than any table has room for; the rest is asked for after it.
    """
    at, needs = need.at, state.needs
    older = next((each for each in needs.open if each.proposal.table == at.table), None)
    before = older.proposal if older else None
    proposal = Proposal(
        number=needs.number + 1,
        table=at.table,
        uuid=at.uuid,
        schema_id=at.schema_id,
        columns=_unify_columns_if_room(before.columns, need.columns) if before else need.columns,
        first=before.first.minimum_per_partition(need.first) if before else need.first,
        records=need.records,
        source=source,
        raw=need.raw,
    )
    state, said = number_event(state, batch.transaction.number, proposal)
    others = tuple(each for each in needs.open if each is not older)
    waits = Need(said, proposal, older.since_ms if older else now_ms)
    needs = replace(needs, open=(*others, waits), number=proposal.number)
    text = describe_proposal(proposal)
    return replace(state, needs=needs), said, LogLine(text, event=LogEvent.COLUMNS_AWAITED)


def _unify_columns_if_room(before: Struct, columns: Struct) -> Struct:
    """Return what both ask for; only the first where no table has room for all of it."""
    both = unify_columns(before, columns)
    return both if sum(1 for _ in named_fields_with_parent_ids(both)) <= COLUMNS_MAX else before


def ranges_readable_despite_proposals(state: State, ranges: Ranges, now_ms: int) -> Ranges:
    """SCHEMA-4: return no ranges while an answer may come soon; then, and for an END, those before
    records that wait."""
    needs = state.needs
    if not needs.open:
        return _cut_ranges_at_ends_if_any(ranges, ends_of_repeated_batch(state))
    if now_ms < min(need.since_ms for need in needs.open) + WAIT_MS:
        if state.phase is not Phase.ANSWERING:
            return {}
        ranges = _cut_ranges_at_ends_if_any(ranges, ends_of_repeated_batch(state))
    first = reduce(Offsets.minimum_per_partition, (need.proposal.first for need in needs.open))
    cut = {p: OffsetRange(r.begin, _end_before_record(r, first.get(p))) for p, r in ranges.items()}
    return {p: r for p, r in cut.items() if not r.is_empty}


def ends_of_repeated_batch(state: State) -> Mapping[TopicPartition, int]:
    """SCHEMA-3: return where a batch ends that is done again; empty when that is done.

    Further records may need further columns: with them the batch would be done again for ever. A
    partition that cannot be read now holds nothing up.
    """
    again = state.needs.again
    there = find_backlog(state) if again else {}
    left = any(at in there and there[at].begin < end for at, end in again.items())
    return again if left else {}


def without_batch_once_repeated(state: State) -> State:
    """SCHEMA-3: forget up to where a batch is done again, once that is done."""
    return replace(state, needs=replace(state.needs, again=ends_of_repeated_batch(state)))


def _cut_ranges_at_ends_if_any(ranges: Ranges, ends: Mapping[TopicPartition, int]) -> Ranges:
    """Cut the ranges at ``ends``, and drop those without one; but without any ends all stay."""
    if not ends:
        return ranges
    upto = {at: min(span.end, ends.get(at, 0)) for at, span in ranges.items()}
    return {at: OffsetRange(r.begin, upto[at]) for at, r in ranges.items() if r.begin < upto[at]}


def _end_before_record(range_: OffsetRange, record_offset: int | None) -> int:
    if record_offset is None or record_offset < range_.begin:  # others have read it meanwhile
        return range_.end
    return min(range_.end, record_offset)


def on_tables_event(state: State, tables: Tables, now_ms: int) -> State:
    """SCHEMA-3, CREATE-1: repeat the batch with the tables that TABLES names, in the same
    folder."""
    numbers = {said.number for said in tables.answers if said.sender == state.sender}
    done = [need for need in state.needs.open if need.proposal.number in numbers]
    if not done:
        return state
    still = tuple(need for need in state.needs.open if need not in done)
    primary = state.term.writing or state.term.following
    uuid = primary.table.uuid if primary else None
    now = next((table for table in tables.tables if table.uuid == uuid), None)
    answers = _answers_updated_by(state, tables, now_ms) if now is None else state.needs.answers
    answered = replace(state, needs=replace(state.needs, open=still, answers=answers))
    renewed = answered if now is None else with_schema(answered, now)
    return renewed.with_deadline(Timer.LOOK, None)


def _answers_updated_by(state: State, tables: Tables, now_ms: int) -> Mapping[str, TableAnswer]:
    """Return the newest statement about each table, in bounds."""
    answers = dict(state.needs.answers)
    for start in tables.tables:
        answers.pop(start.table, None)
        answers[start.table] = TableAnswer(start, None if start.uuid else now_ms + REFUSED_MS)
    return dict(list(answers.items())[-ANSWERS_MAX:])


def forget_expired_refusals(state: State, now_ms: int) -> State:
    """CREATE-3, ROUTE-4: forget refusals after a while, so that the table is asked for again."""
    kept = {
        name: answer
        for name, answer in state.needs.answers.items()
        if answer.until_ms is None or now_ms < answer.until_ms
    }
    if len(kept) == len(state.needs.answers):
        return state
    return replace(state, needs=replace(state.needs, answers=kept))


def forget_proposals_of_suspended_tables(state: State, suspended: Mapping[str, str]) -> State:
    """SUSPEND-2: forget what was asked, and what TABLES said, of tables that are suspended
    since."""
    kept = {name: said for name, said in state.needs.answers.items() if name not in suspended}
    # their records are diverted, and nobody may be able to answer
    still = tuple(need for need in state.needs.open if need.proposal.table not in suspended)
    return replace(state, needs=replace(state.needs, answers=kept, open=still))


def forget_proposals_of_lost_partitions(state: State) -> State:
    """SCHEMA-4: forget what only records of partitions wait for that somebody else owns now: that
    one meets them again, and here nothing waits."""
    still = tuple(
        need for need in state.needs.open if need.proposal.first.keys() & state.work.owned.keys()
    )
    return replace(state, needs=replace(state.needs, open=still))


def forget_proposals_and_answers(state: State) -> State:
    """EPOCH-3: another coordinator knows nothing of the proposals; the records are met again."""
    needs = state.needs
    return replace(state, needs=SchemaNeeds(number=needs.number, ignored=needs.ignored))


def drop_or_renumber_proposals(state: State, start: StartCommit) -> State:
    """Take a START under another schema as an answer too: the records are looked at again.

    What is not answered is asked again, under a new number, for what was heard before counts no
    more (LOG-5): the coordinator may have had no room for it (LOG-6).
    """
    primary = start.tables[0]
    now = Destination(primary.table, primary.uuid, primary.schema_id)
    still: list[Need] = []
    for need in state.needs.open:
        if need.proposal.table != primary.table or _destination_of(need) == now:
            state, said = number_event(state, need.said.transaction, need.proposal)
            still.append(Need(said, need.proposal, need.since_ms))
    return replace(state, needs=replace(state.needs, open=tuple(still)))


def _destination_of(need: Need) -> Destination:
    return Destination(need.proposal.table, need.proposal.uuid, need.proposal.schema_id)


def on_own_proposal(state: State, proposal: Proposal) -> State:
    """LOG-1, LOG-6: note that it was heard; if others used its name, go on counting from there."""
    needs = state.needs
    if (counted := number_to_continue_from(needs.number, proposal.number)) != needs.number:
        return replace(state, needs=replace(needs, number=counted))
    heard = tuple(
        replace(need, heard=True) if need.proposal == proposal else need for need in needs.open
    )
    return replace(state, needs=replace(needs, open=heard))


def log_newly_ignored_fields(state: State, ignored: Mapping[str, int]) -> Step:
    """SCHEMA-6: log once each field that becomes no column, with the records in which it was
    met."""
    new = {path: count for path, count in ignored.items() if path not in state.needs.ignored}
    if not new:
        return state, ()
    some = ", ".join(
        f"{_shorten_field_path(path)} ({count} records)" for path, count in sorted(new.items())[:20]
    )
    more = f" and {len(new) - 20} more" if len(new) > 20 else ""
    # Sorted: the same state and event must give the same state in every process.
    newest = [*sorted(state.needs.ignored), *sorted(new)][-_IGNORED_KEPT_MAX:]
    state = replace(state, needs=replace(state.needs, ignored=frozenset(newest)))
    text = f"ignores fields that become no column: {some}{more}"
    return state, (LogLine(text, trouble=True, event=LogEvent.FIELDS_IGNORED),)


def _shorten_field_path(path: str) -> str:
    """Cut a name that producers made, which may be as long as a record."""
    return path if len(path) <= _NAME_CHARACTERS_MAX else f"{path[:_NAME_CHARACTERS_MAX]}..."
