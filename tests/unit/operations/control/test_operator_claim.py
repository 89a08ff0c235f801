"""``resume --accept`` and ``offsets set`` as commands: on whose table, from which source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from unit.operations.filled_table import SINK, TOPIC, FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import ConfigurationError, RetryLater
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Lineage, TopicState
from headgate.operations.control import resolve_stop, set_offsets
from headgate.tables.iceberg.table import IcebergTable

ZERO, ONE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


class Topics:
    def __init__(self, filled: FilledTable) -> None:
        self.states = {
            TOPIC: TopicState(filled.topic_id, {0: OffsetRange(0, 50), 1: OffsetRange(2, 60)})
        }
        self.open = False

    def describe(self) -> dict[str, TopicState]:
        assert self.open
        return self.states

    def offsets_at(self, _: int) -> Offsets:
        return Offsets({ZERO: 7, ONE: 8})


@pytest.fixture
def topics(filled: FilledTable, monkeypatch: pytest.MonkeyPatch) -> Topics:
    topics = Topics(filled)

    @contextmanager
    def opened(_: SinkSettings) -> Iterator[Topics]:
        topics.open = True
        yield topics
        topics.open = False

    for module in (resolve_stop, set_offsets):
        monkeypatch.setattr(module, "open_reachable_source_topics", opened)
    return topics


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> list[resolve_stop.ClaimedSink]:
    """Of each claim that is made."""
    seen: list[resolve_stop.ClaimedSink] = []

    def resolved(world: resolve_stop.ClaimedSink, *others: Any) -> list[str]:
        seen.append(world)
        return right(world, *others)

    right = resolve_stop.resolve_stop
    monkeypatch.setattr(resolve_stop, "resolve_stop", resolved)
    return seen


def test_a_stop_is_resolved_by_the_command_on_the_sinks_own_table(
    filled: FilledTable,
    catalog: Catalog,
    settings: SinkSettings,
    topics: Topics,
    worlds: list[resolve_stop.ClaimedSink],
) -> None:
    filled.good_start()
    filled.table.refresh()
    filled.table.manage_snapshots().rollback_to_snapshot(
        filled.table.snapshots()[1].snapshot_id
    ).commit()
    (answered,) = resolve_stop.resolve_stop_of_sink(settings, ["HG-201=keep-offsets"])
    assert "rolled back" in answered
    view = IcebergTable(catalog, "db.trips", SINK).read()
    assert view.record is not None
    assert (view.lineage, view.record.offsets) == (
        Lineage.CONTAINS_TAG,
        Offsets({ZERO: 10, ONE: 10}),
    )
    assert view.record.coordinator.member == "operator"
    assert view.record.command == "resume --accept HG-201=keep-offsets"
    assert not topics.open
    (world,) = worlds
    assert world.identity.sink == SINK
    assert world.identity.group_id == "headgate-trips"
    assert (world.identity.secondaries, world.identity.routed) == ((), False)


@pytest.mark.parametrize(
    ("begins", "where"), [("latest", "latest"), ("1970-01-01T00:00:05Z", 5_000)]
)
def test_the_claim_knows_what_the_sink_file_says(
    filled: FilledTable,
    settings: SinkSettings,
    topics: Topics,
    worlds: list[resolve_stop.ClaimedSink],
    begins: str,
    where: str | int,
) -> None:
    """Without its friends a claim would be HG-113; begun elsewhere, it would pass records over."""
    filled.good_start()
    changed = replace(
        settings,
        source=replace(settings.source, start_at=begins),
        table=replace(settings.table, shared_with=("others",)),
    )
    with pytest.raises(ConfigurationError, match="nothing was changed"):
        resolve_stop.resolve_stop_of_sink(changed, ["HG-201=keep-offsets"])
    (world,) = worlds
    assert world.identity.shared_with == frozenset({"others"})
    assert world.start_at.where == where
    assert world.topics is topics


def test_key_12_a_keyed_table_is_not_kept_without_its_changes_by_hand_either(
    settings: SinkSettings,
) -> None:
    keyed = replace(settings, table=replace(settings.table, key=("id",)))
    with pytest.raises(ConfigurationError, match="KEY-12"):
        resolve_stop.resolve_stop_of_sink(keyed, ["HG-201=keep-offsets"])


class Alive:
    """What ``status`` knows of participants."""

    def __init__(self, *members: str, known: bool = True) -> None:
        self.participants = [SimpleNamespace(member=member) for member in members]
        self.participants_known = known
        self.notes = ["no broker answers"]


def planned(
    settings: SinkSettings, monkeypatch: pytest.MonkeyPatch, alive: Alive, *wanted: str
) -> set_offsets.OffsetPlan:
    monkeypatch.setattr(set_offsets, "read_status", lambda _: alive)
    return set_offsets.plan_offset_moves(settings, wanted)


def test_offsets_are_planned_from_what_table_and_logs_say(
    filled: FilledTable, settings: SinkSettings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.good_start()
    asked = (f"{TOPIC}/1=earliest", f"{TOPIC}/0=4")
    plan = planned(settings, monkeypatch, Alive(), *asked)
    assert plan.moves == (
        set_offsets.OffsetMove(ZERO, 10, 4),
        set_offsets.OffsetMove(ONE, 10, 2),
    )
    assert [str(move).count("TWICE") for move in plan.moves] == [1, 1]
    assert plan.view.record == plan.record
    forward = planned(settings, monkeypatch, Alive(), f"{TOPIC}/0=10", f"{TOPIC}/1=latest")
    assert forward.moves == (set_offsets.OffsetMove(ONE, 10, 60),), "what stays is no move"
    assert "up to 50 records are skipped, and LOST" in str(forward.moves[0])
    assert not topics.open


@pytest.mark.parametrize(
    "wanted", ["trips", "trips/0", "/0=1", "trips/x=1", "trips/0=-1", "trips/0=newest", "a=1", ""]
)
def test_what_is_no_offset_is_refused(
    settings: SinkSettings, topics: Topics, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    with pytest.raises(ConfigurationError, match="is not an offset") as refused:
        planned(settings, monkeypatch, Alive(), wanted)
    assert refused.value.hint.startswith("write TOPIC/PARTITION=OFFSET")
    with pytest.raises(ConfigurationError, match="no offset is named"):
        planned(settings, monkeypatch, Alive())
    assert not topics.open


def test_only_a_stopped_sink_has_its_offsets_moved(
    filled: FilledTable, settings: SinkSettings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.good_start()
    with pytest.raises(ConfigurationError, match="is running: one, two"):
        planned(settings, monkeypatch, Alive("one", "two"), f"{TOPIC}/0=4")
    with pytest.raises(RetryLater, match="not known: no broker answers"):
        planned(settings, monkeypatch, Alive(known=False), f"{TOPIC}/0=4")
    with pytest.raises(ConfigurationError, match="is not in the source"):
        planned(settings, monkeypatch, Alive(), f"{TOPIC}/2=4")
    assert not topics.open


def test_a_sink_without_a_claim_has_no_offsets_to_move(
    filled: FilledTable, settings: SinkSettings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert filled.table.current_snapshot() is None
    with pytest.raises(ConfigurationError, match="has no offsets yet"):
        planned(settings, monkeypatch, Alive(), f"{TOPIC}/0=4")
    assert not topics.open
