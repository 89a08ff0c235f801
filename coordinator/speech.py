"""The events that the coordinator appends, and repeats until it hears them (C3, C4, C10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    EndCommit,
    Limits,
    StartCommit,
    TableStart,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import TableView
from headgate.coordinator.actions import Action, Append
from headgate.coordinator.admission import Prefixes
from headgate.coordinator.moves import term_of
from headgate.coordinator.state import State, Term
from headgate.coordinator.transitions import Phase

FORMER_DATA_MAX = 8
"""A table's owner does not move its data more often in the life of a batch."""


def say(state: State) -> tuple[Action, ...]:
    """Append the events that the phase waits to hear; repeated after a failed append."""
    term = term_of(state)
    match state.phase:
        case Phase.STARTING:
            return (Append(term.epoch, ((term.number, start_event(state, first=True)),)),)
        case Phase.CLOSING:
            start = (term.number, start_event(state, first=False))
            return (Append(term.epoch, ((term.closing, EndCommit()), start)),)
        case Phase.EVOLVING if term.tables is not None:
            return (Append(term.epoch, ((term.number, term.tables),)),)
        case Phase.SETTLING:
            assert isinstance(term.settlement, AckCommit | AbortCommit)
            return (Append(term.epoch, ((term.closing, term.settlement),)),)
        case _:
            return ()


def prefixes(state: State, table: TableView) -> Prefixes:
    """Return the folders of this epoch and incarnation, which were never used before.

    Those where the table's owner had its data earlier in this epoch count, too: nobody could know
    yet that it would move (P9).
    """
    former = term_of(state).former_data.get(table.uuid, ())
    return Prefixes(
        f"{table.data_root}/{folder(state)}",
        term_of(state).number,
        former=tuple(f"{root}/{folder(state)}" for root in former if root != table.data_root),
    )


def with_former_data(before: Term, after: Term) -> Term:
    """P9: remember where tables had their data, as far as a read shows that it has moved.

    Whoever wrote below it could not know: participants and coordinator read tables at other times.
    """
    if after.view is before.view and after.secondaries is before.secondaries:
        return after
    known = {before.view.uuid: before.view, **{v.uuid: v for v in before.secondaries.values()}}
    moved = {
        now.uuid: known[now.uuid].data_root
        for now in (after.view, *after.secondaries.values())
        if now.uuid in known and known[now.uuid].data_root != now.data_root
    }
    if not moved:
        return after
    former = dict(after.former_data)
    for uuid, root in moved.items():
        others = (known for known in former.get(uuid, ()) if known != root)
        former[uuid] = (root, *others)[:FORMER_DATA_MAX]
    return replace(after, former_data=former)


def folder(state: State) -> str:
    """Return the folder below each table's data."""
    sender, epoch = state.identity.sender, term_of(state).epoch
    return f"headgate/{state.identity.sink}/{epoch}-{sender.incarnation}"


def addressed(state: State) -> Mapping[str, TableView]:
    """Return the secondary tables that START names; other secondary tables are only delivered."""
    known = term_of(state).secondaries
    return {name: known[name] for name in state.identity.secondaries if name in known}


def ahead(state: State, secondary: TableView) -> Offsets:
    """Q5: return where the secondary table is further than C, of the partitions that are read."""
    term = term_of(state)
    return secondary.ahead(configured(state, term.offsets), term.topic_ids)


def configured(state: State, offsets: Offsets) -> Offsets:
    """Drop the topics that the record remembers but the configuration no longer names."""
    return offsets.restricted(p for p in offsets if p.topic in state.topics)


def fixed_set(state: State) -> frozenset[TopicPartition]:
    """Return the partitions of the newest START (C4)."""
    return frozenset(configured(state, term_of(state).offsets))


def start_event(state: State, *, first: bool) -> StartCommit:
    term = term_of(state)
    tables = [primary_start(state)]
    for secondary in addressed(state).values():
        named = _table_start(state, secondary)
        tables.append(replace(named, offsets=ahead(state, secondary)))
    return StartCommit(
        settled_to=None if first else term.settled_to,
        offsets=configured(state, term.offsets),
        topic_ids=term.topic_ids,
        tables=tuple(tables),
        limits=Limits(
            state.settings.target_file_bytes,
            state.settings.commit_timeout_ms,
            state.settings.commit_records,
            state.settings.commit_bytes,
        ),
        paused=term.paused,
        folder=f"{folder(state)}/{term.number}" if state.identity.routed else "",
        configuration=state.identity.configuration,
        suspended={name: suspended.why for name, suspended in sorted(term.suspended.items())},
    )


def primary_start(state: State) -> TableStart:
    """Return the primary table as START and TABLES name it."""
    term = term_of(state)
    named = replace(_table_start(state, term.view), refused=term.refused)
    return replace(named, file_prefix=term.stamp) if term.stamp else named


def _table_start(state: State, table: TableView) -> TableStart:
    return TableStart(
        table=table.table,
        uuid=table.uuid,
        schema_id=table.schema_id,
        spec_id=table.spec_id,
        file_prefix=prefixes(state, table).of(term_of(state).number),
    )
