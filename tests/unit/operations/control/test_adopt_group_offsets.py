"""A sink begins where another group is: in all partitions, or nowhere."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyiceberg.catalog import Catalog
from unit.operations.filled_table import SCHEMA, TOPIC, FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import TopicState
from headgate.operations.access import kafka_connection
from headgate.operations.control import adopt_group_offsets as module
from headgate.operations.control import set_offsets
from headgate.operations.control.adopt_group_offsets import plan_group_offsets_creating_table

ZERO, ONE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
LOG = OffsetRange(0, 20)


class Brokers:
    """What they say of the topic; the group is at 5 in each partition."""

    state = TopicState(TopicId("another"), {0: LOG, 1: LOG})

    def describe(self) -> dict[str, TopicState]:
        return {TOPIC: self.state}

    def offsets_at(self, time_ms: int) -> Offsets:
        raise AssertionError(time_ms)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    group = SimpleNamespace(members=())
    for each in (kafka_connection, set_offsets):
        monkeypatch.setattr(each, "open_reachable_source_topics", lambda _: nullcontext(found))
    for each in (module, set_offsets):
        monkeypatch.setattr(each, "require_no_running_participants", lambda _: None)
    monkeypatch.setattr(
        module, "Cluster", lambda _: SimpleNamespace(describe_group=lambda _: group)
    )
    monkeypatch.setattr(
        module, "read_group_offsets", lambda _k, _g, asked, _s: dict.fromkeys(asked, 5)
    )
    return found


@pytest.mark.parametrize("fresh", [True, False], ids=["first claim", "another topic"])
def test_takeover_12_a_partition_without_a_leader_is_waited_for(
    catalog: Catalog, settings: SinkSettings, brokers: Brokers, *, fresh: bool
) -> None:
    """Left out, it would begin at its log's begin: rows of a group's records came twice."""
    if fresh:
        catalog.create_namespace("db")
        catalog.create_table("db.trips", SCHEMA)
    else:
        FilledTable(catalog).good_start()
    moves = plan_group_offsets_creating_table(settings, "before").moves
    assert {move.partition: move.end for move in moves} == {ZERO: 5, ONE: 5}
    brokers.state = replace(brokers.state, partitions={0: LOG}, silent=frozenset({1}))
    with pytest.raises(Unreachable, match="no broker leads trips/1"):
        plan_group_offsets_creating_table(settings, "before")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("before=trisp", "'before=trisp': the sink reads no trisp"),
        ("before/2=trips/2", "'before/2=trips/2': the sink reads no trips/2"),
        ("befoer=trips", "'befoer=trips': group before has no offsets of befoer"),
    ],
)
def test_a_map_that_leads_nowhere_is_refused(
    catalog: Catalog,
    settings: SinkSettings,
    brokers: Brokers,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    said: str,
) -> None:
    """Whatever it was meant for would begin at its log's begin."""
    assert brokers
    catalog.create_namespace("db")
    catalog.create_table("db.trips", SCHEMA)
    known = {ZERO, ONE, TopicPartition("before", 0)}
    monkeypatch.setattr(
        module, "read_group_offsets", lambda _k, _g, asked, _s: dict.fromkeys(known & {*asked}, 5)
    )
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        plan_group_offsets_creating_table(settings, "before", [text])


def test_partitions_take_the_offsets_that_they_have_under_their_former_names(
    catalog: Catalog, settings: SinkSettings, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert brokers
    catalog.create_namespace("db")
    catalog.create_table("db.trips", SCHEMA)
    known = {TopicPartition("before", 0): 3, TopicPartition("other", 7): 4}
    monkeypatch.setattr(
        module,
        "read_group_offsets",
        lambda _k, _g, asked, _s: {at: known[at] for at in asked if at in known},
    )
    maps = ["before=trips", "other/7=trips/1"]
    moves = plan_group_offsets_creating_table(settings, "before", maps).moves
    assert {move.partition: move.end for move in moves} == {ZERO: 3, ONE: 4}
    known[ONE] = 7
    moves = plan_group_offsets_creating_table(settings, "before", ["trips/1=trips/0"]).moves
    assert {move.partition: move.end for move in moves} == {ZERO: 7, ONE: LOG.begin}
