"""What a takeover refuses before it asks anybody."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import confluent_kafka as kafka
import pytest
from unit.operations.routed_shop import shop_settings

from headgate.control_protocol.errors import TakeoverUnfit, Unreachable
from headgate.control_protocol.identifiers import TopicId
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
