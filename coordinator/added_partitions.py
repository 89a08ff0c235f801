"""Holds partitions that are added to a topic whose records have keys, and then admits them (KEY-8).

A key may have moved there, and producers learn of new partitions one after the other. So nobody
reads them until all that could still be sent to the older ones is in C; from then on what is in a
younger partition is newer. To hold longer is always right: who begins anew does so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from headgate.control_protocol.commit_record import PartitionCohorts
from headgate.control_protocol.errors import GrowthUnordered, KeyedPartitionsAdded
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import TopicState
from headgate.coordinator.phase_steps import term_of
from headgate.coordinator.state import HeldPartitions, Identity, State

Topics = Mapping[str, TopicState]

_ANEW = "the topic was re-created: fill another table"
_RESET = (
    "reset the sink with a topic of its final number of partitions "
    "(docs/guides/upserts-and-deletes.md says how); "
    '"wait-any" is for producers whose keys move to new partitions only'
)
_WAIT = (
    'set changes.on_partitions_added = "wait" (docs/guides/upserts-and-deletes.md says what it '
    "requires of producers) "
    "or, where it is refused, fill another table"
)


def hold_added_partitions(
    state: State,
    known_offsets: Offsets,
    known_topic_ids: Mapping[str, TopicId],
    topics: Topics,
    *,
    now_ms: int,
) -> tuple[State, tuple[LogLine, ...]]:
    """Hold what the topics have beyond the known partitions, which were those of the known ids.

    Raises ``KeyedPartitionsAdded`` where the settings say so, as soon as something is in them, and
    ``GrowthUnordered`` at once where they can never be read.
    """
    held: list[HeldPartitions] = []
    counts: dict[str, int] = {}
    for at in known_offsets:
        counts[at.topic] = max(counts.get(at.topic, 0), at.partition + 1)
    for topic, now in sorted(topics.items()):
        count = counts.get(topic, 0)
        total = 1 + max((*now.partitions, *now.silent), default=-1)
        if not count or not _may_feed_keyed_table(state.identity, topic):
            continue
        if count < total and known_topic_ids.get(topic, now.topic_id) != now.topic_id:
            raise _added_partitions_error(topic, count, total, _ANEW)
        held += _merge_added_into_held(
            state, HeldPartitions(topic, now.topic_id, count, total, now_ms)
        )
    for each in (each for each in held if not each.admitted):
        unordered = state.identity.multiples_only and each.upto % each.first != 0
        if state.identity.growth_ms is not None and unordered:
            raise GrowthUnordered(
                f"{each.topic} has grown from {each.first} to {each.upto} partitions, which is no "
                "multiple: by hash, keys also move between the partitions that were there before, "
                "and nothing tells which of a key's records is newer",
                _RESET,
            )
        logs = topics[each.topic].partitions
        if state.identity.growth_ms is None and any(logs[n].end for n in logs if n >= each.first):
            way_out = _RESET if unordered else _WAIT
            raise _added_partitions_error(each.topic, each.first, each.upto, way_out)
    told = tuple(_held_log_line(state, each) for each in held if each.since_ms == now_ms)
    return replace(state, held=tuple(held)), told


def without_new_topics_of_unknown_size(
    state: State,
    offsets: Offsets,
    known_offsets: Offsets,
    known_topic_ids: Mapping[str, TopicId],
    *,
    topics: Topics,
) -> tuple[Offsets, tuple[LogLine, ...]]:
    """Return the offsets without those of topics that are new, and whose last partition is silent.

    Begun without it, such a topic would seem to have grown once that partition has a leader.
    """
    known = {at.topic for at in known_offsets}
    waiting = {
        topic: max(now.silent)
        for topic, now in sorted(topics.items())
        if topic not in known and _may_feed_keyed_table(state.identity, topic)
        if max(now.silent, default=-1) > max(now.partitions, default=-1)
    }
    told = tuple(
        LogLine(
            f"{topic}: not read before {TopicPartition(topic, last)} has a leader: a keyed table "
            "must know how many partitions a topic begins with",
            event=LogEvent.PARTITIONS_HELD,
        )
        for topic, last in waiting.items()
        if topic not in known_topic_ids
    )
    return offsets.restricted_to(at for at in offsets if at.topic not in waiting), told


def _merge_added_into_held(state: State, added: HeldPartitions) -> list[HeldPartitions]:
    """Return what is known of the topic with what was added behind it, which is younger.

    What it admitted before is held again where no commit has it: the epoch may have ended too
    early. How long it was held, and where older partitions ended then, is as true as before.
    """
    known = [
        each for each in state.held if (each.topic, each.topic_id) == (added.topic, added.topic_id)
    ]
    admitted = [replace(each, admitted=True) for each in known if each.upto <= added.first]
    held = [replace(each, admitted=False) for each in known if each.first >= added.first]
    if held and held[0].first != added.first:  # the table went back, or others admitted a part
        held = []
    reached = held[-1].upto if held else added.first
    more = [replace(added, first=reached)] if reached < added.upto else []
    return [*admitted, *held, *more]


def with_elapsed_holds_noted(state: State, now_ms: int) -> State:
    """Note what has been held for long enough when the sources are asked now."""
    growth_ms = state.identity.growth_ms
    if growth_ms is None or not state.held:
        return state
    held = tuple(
        replace(each, ripe=each.ripe or now_ms - each.since_ms >= growth_ms) for each in state.held
    )
    return replace(state, held=held)


class Admission(NamedTuple):
    """Holds what an admission makes of the state, and all cohorts of the term with the new ones."""

    state: State
    cohorts: PartitionCohorts
    lines: tuple[LogLine, ...]


def admit_due_partitions(state: State, topics: Topics) -> Admission:
    """Admit what is ripe, and whose older partitions are read as far as they went then."""
    term = term_of(state)
    held: list[HeldPartitions] = []
    cohorts, told = dict(term.sources.cohorts), []
    for each in state.held:
        if each.admitted:
            held.append(each)
            continue
        now = topics[each.topic]
        # Not before it is ripe: until then a producer that does not know the new partitions may
        # still send a key's older record to the old one, behind an earlier mark (KEY-8).
        marks = each.marks if each.marks or not each.ripe else _older_partition_ends(each, now)
        behind = (
            None
            if marks is None
            else _describe_unread_older_partitions(each, marks, term.progress.offsets)
        )
        here = all(at.partition in now.partitions for at in each.partitions)
        if here and behind == "":
            cohorts[each.topic] = (*cohorts.get(each.topic, ()), each.first)
            told.append(
                LogLine(
                    f"{_describe_partitions(each)}: read from now on",
                    event=LogEvent.PARTITIONS_ADMITTED,
                )
            )
            held.append(replace(each, marks=marks, admitted=True))
            continue
        held.append(replace(each, marks=marks))
        if behind and each.marks is None:
            text = f"{_describe_partitions(each)}: held until the table has {behind}"
            told.append(LogLine(text, event=LogEvent.PARTITIONS_HELD))
    return Admission(replace(state, held=tuple(held)), cohorts, tuple(told))


def held_partitions(state: State) -> frozenset[TopicPartition]:
    """Return all partitions that are held."""
    return frozenset(at for each in state.held if not each.admitted for at in each.partitions)


def partitions_not_read_yet(state: State) -> frozenset[TopicPartition]:
    """Return those whose records come later, so that valid-through waits for them (COMMIT-4).

    Of a topic that has not begun, one stands for all.
    """
    begun = {at.topic for at in term_of(state).progress.offsets}
    held = held_partitions(state) if state.identity.growth_ms is not None else frozenset()
    # Only new topics are asked about: for each one all routes are gone through.
    return held | {
        TopicPartition(topic, 0)
        for topic in state.topics - begun
        if _may_feed_keyed_table(state.identity, topic)
    }


def _describe_partitions(held: HeldPartitions) -> str:
    """Name the partitions."""
    first, last = held.partitions[0], held.partitions[-1]
    return str(first) if first == last else f"{first} to {last.partition}"


def _older_partition_ends(held: HeldPartitions, now: TopicState) -> tuple[int, ...] | None:
    """Return where the older partitions end; ``None`` while one of them cannot be asked."""
    ends = [now.partitions[n].end for n in range(held.first) if n in now.partitions]
    return tuple(ends) if len(ends) == held.first else None


def _describe_unread_older_partitions(
    held: HeldPartitions, older_ends: tuple[int, ...], offsets: Offsets
) -> str:
    """Say which older partitions are not read as far as their marks."""
    older = {TopicPartition(held.topic, number): mark for number, mark in enumerate(older_ends)}
    return ", ".join(f"{at} up to {m}" for at, m in older.items() if offsets.get(at, -1) < m)


def _may_feed_keyed_table(identity: Identity, topic: str) -> bool:
    return identity.keyed or identity.routed_keys.may_feed_keyed_table(topic)


def _held_log_line(state: State, held: HeldPartitions) -> LogLine:
    growth_ms = state.identity.growth_ms
    if growth_ms is None:
        text = "added and empty; the sink stops when there are records in it (HG-242)"
    else:
        text = (
            f"added, and held for {growth_ms} ms at least: not read until all that the older "
            "partitions hold then is in the table"
        )
    return LogLine(f"{_describe_partitions(held)}: {text}", event=LogEvent.PARTITIONS_HELD)


def _added_partitions_error(
    topic: str, first: int, upto: int, way_out: str
) -> KeyedPartitionsAdded:
    names = ", ".join(str(TopicPartition(topic, number)) for number in range(first, upto))
    return KeyedPartitionsAdded(
        f"{names}: added since a keyed table began to be filled, and records of a key may have "
        "moved there from another partition",
        way_out,
    )
