"""The control topic is created correctly, or its fault is named (HG-104, HG-401, HG-402)."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from conftest import TopicFactory
from support.control_envelopes import EXAMPLES, envelope
from support.topics import delete_topics

from headgate.control_protocol.errors import (
    AppendUnconfirmed,
    ClockDiffers,
    ConfigurationError,
    ControlTopicUnfit,
    Unreachable,
)
from headgate.kafka.control_log import KafkaLog, KafkaLogTimes, LogClients
from headgate.kafka.control_topic import (
    ensure_control_topic,
    require_fitting_topic_if_present,
    will_use_append_time,
)
from headgate.operations.local_kafka.broker import EmbeddedKafka

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
GROUP = {"group.id": "sink"}


@pytest.mark.integration
def test_a_missing_topic_is_made_with_the_right_settings(
    bootstrap: str, admin: AdminClient, unique_name: str
) -> None:
    config = {"bootstrap.servers": bootstrap}
    assert not require_fitting_topic_if_present(config, unique_name)
    ensure_control_topic(config, unique_name)
    try:
        ensure_control_topic(config, unique_name)
        assert require_fitting_topic_if_present(config, unique_name)
        resource = ConfigResource(ResourceType.TOPIC, unique_name)
        settings = admin.describe_configs([resource])[resource].result()
        assert settings["cleanup.policy"].value == "delete"
        assert int(settings["max.message.bytes"].value) == 1024 * 1024
        assert settings["message.timestamp.type"].value == "LogAppendTime"
        assert will_use_append_time(config, unique_name)
    finally:
        delete_topics(admin, unique_name)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("partitions", "settings", "said"),
    [
        (2, {}, "has 2 partitions"),
        pytest.param(
            1, {"cleanup.policy": "compact"}, "has cleanup.policy=compact", marks=pytest.mark.wide
        ),
        (1, {"cleanup.policy": "compact,delete"}, "has cleanup.policy=compact,delete"),
        (1, {"max.message.bytes": "9000"}, "has max.message.bytes=9000"),
        pytest.param(
            3,
            {"max.message.bytes": "9000"},
            "3 partitions and max.message.bytes=9000",
            marks=pytest.mark.wide,
        ),
    ],
)
def test_an_unfit_topic_is_refused_with_the_reason(
    bootstrap: str,
    topic_factory: TopicFactory,
    partitions: int,
    settings: dict[str, str],
    said: str,
) -> None:
    topic = topic_factory(partitions, settings)
    for look in (ensure_control_topic, require_fitting_topic_if_present):
        with pytest.raises(ControlTopicUnfit, match=said):
            look({"bootstrap.servers": bootstrap}, topic)


@pytest.mark.integration
def test_events_that_brokers_refuse_for_their_time_name_the_clock(
    bootstrap: str, topic_factory: TopicFactory
) -> None:
    """The topic takes no event older than the brokers' now, as if this clock were behind."""
    topic = topic_factory(1, {"message.timestamp.before.max.ms": "0"})
    assert not will_use_append_time({"bootstrap.servers": bootstrap}, topic)
    log = KafkaLog({"bootstrap.servers": bootstrap, **GROUP}, topic)
    try:
        with pytest.raises(ClockDiffers, match="this machine's clock says 20") as refused:
            for _ in range(100):  # one of the same millisecond is taken
                log.append([envelope(EXAMPLES["presence"])])
        assert refused.value.code == "HG-410"
        assert isinstance(refused.value, AppendUnconfirmed)
    finally:
        log.close()


def test_brokers_that_do_not_answer_are_unreachable() -> None:
    with pytest.raises(Unreachable, match="control topic nowhere"):
        ensure_control_topic(NOBODY, "nowhere", timeout_ms=300)
    log = KafkaLog({**NOBODY, **GROUP}, "nowhere", KafkaLogTimes(delivery_ms=300, request_ms=300))
    try:
        with pytest.raises(Unreachable):
            log.read(0)
        with pytest.raises(Unreachable):
            log.end_offset()
        with pytest.raises(AppendUnconfirmed):
            log.append([envelope(EXAMPLES["pause"])])
    finally:
        log.close()


def test_no_group_but_the_sinks_own_is_asked_for() -> None:
    with pytest.raises(ConfigurationError, match=r"group\.id"):
        KafkaLog(NOBODY, "nowhere")


def test_settings_that_the_client_refuses_are_named() -> None:
    for refused in (KafkaLog, ensure_control_topic):
        with pytest.raises(ConfigurationError, match="no_such_setting"):
            refused({**NOBODY, **GROUP, "no_such_setting": "1"}, "nowhere")


@pytest.mark.wide
@pytest.mark.integration
def test_a_broker_that_dies_and_returns_costs_only_unconfirmed_appends(
    own_kafka: EmbeddedKafka,
) -> None:
    config = {"bootstrap.servers": own_kafka.bootstrap}
    ensure_control_topic(config, "control")
    before, during, after = (envelope(EXAMPLES["presence"], sequence=n) for n in range(3))
    log = KafkaLog(config | GROUP, "control")
    hurried = KafkaLog(
        config | GROUP, "control", KafkaLogTimes(delivery_ms=1_000, request_ms=1_000)
    )
    heard: list[int] = []
    try:
        log.append([before])
        own_kafka.kill()
        with pytest.raises(AppendUnconfirmed):
            hurried.append([during])
        own_kafka.restart()
        log.append([after])
        for _ in range(100):
            heard += [record.envelope.sequence for record in log.read(200)]
            if after.sequence in heard:
                break
    finally:
        log.close()
        hurried.close()
    assert [n for n in heard if n != during.sequence] == [before.sequence, after.sequence]


@pytest.mark.integration
def test_two_logs_of_a_sink_share_a_producer_and_one_that_gives_up_takes_none_with_it(
    bootstrap: str, unique_name: str
) -> None:
    config = {"bootstrap.servers": bootstrap}
    ensure_control_topic(config, unique_name)
    clients = LogClients(config)
    logs = [KafkaLog(config | GROUP, unique_name, clients=clients) for _ in range(2)]
    try:
        broken = clients.get_or_open_producer()
        clients.discard_producer(broken, 1.0)
        clients.discard_producer(broken, 1.0)  # by the other log, whose event was purged as well
        assert clients.get_or_open_producer() is not broken
        for log in logs:
            log.append([envelope(EXAMPLES["presence"])])
        assert logs[0].end_offset() == 2
    finally:
        for log in logs:
            log.close()
