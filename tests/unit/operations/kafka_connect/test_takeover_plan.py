"""What a table holds that a connector has filled: histories from seeds, and doubts one by one."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from headgate.control_protocol.identifiers import TopicPartition
from headgate.operations.kafka_connect.takeover_plan import (
    Announcement,
    ControlLog,
    TableHistory,
    TakeoverPlan,
    combine_plans,
    plan_takeover,
)

AT = TopicPartition("trips", 0)
OTHER = TopicPartition("trips", 1)


@dataclass
class Connector:
    """Iceberg's sink as its sources describe it: workers, control partitions, one table.

    A file holds the offsets of its rows, so the truth is known whatever the plan says.
    """

    seed: int
    loses: bool = False
    """Commits leave files out, and nothing expires: of what expired nobody could know it."""
    rows: dict[str, frozenset[tuple[TopicPartition, int]]] = field(default_factory=dict)
    announced: list[Announcement] = field(default_factory=list)
    committed: set[str] = field(default_factory=set)
    mark: dict[int, int] = field(default_factory=dict)
    group: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0, 2: 0})
    begins: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0, 2: 0})
    forgotten: set[str] = field(default_factory=set)
    waiting: list[Announcement] = field(default_factory=list)
    clock: int = 1_000
    marks: dict[str, dict[int, int]] = field(default_factory=dict)
    """Of several tables."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.partitions = [TopicPartition("trips", n) for n in range(self.chance.randint(1, 4))]

    def announce(self) -> None:
        """Each worker reads on from the group, writes files, and announces them at once."""
        workers = self.chance.randint(1, 3)
        for worker in range(workers):
            mine = [at for n, at in enumerate(self.partitions) if n % workers == worker]
            files: dict[str, int] = {}
            offsets: dict[TopicPartition, int] = {}
            for at in mine:
                begin = self.group.get(at, 0)
                end = begin + self.chance.choice([0, 0, 1, 5, 20])
                if end == begin:
                    continue
                offsets[at] = self.group[at] = end
                written = frozenset(
                    (at, n) for n in range(begin, end) if self.chance.random() < 0.9
                )
                if written:
                    path = f"file-{len(self.rows)}"
                    self.rows[path] = written
                    files[path] = len(written)
            control = self.chance.choice(list(self.ends))
            first = self.ends[control]
            self.ends[control] += 2  # the files or the offsets, and the transaction's own marker
            self.clock += self.chance.randint(1, 900_000)
            told = Announcement(control, first, first, self.clock, files, offsets)
            self.announced.append(told)
            self.waiting.append(told)

    def commit(self) -> None:
        """Add all that is waiting in one call, with the mark; a killed coordinator never does."""
        for told in self.waiting:
            if not (self.loses and self.chance.random() < 0.1):  # by a second coordinator, say
                self.committed.update(told.files)
        self.mark = {**self.ends}
        self.waiting.clear()

    def expire(self) -> None:
        """Others compact and expire: what was committed is only known by the mark."""
        self.forgotten |= self.committed

    def trim(self) -> None:
        """Retention of the control topic takes the oldest events, of what was committed or not."""
        control = self.chance.choice(list(self.begins))
        self.begins[control] = self.chance.randint(self.begins[control], self.ends[control])

    def plan(self) -> TakeoverPlan:
        visible = [a for a in self.announced if a.first >= self.begins[a.control_partition]]
        oldest = {a.control_partition: a.time_ms for a in reversed(visible)}
        ever = frozenset(self.committed - self.forgotten)
        history = TableHistory(ever, self.mark, whole=not self.forgotten)
        return plan_takeover(ControlLog(visible, self.begins, oldest), history, self.group)

    @property
    def in_table(self) -> dict[TopicPartition, set[int]]:
        found: dict[TopicPartition, set[int]] = defaultdict(set)
        for path in self.committed:
            for at, offset in self.rows[path]:
                found[at].add(offset)
        return found

    @property
    def written(self) -> dict[TopicPartition, set[int]]:
        found: dict[TopicPartition, set[int]] = defaultdict(set)
        for rows in self.rows.values():
            for at, offset in rows:
                found[at].add(offset)
        return found


def live(connector: Connector) -> None:
    for _ in range(connector.chance.randint(1, 12)):
        connector.announce()
        if connector.chance.random() < 0.7:
            connector.commit()
        if not connector.loses and connector.chance.random() < 0.1:
            connector.expire()
        if not connector.loses and connector.chance.random() < 0.1:
            connector.trim()


@pytest.mark.parametrize("loses", [False, True], ids=["expires", "loses"])
@pytest.mark.parametrize("block", range(5))
def test_whatever_happened_a_plan_without_doubts_is_exact(block: int, *, loses: bool) -> None:
    exact = 0
    for seed in range(block * 200, (block + 1) * 200):
        connector = Connector(seed, loses)
        live(connector)
        plan = connector.plan()
        in_table, written = connector.in_table, connector.written
        if not plan.doubts:
            exact += 1
            for at, start in plan.reread_offsets.items():
                assert {n for n in written[at] if n < start} == in_table[at], seed
            assert {p.partition for p in plan.partitions if p.start is None} == set(), seed
        if not plan.doubts_of_adoption:
            adopted = connector.committed | plan.outstanding.keys()
            assert not connector.committed & plan.outstanding.keys(), seed
            assert adopted == connector.rows.keys(), seed
            assert dict(plan.group_offsets) == connector.group, seed
    assert exact > 40


@pytest.mark.parametrize("seed", range(50))
def test_a_connector_that_was_stopped_in_order_leaves_nothing_to_doubt(seed: int) -> None:
    connector = Connector(seed)
    for _ in range(4):
        connector.announce()
        connector.commit()
    plan = connector.plan()
    assert not plan.doubts
    assert not plan.outstanding
    assert dict(plan.reread_offsets) == dict(plan.group_offsets) == connector.group


def announced(
    end: int, *files: str, at: TopicPartition = AT, first: int = 0, time_ms: int = 0
) -> Announcement:
    return Announcement(0, first, first + 1, time_ms or end, dict.fromkeys(files, 10), {at: end})


def planned(
    *told: Announcement,
    ever: frozenset[str] = frozenset(),
    mark: Mapping[int, int] | None = None,
    group: Mapping[TopicPartition, int] | None = None,
    whole: bool = True,
    begins: int = 0,
    **asked: object,
) -> TakeoverPlan:
    at_end = {AT: max(a.offsets[AT] for a in told)} if group is None else group
    history = TableHistory(ever, mark or {}, whole)
    log = ControlLog(told, {0: begins}, {0: 0})
    return plan_takeover(log, history, at_end, **asked)  # type: ignore[arg-type]


def test_reading_begins_where_the_table_ends_and_not_where_the_group_is() -> None:
    """TAKEOVER-5."""
    plan = planned(announced(10, "a"), announced(20, "b", first=3), ever=frozenset("a"))
    assert not plan.doubts
    assert dict(plan.reread_offsets) == {AT: 10}
    assert dict(plan.group_offsets) == {AT: 20}
    assert plan.outstanding == {"b": 10}


def test_a_later_announcement_in_the_table_without_an_earlier_one_is_doubted() -> None:
    plan = planned(announced(10, "a"), announced(20, "b", first=3), ever=frozenset("b"))
    assert "a later one is" in " ".join(plan.doubts)
    assert not plan.doubts_of_adoption


def test_half_an_announcement_is_doubted_and_can_be_adopted() -> None:
    plan = planned(announced(10, "a"), announced(20, "b", "c", first=3), ever=frozenset("ab"))
    assert "only some" in " ".join(plan.doubts)
    assert plan.outstanding == {"c": 10}
    assert not plan.doubts_of_adoption


def test_a_first_announcement_that_is_outstanding_needs_a_person_s_word() -> None:
    assert "nothing says where it begins" in " ".join(planned(announced(10, "a")).doubts)
    plan = planned(announced(10, "a"), began={AT: 3})
    assert not plan.doubts
    assert dict(plan.reread_offsets) == {AT: 3}


def test_a_group_that_somebody_moved_is_doubted_with_both_numbers() -> None:
    """TAKEOVER-6."""
    plan = planned(announced(10, "a"), ever=frozenset("a"), group={AT: 25})
    assert any("25" in doubt and "10" in doubt for doubt in plan.doubts)
    assert plan.doubts_of_adoption


def test_a_connector_that_went_back_is_doubted() -> None:
    told = (announced(20, "a", time_ms=1), announced(15, "b", first=3, time_ms=2))
    plan = planned(*told, ever=frozenset("ab"))
    assert any("twice" in doubt for doubt in plan.doubts)


def test_what_the_connector_lost_is_told_and_can_be_healed() -> None:
    told = (announced(10, "a"), announced(20, "b", first=3))
    plan = planned(*told, ever=frozenset("b"), mark={0: 5})
    assert plan.lost == {"a": 10}
    assert plan.doubts
    assert plan.doubts_of_adoption
    healed = planned(*told, ever=frozenset("b"), mark={0: 5}, heals=True)
    assert not healed.doubts_of_adoption


def test_announcements_that_expired_unread_are_doubted() -> None:
    """TAKEOVER-7."""
    plan = planned(announced(20, "b", first=7), begins=7, mark={0: 3}, ever=frozenset("b"))
    assert any("is gone" in doubt for doubt in plan.doubts)


def test_what_may_have_expired_between_two_announcements_is_doubted() -> None:
    told = (announced(10, "a", first=7), announced(20, "b", first=9))
    asked = {"begins": 7, "mark": {0: 9}, "ever": frozenset("a")}
    assert "may have expired" in " ".join(planned(*told, **asked).doubts)
    later = [
        announced(end, name, first=first, time_ms=700_000 + end)
        for end, name, first in ((10, "a", 7), (20, "b", 9))
    ]
    assert not planned(*later, **asked).doubts


def test_without_any_mark_an_expired_history_says_nothing() -> None:
    plan = planned(announced(10, "a"), whole=False)
    assert any("have expired" in doubt for doubt in plan.doubts)
    assert plan.doubts_of_adoption


def test_the_mark_speaks_for_what_has_expired() -> None:
    plan = planned(announced(10, "a"), mark={0: 2}, whole=False)
    assert not plan.doubts
    assert plan.by_mark == 1
    assert dict(plan.reread_offsets) == {AT: 10}


def test_an_announcement_without_rows_for_the_table_is_held() -> None:
    """TAKEOVER-4."""
    plan = planned(announced(10), ever=frozenset())
    assert dict(plan.reread_offsets) == {AT: 10}
    assert not plan.doubts


def test_a_partition_of_which_nothing_is_left_is_where_its_group_is() -> None:
    plan = planned(announced(10, "a"), ever=frozenset("a"), group={AT: 10, OTHER: 4})
    assert dict(plan.reread_offsets) == {AT: 10, OTHER: 4}


def test_tables_that_end_together_are_read_again_from_there() -> None:
    """TAKEOVER-9."""
    told = (announced(10, "a"), announced(20, first=3))
    a = planned(*told, ever=frozenset("a"))
    b = planned(announced(10), announced(20, "b", first=3))
    assert dict(a.reread_offsets) == {AT: 20}
    together = combine_plans({"a": a, "b": b})
    assert not together.doubts
    assert dict(together.reread_offsets) == {AT: 10}
    assert together.outstanding == {"b": 10}


def test_tables_that_end_apart_can_only_be_adopted() -> None:
    a = planned(announced(10, "a"), announced(20, "c", first=3), ever=frozenset("ac"))
    b = planned(announced(10), announced(20, "b", first=3))
    together = combine_plans({"a": a, "b": b})
    assert any("a holds rows up to 20, another table ends at 10" in d for d in together.doubts)
    assert not together.doubts_of_adoption
    assert dict(together.group_offsets) == {AT: 20}


def test_a_doubt_names_the_tables_that_it_is_about() -> None:
    a = planned(announced(10, "a"))
    b = planned(announced(10), ever=frozenset())
    together = combine_plans({"a": a, "b": b})
    assert together.doubts[0].startswith("a: ")
    assert {p.start for p in together.partitions} == {None}


@pytest.mark.parametrize("block", range(5))
def test_a_plan_of_two_tables_without_doubts_is_exact(block: int) -> None:
    exact = 0
    for seed in range(block * 200, (block + 1) * 200):
        connector = TwoTables(seed)
        live(connector)
        plans = connector.plans()
        plan = combine_plans(plans)
        if not plan.doubts:
            exact += 1
            for at, start in plan.reread_offsets.items():
                for table in "ab":
                    rows = connector.rows_of(table, connector.rows)
                    wanted = {n for n in rows[at] if n < start}
                    assert connector.rows_of(table, connector.committed)[at] == wanted, seed
        if not plan.doubts_of_adoption:
            assert connector.committed | plan.outstanding.keys() == connector.rows.keys(), seed
            assert not connector.committed & plan.outstanding.keys(), seed
    assert exact > 40


class TwoTables(Connector):
    """Each announcement's files are of one of two tables, and commits may end between the two."""

    def commit(self) -> None:
        half = self.chance.random() < 0.3
        done = "a" if half else "ab"
        for told in self.waiting:
            self.committed.update(path for path in told.files if self.table_of(path) in done)
            for table in map(self.table_of, told.files):
                if table in done:
                    self.marks[table] = {**self.ends}
        if not half:
            self.waiting.clear()

    def table_of(self, path: str) -> str:
        return "ab"[int(path.removeprefix("file-")) % 2]

    def rows_of(self, table: str, paths: Iterable[str]) -> dict[TopicPartition, set[int]]:
        found: dict[TopicPartition, set[int]] = defaultdict(set)
        for path in paths:
            if self.table_of(path) == table:
                for at, offset in self.rows[path]:
                    found[at].add(offset)
        return found

    def plans(self) -> dict[str, TakeoverPlan]:
        return {table: self.plan_of(table) for table in "ab"}

    def plan_of(self, table: str) -> TakeoverPlan:
        own = [
            replace(a, files={p: n for p, n in a.files.items() if self.table_of(p) == table})
            for a in self.announced
            if a.first >= self.begins[a.control_partition]
        ]
        oldest = {a.control_partition: a.time_ms for a in reversed(own)}
        ever = frozenset(self.committed - self.forgotten)
        history = TableHistory(ever, self.marks.get(table, {}), whole=not self.forgotten)
        return plan_takeover(ControlLog(own, self.begins, oldest), history, self.group)
