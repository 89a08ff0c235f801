"""TABLE-5: two sinks do not fill one branch from the same topic, unless it is meant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import Coordinator
from protocol.values import RIVAL, TOPIC_ID, offsets, record, topics, view

from headgate.control_protocol.errors import SourceShared
from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.machine_io import Stop
from headgate.control_protocol.ports import TableView
from headgate.coordinator.inputs_and_actions import CommitTable
from headgate.coordinator.phases import Phase

OTHER = SinkName("rides-again")


def filled_too(topic_id: TopicId = TOPIC_ID, topic: str = "trips") -> TableView:
    return replace(view(record(6, 4, offsets(10, 20), RIVAL)), others={OTHER: {topic: topic_id}})


def meets(table: TableView, meant: frozenset[str] = frozenset()) -> Coordinator:
    """A coordinator that has read this table, and is about to claim."""
    coordinator = Coordinator(table)
    identity = replace(coordinator.state.identity, shared_with=meant)
    coordinator.state = replace(coordinator.state, identity=identity)
    while not (coordinator.wants(CommitTable) or coordinator.wants(Stop)):
        coordinator.goes_on()
    return coordinator


def test_another_sink_on_the_same_topic_is_refused_before_the_claim() -> None:
    coordinator = meets(filled_too())
    assert isinstance(coordinator.error, SourceShared)
    assert coordinator.error.code == "HG-113"
    assert "'rides-again' fills the same branch from the same topic, trips" in str(
        coordinator.error
    )
    assert coordinator.phase is Phase.STOPPED


def test_a_first_start_is_refused_too() -> None:
    fresh = replace(view(), others={OTHER: {"trips": TOPIC_ID}})
    assert isinstance(meets(fresh).error, SourceShared)


@pytest.mark.parametrize(
    "table",
    [filled_too(TopicId("on-another-cluster")), filled_too(topic="others-trips"), view()],
)
def test_another_source_is_no_matter(table: TableView) -> None:
    assert meets(table).wants(CommitTable)


def test_what_is_meant_is_claimed() -> None:
    assert meets(filled_too(), frozenset({OTHER})).wants(CommitTable)


@pytest.mark.parametrize("since", [Phase.FOLLOWING, Phase.OPEN])
def test_a_topic_that_a_pattern_finds_later_is_looked_at_before_the_next_end(since: Phase) -> None:
    """Also where the other sink claimed since the table was read: its tag is read anew."""
    later = TopicId("trips-2-id")
    coordinator = Coordinator()
    coordinator.until(since)
    shared = filled_too(later, "trips-2")
    coordinator.table = replace(coordinator.table, others=shared.others)
    coordinator.until(Phase.PREPARING)
    coordinator.sources |= topics((0, 5), topic_id=later, name="trips-2")
    coordinator.described()
    coordinator.described()
    assert isinstance(coordinator.error, SourceShared)
