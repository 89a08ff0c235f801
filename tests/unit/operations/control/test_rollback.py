"""Table and offsets go back in one call, by a new epoch, and come back again."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from pyiceberg.catalog import Catalog
from unit.operations.filled_table import SINK, TOPIC, FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import OPERATOR
from headgate.control_protocol.errors import ConfigurationError, RetryLater, Unreachable
from headgate.control_protocol.identifiers import TopicId, TopicPartition, tag_name
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import CommitAttempt, Lineage, Refused, TopicState
from headgate.operations.audit.audit import audit
from headgate.operations.control import rollback
from headgate.operations.control.rollback import (
    carry_out_rollback,
    make_rollback_branches,
    plan_rollback,
)
from headgate.operations.http.operator_actions import MOVES
from headgate.tables.iceberg.table import IcebergTable

ZERO, ONE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


class Source:
    """What the source still has; a test changes it."""

    def __init__(self) -> None:
        self.topic_id = TopicId("topic-id-1")
        self.begin = 0
        self.silent = frozenset[int]()

    def describe(self) -> dict[str, TopicState]:
        logs = {n: OffsetRange(self.begin, 20) for n in range(3) if n not in self.silent}
        return {TOPIC: TopicState(self.topic_id, logs, silent=self.silent)}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    found = Source()

    monkeypatch.setattr(rollback, "open_reachable_source_topics", lambda _: nullcontext(found))
    monkeypatch.setattr(rollback, "require_no_running_participants", lambda _: None)
    return found


@pytest.fixture
def table(filled: FilledTable, catalog: Catalog, source: Source) -> IcebergTable:
    filled.good_start()
    return IcebergTable(catalog, "db.trips", SINK)


def rows(filled: FilledTable) -> int:
    filled.table.refresh()
    return filled.table.scan().to_arrow().num_rows


def test_table_and_offsets_go_back_in_one_call(
    table: IcebergTable, filled: FilledTable, settings: SinkSettings
) -> None:
    before = table.read()
    plan = plan_rollback(settings, "1.1")
    assert (plan.dropped, plan.removed_primary_row_count, plan.foreign_snapshot_texts) == (
        ("1.2",),
        10,
        (),
    )
    assert rows(filled) == 20, "a plan changes nothing"
    carry_out_rollback(settings, plan)
    after = table.read()
    assert after.record is not None
    assert after.record.offsets == Offsets({ZERO: 5, ONE: 5})
    assert (after.record.transaction.epoch, after.record.is_claim) == (2, True)
    assert (after.record.coordinator.member, after.record.command) == (OPERATOR, "rollback")
    assert after.lineage is Lineage.CONTAINS_TAG
    assert after.tag == after.head
    assert rows(filled) == 10
    kept = filled.table.metadata.refs["headgate.trips.before-2"]
    assert (kept.snapshot_id, kept.max_ref_age_ms) == (before.head, 7 * 86_400_000)
    assert str(audit(settings, with_source=False).verdict) != "wrong"


def test_the_tag_never_stands_on_an_old_snapshot_again(
    table: IcebergTable, filled: FilledTable, settings: SinkSettings
) -> None:
    """A coordinator that was paused with the old snapshot as its base is refused."""
    old = table.read()
    zombie = CommitAttempt(old, filled.record(1, 3, {0: 12, 1: 12}))
    carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    assert isinstance(table.commit(zombie), Refused)
    carry_out_rollback(settings, plan_rollback(settings, "headgate.trips.before-2"))
    filled.table.refresh()
    assert filled.table.metadata.refs[tag_name(SINK)].snapshot_id != old.tag
    assert isinstance(table.commit(zombie), Refused), "neither after the way back"


def test_the_way_back_is_the_same_move(
    table: IcebergTable, filled: FilledTable, settings: SinkSettings
) -> None:
    carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    plan = plan_rollback(settings, "headgate.trips.before-2")
    assert (plan.dropped, plan.removed_primary_row_count) == (("2.0",), 0)
    carry_out_rollback(settings, plan)
    after = table.read()
    assert after.record is not None
    assert after.record.offsets == Offsets({ZERO: 10, ONE: 10})
    assert after.record.transaction.epoch == 3
    assert rows(filled) == 20
    goes_on = CommitAttempt(after, filled.record(4, 0, {0: 10, 1: 10}))
    assert not isinstance(table.commit(goes_on), Refused)


def test_partitions_that_are_not_read_yet_there_are_no_younger_ones(
    table: IcebergTable, filled: FilledTable, settings: SinkSettings
) -> None:
    """KEY-8: they are held and admitted again, and then named once."""
    filled.commit(filled.record(1, 3, {0: 10, 1: 10, 2: 0}, cohorts={TOPIC: (2,)}))
    carry_out_rollback(settings, plan_rollback(settings, "1.2"))
    back = table.read().record
    assert back is not None
    assert (back.offsets, back.cohorts) == (Offsets({ZERO: 10, ONE: 10}), {})
    carry_out_rollback(settings, plan_rollback(settings, "headgate.trips.before-2"))
    forward = table.read().record
    assert forward is not None
    assert forward.cohorts == {TOPIC: (2,)}


def test_a_plan_is_void_when_somebody_else_has_committed(
    table: IcebergTable, filled: FilledTable, settings: SinkSettings
) -> None:
    plan = plan_rollback(settings, "1.1")
    table.commit(CommitAttempt(table.read(), filled.record(1, 3, {0: 12, 1: 12})))
    with pytest.raises(RetryLater, match="was not rolled back"):
        carry_out_rollback(settings, plan)
    record = table.read().record
    assert record is not None
    assert record.offsets == Offsets({ZERO: 12, ONE: 12})


def test_snapshots_of_others_are_named_and_stay_unless_asked(
    table: IcebergTable, filled: FilledTable, settings: SinkSettings
) -> None:
    filled.table.refresh()
    other = filled.append(filled.files([(0, 77)]))
    with pytest.raises(ConfigurationError, match=rf"others have written.*{other} \(append\)"):
        plan_rollback(settings, "1.1")
    carry_out_rollback(settings, plan_rollback(settings, "1.1", drop_foreign=True))
    assert rows(filled) == 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"begin": 6}, r"records \[5, 6\) would be read again"),
        ({"topic_id": "another"}, "re-created"),
    ],
)
def test_what_the_source_has_lost_is_not_given_up(
    table: IcebergTable,
    settings: SinkSettings,
    source: Source,
    change: dict[str, object],
    said: str,
) -> None:
    for name, value in change.items():
        setattr(source, name, value)
    with pytest.raises(ConfigurationError, match=said):
        plan_rollback(settings, "1.1")


def test_whether_the_source_has_it_is_not_known_while_a_partition_has_no_leader(
    table: IcebergTable, settings: SinkSettings, source: Source
) -> None:
    source.silent = frozenset({1})
    with pytest.raises(Unreachable, match="no broker leads trips/1"):
        plan_rollback(settings, "1.1")


@pytest.mark.parametrize("to", ["9.9", "1", "", "headgate.trips.before-7", "nonsense\x1b[2J"])
def test_a_place_that_is_not_there_is_refused(
    table: IcebergTable, settings: SinkSettings, to: str
) -> None:
    with pytest.raises(ConfigurationError, match="holds no commit"):
        plan_rollback(settings, to)


def test_where_it_is_already_is_refused(table: IcebergTable, settings: SinkSettings) -> None:
    with pytest.raises(ConfigurationError, match="the table is at"):
        plan_rollback(settings, "1.2")


def test_over_http_with_a_dry_run(
    table: IcebergTable, filled: FilledTable, settings: SinkSettings
) -> None:
    move = MOVES["POST", "rollback"]
    told = move(settings, {"to": "1.1"}, True)
    assert (told["rows"], told["dropped"], told["positions"]) == (
        10,
        ("1.2",),
        {f"{TOPIC}/0": 5, f"{TOPIC}/1": 5},
    )
    assert rows(filled) == 20
    assert json.dumps(move(settings, {"to": "1.1"}, False))
    assert rows(filled) == 10
    for wrong in ({}, {"to": 4}, {"to": "1.1", "drop_foreign": "yes"}, {"too": "1.1"}):
        with pytest.raises(ConfigurationError):
            move(settings, wrong, True)


def test_a_branch_shows_what_it_would_be_and_nothing_else_changes(
    table: IcebergTable, filled: FilledTable, settings: SinkSettings, told: list[str]
) -> None:
    before = table.read()
    plan = plan_rollback(settings, "1.1", look_only=True)
    assert "nothing leaves the branch" in str(plan)
    assert "the way back" not in str(plan)
    make_rollback_branches(settings, plan, "look")
    assert table.read() == before
    assert rows(filled) == 20
    look = filled.table.metadata.refs["look"]
    assert (look.snapshot_id, look.snapshot_ref_type.value) == (plan.target_snapshot_id, "branch")
    assert look.max_ref_age_ms == rollback.KEPT_MS
    assert filled.table.scan(snapshot_id=look.snapshot_id).to_arrow().num_rows == 10
    assert told == ["rollback --to-branch look"]
    for taken in ("look", "main", tag_name(SINK)):
        with pytest.raises(ConfigurationError, match="already"):
            make_rollback_branches(settings, plan, taken)
    assert table.read() == before
    plan = plan_rollback(settings, "1.1")
    assert f"the way back: headgate rollback SINK {plan.kept_as}" in str(plan)
    carry_out_rollback(settings, plan)
    assert rows(filled) == 10


def test_who_only_looks_need_not_stop_the_sink(
    table: IcebergTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(_: SinkSettings) -> None:
        raise ConfigurationError("sink trips is running")

    before = table.read()
    monkeypatch.setattr(rollback, "require_no_running_participants", runs)
    look = {"to": "1.1", "to_branch": "look"}
    move = MOVES["POST", "rollback"]
    assert move(settings, look, True)["rows"] == 10
    move(settings, look, False)
    assert table.read() == before
    with pytest.raises(ConfigurationError, match="running"):
        move(settings, {"to": "1.1"}, True)
    with pytest.raises(ConfigurationError, match="not a name"):
        move(settings, {**look, "to_branch": ""}, True)


def test_a_stopped_sink_stays_stopped_over_it(
    table: IcebergTable, filled: FilledTable, settings: SinkSettings
) -> None:
    stopped = filled.record(1, 3, {0: 10, 1: 10}, stopped=True)
    table.commit(CommitAttempt(table.read(), stopped))
    carry_out_rollback(settings, plan_rollback(settings, "1.1"))
    after = table.read().record
    assert after is not None
    assert (after.stopped, after.command) == (True, "rollback")
