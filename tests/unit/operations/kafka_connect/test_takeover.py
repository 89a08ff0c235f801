"""What a takeover refuses before it asks anybody."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka as kafka
import pytest
from unit.operations.routed_shop import shop_settings

from headgate.control_protocol.errors import ConfigurationError, TakeoverUnfit, Unreachable
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import TopicState
from headgate.operations.access import kafka_connection
from headgate.operations.kafka_connect import control_topic, takeover
from headgate.operations.kafka_connect.control_topic import ControlTopic
from headgate.operations.kafka_connect.takeover import TakeoverRequest, plan_takeover_of_sink


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("", "a connector without a class"),
        ("io.tabular.iceberg.connect.IcebergSinkConnector", "in another form"),
        ("org.apache.hudi.connect.HudiSinkConnector", "is not Iceberg's sink"),
    ],
)
def test_takeover_9_a_connector_of_another_kind_is_refused(
    tmp_path: Path, kind: str, said: str
) -> None:
    with pytest.raises(TakeoverUnfit, match=said):
        plan_takeover_of_sink(shop_settings(tmp_path), {"connector.class": kind}, TakeoverRequest())


@pytest.mark.parametrize(
    ("more", "group"),
    [({"name": "shop"}, "cg-control-shop"), ({"iceberg.control.group-id": "own"}, "own")],
)
def test_the_ancestor_s_group_is_named(tmp_path: Path, more: dict[str, str], group: str) -> None:
    keys = {"connector.class": "io.tabular.iceberg.connect.IcebergSinkConnector", **more}
    with pytest.raises(TakeoverUnfit) as refused:
        plan_takeover_of_sink(shop_settings(tmp_path), keys, TakeoverRequest())
    assert refused.value.hint.endswith(f"--from-group {group}")


def test_brokers_that_do_not_answer_at_the_last_look_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_answer(*_: object) -> None:
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))

    silent = SimpleNamespace(list_topics=no_answer, close=lambda: None)
    monkeypatch.setattr(control_topic, "new_consumer", lambda _: silent)
    with pytest.raises(Unreachable, match="control-iceberg cannot be read") as refused:
        control_topic.read_last_stable_offsets({}, "control-iceberg", "group")
    assert "run the same command again" in refused.value.hint


def test_a_partition_that_gives_nothing_is_named_although_others_are_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beyond_its_end = SimpleNamespace(error=lambda: None, partition=lambda: 0, offset=lambda: 5)
    answers = iter([[beyond_its_end]] * 1000)
    consumer: Any = SimpleNamespace(assign=lambda _: None, consume=lambda *_: next(answers))
    monkeypatch.setattr(control_topic, "_SILENCE_S_MAX", 0.0)
    with pytest.raises(Unreachable, match="control-iceberg gives no more records"):
        control_topic._read_range(consumer, "control-iceberg", {0: 0, 1: 0}, {0: 5, 1: 5})


def test_a_partition_without_a_leader_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out, it would begin at its log's begin where its announcements have expired."""
    led = TopicState(TopicId("id"), {0: OffsetRange(0, 9)}, silent=frozenset({1}))
    source = SimpleNamespace(describe=lambda: {"shop": led})
    for name, answer in {
        "require_no_running_participants": None,
        "require_empty_group": None,
        "read_control_topic": ControlTopic((), {}, {}),
        "read_group_offsets": {},
    }.items():
        monkeypatch.setattr(takeover, name, lambda *_, answer=answer: answer)
    opened = nullcontext(source)
    monkeypatch.setattr(kafka_connection, "open_reachable_source_topics", lambda _: opened)
    keys = {"connector.class": "IcebergSink", "name": "shop"}
    with pytest.raises(Unreachable, match="no broker leads shop/1"):
        plan_takeover_of_sink(shop_settings(tmp_path), keys, TakeoverRequest())


LOG_0 = {"shop": TopicState(TopicId("id"), {0: OffsetRange(5, 9)})}
AT = TopicPartition("shop", 0)


@pytest.fixture
def connector_that_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in {
        "require_no_running_participants": None,
        "require_empty_group": None,
        "read_control_topic": ControlTopic((), {}, {}),
        "read_group_offsets": {},
        "read_topics": LOG_0,
        "_require_unclaimed": None,
        "_find_tables_of_connector": ([], ()),
        "_require_exact": None,
    }.items():
        monkeypatch.setattr(takeover, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(takeover, "open_tables_creating_nothing", lambda _: nullcontext(None))


def planned(tmp_path: Path, began: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    keys = {"connector.class": "IcebergSink", "name": "shop"}
    request = TakeoverRequest(began=began)
    return dict(plan_takeover_of_sink(shop_settings(tmp_path), keys, request).offsets)


@pytest.mark.usefixtures("connector_that_read_nothing")
@pytest.mark.parametrize(("began", "offset"), [({}, 5), ({AT: 5}, 5), ({AT: 7}, 7), ({AT: 9}, 9)])
def test_an_unread_partition_begins_where_its_log_or_the_operator_says(
    tmp_path: Path, began: dict[TopicPartition, int], offset: int
) -> None:
    assert planned(tmp_path, began) == {AT: offset}


@pytest.mark.usefixtures("connector_that_read_nothing")
@pytest.mark.parametrize(
    ("began", "said"),
    [
        ({AT: 10}, "--began shop/0=10: the topic holds offsets 5 to 9"),
        ({AT: 4}, "--began shop/0=4: the topic holds offsets 5 to 9"),
        ({TopicPartition("shop", 1): 7}, "--began shop/1: the sink reads no such partition"),
        ({TopicPartition("shpo", 0): 7}, "--began shpo/0: the sink reads no such partition"),
    ],
)
def test_a_beginning_that_the_topic_does_not_have_is_refused(
    tmp_path: Path, began: dict[TopicPartition, int], said: str
) -> None:
    """Beyond its end, the sink would skip every record of the partition."""
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        planned(tmp_path, began)
