"""Tests what a source may look like, and what may happen to it while a sink reads it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.sink_file import record
from support.topics import delete_topics

from headgate.control_protocol.identifiers import TopicPartition
from headgate.operations.audit.audit import audit
from headgate.operations.demo.producer import ensure_topic

pytestmark = pytest.mark.integration


@pytest.mark.wide
def test_hc31_a_partition_is_added_while_the_sink_runs(deploy: Deploy, admin: AdminClient) -> None:
    sink = deploy({"kafka": {"topic.metadata.refresh.interval.ms": 1_000}})
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        admin.create_partitions([NewPartitions(sink.topics[0], 3)])[sink.topics[0]].result()
        sink.wait_until(lambda: sink.shares() == [1, 2], "owner of the new partition")
    sink.partitions = 3
    sink.produce()
    sink.wait_until_lag_zero()
    sink.stop()
    assert [partition.begin for partition in sink.judge().partitions] == [0, 0, 0]


def test_gaps_of_aborted_transactions_and_of_compaction(
    deploy: Deploy, unique_name: str, admin: AdminClient
) -> None:
    sink = deploy()
    producer = Producer(
        {"bootstrap.servers": sink.bootstrap, "transactional.id": unique_name, "linger.ms": 5}
    )
    producer.init_transactions()
    sink.start(2)
    for number in range(6):
        producer.begin_transaction()
        for i in range(100):
            producer.produce(sink.topics[0], record(i), partition=i % 2)
        producer.flush()
        end = producer.abort_transaction if number % 2 else producer.commit_transaction
        end()
        sink.wait_until_lag_zero()
    sink.stop()
    report = sink.judge()
    assert report.live_rows == 300
    assert [partition.next_offset for partition in report.partitions] == [306, 306]


def test_hc37_two_topics_into_one_table(deploy: Deploy) -> None:
    sink = deploy(topics=2)
    sink.start(2)
    for topic in sink.topics:
        sink.produce(topic=topic)
    sink.wait_until_lag_zero()
    sink.produce(topic=sink.topics[1])
    sink.wait_until_lag_zero()
    sink.stop()
    assert [p.in_table for p in sink.judge().partitions] == [500, 500, 1000, 1000]


@pytest.mark.wide
@pytest.mark.parametrize("where", ["latest", "time"])
def test_a_first_start_behind_the_beginning(deploy: Deploy, where: str) -> None:
    sink = deploy()
    sink.produce(200)
    time.sleep(0.01)  # the records' time stamps are in milliseconds
    now_ms = str(time.time_ns() // 1_000_000)
    sink.change({"source": {"start_at": "latest" if where == "latest" else now_ms}})
    if where == "time":
        sink.produce(100)
    sink.start()
    sink.wait_until(lambda: sink.record() is not None, "first claim")
    sink.produce(100)
    sink.wait_until_lag_zero()
    sink.stop()
    begins = {(sink.topics[0], partition): 100 for partition in range(2)}
    report = sink.judge(since=begins)
    assert [partition.begin for partition in report.partitions] == [100, 100]
    # The place is stored: what the sink file says now is of no importance any more.
    sink.change({"source": {"start_at": "earliest"}})
    sink.start()
    sink.wait_until(lambda: sink.record().transaction.epoch == 2, "second claim")
    sink.stop()
    sink.judge(since=begins)


def test_hg207_the_sink_stops_at_the_record_and_goes_on_there_under_another_policy(
    deploy: Deploy,
) -> None:
    """BATCH-2: what lies before it is committed, in the same batch too; nothing comes twice."""
    sink = deploy()
    at = TopicPartition(sink.topics[0], 1)
    producer = Producer({"bootstrap.servers": sink.bootstrap})
    for value in (*map(record, range(40)), b'{"id": "not a number"}', record(41)):
        producer.produce(at.topic, value, partition=at.partition)
    producer.flush()
    sink.start()
    line = sink.stopped_by_itself("HG-207")
    assert f"{at.topic} partition 1 offset 40: id: " in line
    before = sink.record()
    assert before.offsets[at] == 40
    assert sink.rows().num_rows == 40
    sink.start()  # it does not go away by itself
    assert sink.stopped_by_itself("HG-207")
    assert sink.record().offsets == before.offsets

    sink.change({"quarantine": {"policy": "skip"}})
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert sink.record().offsets[at] == 42
    ids = sink.rows()["id"].to_pylist()
    assert sorted(ids) == [*range(40), 41]


Unread = list[int]
"""The ids of records that the log holds, and that no coordinator has seen."""


def passed_by_retention(sink: Deployment, admin: AdminClient) -> Unread:
    sink.produce(200)
    cut = [KafkaPartition(sink.topics[0], partition, 150) for partition in range(2)]
    for removed in admin.delete_records(cut).values():
        removed.result()
    return list(range(300, 400))


def created_anew(sink: Deployment, admin: AdminClient) -> Unread:
    topic = sink.topics[0]
    delete_topics(admin, topic)
    ensure_topic(sink.bootstrap, topic, partitions=2)
    sink.produce(300)
    return list(range(200, 500))


@pytest.mark.parametrize(
    ("happens", "code", "policy", "chosen"),
    [
        pytest.param(
            passed_by_retention,
            "HG-205",
            "on_offset_out_of_range",
            "latest",
            marks=pytest.mark.wide,
        ),
        (created_anew, "HG-206", "on_topic_recreated", "earliest"),
    ],
)
def test_hc17_hc18_a_source_without_the_stored_offsets(
    deploy: Deploy,
    admin: AdminClient,
    happens: Callable[[Deployment, AdminClient], Unread],
    code: str,
    policy: str,
    chosen: str,
) -> None:
    sink = deploy()
    sink.produce(200)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    before = sink.record()
    unread = happens(sink, admin)
    sink.start()
    line = sink.stopped_by_itself(code)
    assert sink.topics[0] in line
    assert f"coordinator.{policy}" in line
    assert sink.record() == before, "nothing is claimed over a contradiction"
    sink.change({"coordinator": {policy: chosen}})
    sink.start()
    sink.wait_until(lambda: sink.record() != before, "claim by the policy")
    sink.wait_until_lag_zero()
    first_new = sink.produced
    sink.produce(20)
    sink.wait_until_lag_zero()
    sink.stop()
    expected = [
        *range(200),
        *(unread if chosen == "earliest" else ()),
        *range(first_new, first_new + 20),
    ]
    assert sorted(sink.rows()["id"].to_pylist()) == expected
    assert audit(sink.settings).findings == ()
