"""Finds out which offsets of Kafka a table holds that Iceberg's Kafka Connect sink has filled.

A worker announces the files of a commit, and the offsets that they go up to, in one transaction of
Kafka that also moves its group; the coordinator commits the files to the table later. So the group
is where the last announcement ends, and the table is somewhere behind it (rules TAKEOVER-3 to
TAKEOVER-7). Pure: what was read comes in, what to do goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets

_CLOCKS_APART_MS = 600_000
"""Workers' clocks are taken to differ by less."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """One worker's transaction for one commit, at ``first`` to ``last`` of a control partition.

    ``files``: rows by path, for one table, empty files left out. ``offsets``: the next ones behind
    them, of partitions of which something was read. ``time_ms`` is by the worker's clock.
    """

    control_partition: int
    first: int
    last: int
    time_ms: int
    files: Mapping[str, int]
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class TableHistory:
    """What the branch says: every file that it has or had, as far as snapshots are left.

    ``mark``: per control partition the next offset that the connector's newest commit had consumed,
    empty without one. ``whole``: no snapshot of the branch is missing.
    """

    ever: frozenset[str]
    mark: Mapping[int, int]
    whole: bool


@dataclass(frozen=True, slots=True)
class ControlLog:
    """What was read: the announcements of the group, and where the control partitions begin.

    ``oldest_ms``: the time of the oldest record that is left in a control partition.
    """

    announcements: Sequence[Announcement]
    begins: Mapping[int, int]
    oldest_ms: Mapping[int, int]

    def is_complete_since(self, time_ms: int) -> bool:
        """Return whether nothing that was announced later than this has expired (TAKEOVER-7)."""
        return all(
            partition in self.oldest_ms and time_ms > self.oldest_ms[partition] + _CLOCKS_APART_MS
            for partition, begin in self.begins.items()
            if begin
        )


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One source partition: the table holds exactly what lies before ``start`` (``None``: nobody
    knows), the group is at ``group``.

    ``filled``: where the newest announcement ends of which the table has rows. What lies between
    there and ``start`` was for other tables.
    """

    partition: TopicPartition
    start: int | None
    group: int
    filled: int = 0


@dataclass(frozen=True, slots=True)
class TakeoverPlan:
    """What a table holds, and what stands in the way of going on from there.

    ``outstanding``: rows by path of files that were announced and may still be committed.
    ``lost``: rows by path of files that the connector passed over. ``by_mark``: announcements that
    count as present by the table's mark alone. ``doubts``: why re-reading would not be exact.
    ``doubts_of_adoption``: why adding the outstanding files would not be.
    """

    partitions: tuple[PartitionPlan, ...] = ()
    outstanding: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    by_mark: int = 0
    doubts: tuple[str, ...] = ()
    doubts_of_adoption: tuple[str, ...] = ()

    @property
    def reread_offsets(self) -> Offsets:
        """Return where to read from. Only without ``doubts``."""
        return Offsets({p.partition: p.start for p in self.partitions if p.start is not None})

    @property
    def group_offsets(self) -> Offsets:
        """Return where to go on once everything outstanding is in the table."""
        return Offsets({p.partition: p.group for p in self.partitions})


@dataclass(slots=True)
class _Judged:
    """Sorts announcements into those that the table holds and the others."""

    history: TableHistory
    outstanding: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    halves: list[Announcement] = field(default_factory=list)
    by_mark: int = 0

    def is_in_table_noting_missing(self, announced: Announcement) -> bool:
        """TAKEOVER-4: all of its files are in the branch's history, or the mark speaks for them."""
        missing = {path: n for path, n in announced.files.items() if path not in self.history.ever}
        if not missing:
            return True
        passed = announced.last < self.history.mark.get(announced.control_partition, -1)
        if passed and not self.history.whole:
            self.by_mark += 1
            return True
        if len(missing) < len(announced.files):
            self.halves.append(announced)
        (self.lost if passed else self.outstanding).update(missing)
        return False


def plan_takeover(
    log: ControlLog,
    history: TableHistory,
    group: Mapping[TopicPartition, int],
    *,
    began: Mapping[TopicPartition, int] | None = None,
    heals: bool = False,
) -> TakeoverPlan:
    """Return what the table holds.

    ``began``: where the connector began with a partition, by a person's word. ``heals``: adoption
    also adds what the connector lost.
    """
    judged = _Judged(history)
    present = [judged.is_in_table_noting_missing(each) for each in log.announcements]
    told = _group_by_partition(log.announcements, present)
    moved = [
        text for at in sorted({*told, *group}) for text in _describe_moved_group(at, told, group)
    ]
    unknown = [*_describe_expired_announcements(log, history), *moved]
    partitions, doubts = [], [*unknown, *map(_describe_partly_committed, judged.halves)]
    for at in sorted({*told, *group}):
        of_group = group.get(at, max((end for end, *_ in told.get(at, ())), default=0))
        start, found = _find_start_and_doubts(at, told.get(at, []), log, (began or {}).get(at))
        doubts += found
        start = start if at in told else of_group
        filled = max((end for end, a, there in told.get(at, ()) if there and a.files), default=0)
        partitions.append(PartitionPlan(at, start, of_group, filled))
    if judged.lost and not heals:
        unknown.append(
            f"the connector announced {count_of(sum(judged.lost.values()), 'row')} in "
            f"{count_of(len(judged.lost), 'file')}, and went on without committing them"
        )
    return TakeoverPlan(
        tuple(partitions),
        judged.outstanding,
        judged.lost,
        judged.by_mark,
        doubts=tuple(doubts),
        doubts_of_adoption=tuple(unknown),
    )


def combine_plans(plans: Mapping[str, TakeoverPlan]) -> TakeoverPlan:
    """Return the plan for several tables with one offset per partition (TAKEOVER-9).

    Each may be read from before its end, as far as none of its rows come from there.
    """
    if len(plans) == 1:
        return next(iter(plans.values()))
    by_partition: dict[TopicPartition, list[tuple[str, PartitionPlan]]] = {}
    for table, plan in plans.items():
        for each in plan.partitions:
            by_partition.setdefault(each.partition, []).append((table, each))
    partitions, apart = [], []
    for at, found in sorted(by_partition.items()):
        known = [each.start for _, each in found if each.start is not None]
        start = min(known) if len(known) == len(found) else None
        partitions.append(PartitionPlan(at, start, found[0][1].group))
        ahead = [(table, each) for table, each in found if each.filled > (start or 0)]
        if start is not None and ahead:
            table, farthest = max(ahead, key=lambda one: one[1].filled)
            apart.append(
                f"{at}: {table} holds rows up to {farthest.filled}, another table ends at {start}"
            )
    return TakeoverPlan(
        tuple(partitions),
        {path: rows for plan in plans.values() for path, rows in plan.outstanding.items()},
        {path: rows for plan in plans.values() for path, rows in plan.lost.items()},
        sum(plan.by_mark for plan in plans.values()),
        doubts=(*_doubts_with_tables(plans, lambda plan: plan.doubts), *apart),
        doubts_of_adoption=_doubts_with_tables(plans, lambda plan: plan.doubts_of_adoption),
    )


def _doubts_with_tables(
    plans: Mapping[str, TakeoverPlan], doubts_of: Callable[[TakeoverPlan], Iterable[str]]
) -> tuple[str, ...]:
    """Return each doubt once, with the tables that it is about."""
    tables: dict[str, list[str]] = {}
    for table, plan in plans.items():
        for doubt in doubts_of(plan):
            tables.setdefault(doubt, []).append(table)
    return tuple(f"{', '.join(named)}: {doubt}" for doubt, named in tables.items())


class _Judgment(NamedTuple):
    """Where an announcement ends in a partition, itself, and whether the table holds it."""

    end: int
    announcement: Announcement
    is_present: bool


def _group_by_partition(
    announcements: Iterable[Announcement], in_table: Iterable[bool]
) -> dict[TopicPartition, list[_Judgment]]:
    """TAKEOVER-5: return a partition's announcements in the order of their end offsets."""
    found: dict[TopicPartition, list[_Judgment]] = {}
    for each, is_present in zip(announcements, in_table, strict=True):
        for at, end in each.offsets.items():
            found.setdefault(at, []).append(_Judgment(end, each, is_present))
    return {at: sorted(told, key=lambda one: one.end) for at, told in found.items()}


def _find_start_and_doubts(
    at: TopicPartition, announced: Sequence[_Judgment], log: ControlLog, began_offset: int | None
) -> tuple[int | None, list[str]]:
    """Return the end of the longest prefix that the table holds, and what is against it."""
    if not announced:
        return None, []
    missing = next((n for n, each in enumerate(announced) if not each.is_present), len(announced))
    behind = [each for each in announced[missing:] if each.is_present and each.announcement.files]
    doubts = []
    if behind:
        doubts.append(
            f"{at}: an announcement up to {announced[missing].end} is not in the table, "
            "a later one is"
        )
    if missing:
        start, last, _ = announced[missing - 1]
        if missing < len(announced) and not log.is_complete_since(last.time_ms):
            doubts.append(
                f"{at}: an announcement between {start} and {announced[missing].end} may have "
                "expired, and its rows be in the table"
            )
        return start, doubts
    if began_offset is None:
        doubts.append(
            f"{at}: the first announcement that is left, up to {announced[0].end}, is not in the "
            "table, and nothing says where it begins"
        )
    return began_offset, doubts


def _describe_moved_group(
    at: TopicPartition,
    announced: Mapping[TopicPartition, Sequence[_Judgment]],
    group_offsets: Mapping[TopicPartition, int],
) -> list[str]:
    """TAKEOVER-6: describe signs that the group was moved by hand: rows are twice, or missing."""
    ends = [each.end for each in announced.get(at, ())]
    if not ends:
        return []
    found = []
    by_time = sorted(
        announced[at], key=lambda one: (one.announcement.time_ms, one.announcement.last)
    )
    if [each.end for each in by_time] != ends or len(set(ends)) < len(ends):
        found.append(f"{at}: the connector went back, so rows of a range are there twice")
    if at in group_offsets and group_offsets[at] != ends[-1]:
        found.append(
            f"{at}: the group is at {group_offsets[at]}, and its last announcement ends at "
            f"{ends[-1]}: somebody moved it"
        )
    return found


def _describe_expired_announcements(log: ControlLog, history: TableHistory) -> list[str]:
    """TAKEOVER-7: find announcements that expired before anybody can know whether they count."""
    if not history.whole and not history.mark:
        return ["the snapshots in which the table says what the connector committed have expired"]
    return [
        f"control partition {partition} begins at {begin}, and the table holds it up to "
        f"{history.mark.get(partition, 0)}: what was announced between is gone"
        for partition, begin in sorted(log.begins.items())
        if begin > history.mark.get(partition, 0)
    ]


def _describe_partly_committed(half: Announcement) -> str:
    return (
        f"control partition {half.control_partition}, offsets {half.first} to {half.last}: only "
        "some files of this announcement are in the table"
    )
