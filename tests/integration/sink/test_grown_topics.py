"""Partitions are added to the topic of a keyed table while it is filled, and keys move to them."""

from __future__ import annotations

import re

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.sink.test_changes import KEYED, Changelog, assert_folded, assert_well
from support.topics import delete_topics

from headgate.operations.audit.audit import audit
from headgate.operations.check.check import Check, check
from headgate.operations.status.status import read_status

pytestmark = pytest.mark.integration

GROWS = {
    **KEYED,
    "changes": {"on_partitions_added": "wait", "growth_ms": 15_000},
    "kafka": {"topic.metadata.refresh.interval.ms": 1_000},
}
HELD = "added, and held"


def held(sink: Deployment) -> str:
    return " ".join(text for text in read_status(sink.settings).notes if "held for 15 s" in text)


@pytest.mark.wide
def test_key_8_keys_and_deletes_move_to_partitions_that_are_added_over_a_killed_coordinator(
    deploy: Deploy, admin: AdminClient
) -> None:
    sink = deploy(GROWS)
    topic = sink.topics[0]
    changes = Changelog(sink, 8)
    changes.produce(1_000)
    sink.start(2)
    sink.wait_until(lambda: sink.shares() == [1, 1], "both to share")  # whoever leads stays it
    sink.wait_until_lag_zero()
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result()
    changes.produce(500)  # by a producer that has not heard of it
    leader = sink.leader()
    sink.wait_until(lambda: leader.said(HELD), "the new partitions to be held")
    sink.partitions = 4
    changes.begin_anew()
    changes.produce(1_000)
    assert re.search(rf"{topic}/2 \(\d+ records\), {topic}/3 \(\d+ records\): added", held(sink))
    sink.kill(leader)
    asked = {kafka.TopicPartition(topic, number): OffsetSpec.latest() for number in (2, 3)}
    waiting = sum(at.result().offset for at in admin.list_offsets(asked).values())
    assert waiting > 0
    assert read_status(sink.settings).held_record_count == waiting
    report = audit(sink.settings)
    assert (report.findings, sum(each.records for each in report.held)) == ((), waiting)
    assert "are in no table, and are not lost" in report.waiting[0]
    sink.start()
    changes.produce(500)
    sink.wait_until(lambda: any(p.said(HELD) for p in sink.participants), "them to be held anew")
    record = sink.record()
    assert record
    assert {at.partition for at in record.offsets} == {0, 1}
    sink.wait_until(lambda: not held(sink), "the new partitions to be read")
    changes.produce(500)
    sink.wait_until_lag_zero()
    sink.stop()
    record = sink.record()
    assert record
    assert record.cohorts == {topic: (2,)}
    assert_folded(sink, changes)
    assert_well(sink)


def test_key_8_check_says_what_a_start_would_do_about_partitions_that_were_added(
    deploy: Deploy, admin: AdminClient
) -> None:
    sink = deploy(KEYED)
    changes = Changelog(sink, 8)
    changes.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    admin.create_partitions([NewPartitions(sink.topics[0], 3)])[sink.topics[0]].result()
    assert "/2: added and empty" in stored_offsets(sink).detail
    sink.partitions = 3
    changes.begin_anew()
    changes.produce(100)
    assert stored_offsets(sink).code == "HG-242"
    sink.change({"changes": {"on_partitions_added": "wait"}})
    assert stored_offsets(sink).code == "HG-222"
    sink.change({"changes": {"on_partitions_added": "wait-any"}})
    assert "/2: added, and held for 600000 ms" in stored_offsets(sink).detail


def test_key_8_a_topic_that_was_not_multiplied_stops_the_sink_until_it_is_reset(
    deploy: Deploy, admin: AdminClient
) -> None:
    """The procedure of docs/guides/upserts-and-deletes.md, with the same names."""
    sink = deploy(GROWS)
    topic = sink.topics[0]
    changes = Changelog(sink, 9)
    changes.produce(300)
    sink.start()
    sink.wait_until_lag_zero()
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result()
    assert f"{topic} has grown from 2 to 5 partitions" in sink.stopped_by_itself("HG-222")
    assert stored_offsets(sink).code == "HG-222"
    assert any("HG-222" in note for note in read_status(sink.settings).notes)

    delete_topics(admin, topic)
    admin.create_topics([NewTopic(topic, 5, 1)])[topic].result()
    sink.partitions = 5
    anew = Changelog(sink, 10)
    anew.produce(600)
    with sink.catalog() as catalog:
        catalog.drop_table(sink.settings.table.identifier)
    sink.change({"coordinator": {"on_table_recreated": "restart"}})
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert_folded(sink, anew)
    assert_well(sink)


def stored_offsets(sink: Deployment) -> Check:
    return next(each for each in check(sink.settings) if each.what == "stored offsets")
