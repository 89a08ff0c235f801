"""KEY-8: a key lives in one partition of its topic, for nothing orders records of two."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from protocol.coordinating import Coordinator
from protocol.keyed import KeyedHead, deletes, rows
from protocol.values import P0, P2, topics

from headgate.control_protocol.errors import KeyedPartitionsAdded, KeyInTwoPartitions
from headgate.control_protocol.machine_io import Stop
from headgate.coordinator.phases import Phase

HEAD = KeyedHead({"a": [(1, 0, 7), (2, -1, -1), (3, 1, 0)]}, {"a": {2}})


def test_a_row_of_another_partition_stops_the_sink() -> None:
    said = "record at topic/1@2 has the key of a row from topic/0"
    with pytest.raises(KeyInTwoPartitions, match=said):
        HEAD.resolved(rows("x", (1, 1, 2)))
    with pytest.raises(KeyInTwoPartitions, match=said):
        HEAD.resolved(deletes((1, 1, 2)))


def test_two_records_of_one_commit_stop_it_too() -> None:
    said = "topic/1@4 and topic/0@5 have the same key"
    with pytest.raises(KeyInTwoPartitions, match=said):
        HEAD.resolved(rows("x", (9, 0, 5)), rows("y", (9, 1, 4)))


def test_rows_of_others_and_dead_ones_are_not_asked() -> None:
    HEAD.resolved(rows("x", (2, 1, 2), (3, 0, 3)))


def keyed() -> Coordinator:
    """A coordinator of a keyed table that was filled from two partitions."""
    coordinator = Coordinator()
    identity = replace(coordinator.state.identity, keyed=True)
    coordinator.state = replace(coordinator.state, identity=identity)
    return coordinator


def test_a_partition_that_is_added_meanwhile_stops_the_sink_before_it_is_read() -> None:
    coordinator = keyed()
    coordinator.until(Phase.PREPARING)
    coordinator.sources = topics((0, 1_000), (0, 1_000), (0, 90))
    coordinator.described()
    assert isinstance(coordinator.error, KeyedPartitionsAdded)
    assert "/2: added" in str(coordinator.error)


def test_a_partition_that_was_added_while_nobody_looked_stops_the_next_claim() -> None:
    coordinator = keyed()
    coordinator.sources = topics((0, 1_000), (0, 1_000), (0, 1))
    while not coordinator.wants(Stop):
        coordinator.goes_on()
    assert isinstance(coordinator.error, KeyedPartitionsAdded)


def test_an_empty_one_stops_it_with_its_first_record() -> None:
    coordinator = keyed()
    coordinator.sources = topics((0, 1_000), (0, 1_000), (0, 0))
    coordinator.until(Phase.CLAIMING)
    assert "trips/2: added and empty" in coordinator.told
    coordinator.until(Phase.CLOSING)
    assert P2 not in coordinator.term.progress.offsets
    coordinator.until(Phase.PREPARING)
    coordinator.sources = topics((0, 1_000), (0, 1_000), (0, 1))
    coordinator.described()
    assert isinstance(coordinator.error, KeyedPartitionsAdded)


def test_the_partitions_that_a_keyed_table_began_with_stop_nothing() -> None:
    coordinator = keyed()
    coordinator.until(Phase.PREPARING)
    coordinator.described()
    assert coordinator.phase is Phase.CLOSING


@dataclass(frozen=True)
class OneTopic:
    """Records of this topic go to a table with a key, and to no other."""

    topic: str

    def replaces_rows_of(self, _table: str) -> bool:
        return False

    def may_feed_keyed_table(self, topic: str) -> bool:
        return topic == self.topic


def test_of_routed_tables_only_topics_of_keyed_ones_keep_their_partitions() -> None:
    for topic, stops in ((P0.topic, True), ("another", False)):
        coordinator = Coordinator()
        identity = replace(coordinator.state.identity, routed_keys=OneTopic(topic))
        coordinator.state = replace(coordinator.state, identity=identity)
        coordinator.until(Phase.PREPARING)
        coordinator.sources = topics((0, 1_000), (0, 1_000), (0, 90))
        coordinator.described()
        assert coordinator.wants(Stop) is stops
