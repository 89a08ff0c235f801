"""The group member on a real broker: who owns what, and that it never fetches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.kafka.consumer_group import KafkaGroupMember

pytestmark = pytest.mark.integration

EAGER = {"partition.assignment.strategy": "range"}
PROTOCOLS = [
    ("classic", {}),
    pytest.param("classic", EAGER, marks=pytest.mark.wide),
    ("consumer", {}),
]
each_protocol = pytest.mark.parametrize(
    ("protocol", "settings"), PROTOCOLS, ids=["cooperative", "eager", "kip-848"]
)
PATIENCE_S = 40.0

Join = Callable[..., KafkaGroupMember]


@pytest.fixture
def join(bootstrap: str, topic: str) -> Iterator[Join]:
    """Makes members of one group, closed at the test's end."""
    with ExitStack() as stack:

        def joined(
            protocol: str,
            settings: dict[str, Any],
            on_revoke: Callable[[frozenset[TopicPartition]], None] = lambda _: None,
        ) -> KafkaGroupMember:
            config = {
                "bootstrap.servers": bootstrap,
                **settings,
            }
            member = KafkaGroupMember(config, [topic], topic, protocol, on_revoke=on_revoke)
            stack.callback(member.close)
            return member

        yield joined


def polled_until(members: Sequence[KafkaGroupMember], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        for member in members:
            member.poll(20)


def all_of(topic: str, count: int = 4) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in range(count))


def shared(members: Sequence[KafkaGroupMember], everything: frozenset[TopicPartition]) -> bool:
    owned = [member.assignment() for member in members]
    return (
        all(owned)
        and frozenset().union(*owned) == everything
        and sum(map(len, owned)) == len(everything)
    )


@each_protocol
def test_members_share_partitions_and_hand_them_over(
    join: Join, topic: str, protocol: str, settings: dict[str, Any]
) -> None:
    revoked: list[frozenset[TopicPartition]] = []
    still_owned: list[bool] = []

    def leaving(partitions: frozenset[TopicPartition]) -> None:
        revoked.append(partitions)
        still_owned.append(partitions <= first.assignment())

    first = join(protocol, settings, leaving)
    polled_until([first], lambda: first.assignment() == all_of(topic))
    second = join(protocol, settings)
    polled_until([first, second], lambda: shared([first, second], all_of(topic)))
    assert second.assignment() <= frozenset().union(*revoked)
    assert still_owned
    assert all(still_owned)
    second.close()
    polled_until([first], lambda: first.assignment() == all_of(topic))


@each_protocol
def test_an_added_partition_is_owned_without_a_restart(
    join: Join, topic: str, admin: AdminClient, protocol: str, settings: dict[str, Any]
) -> None:
    member = join(protocol, {**settings, "topic.metadata.refresh.interval.ms": 1_000})
    polled_until([member], lambda: member.assignment() == all_of(topic))
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result()
    polled_until([member], lambda: member.assignment() == all_of(topic, 6))


@each_protocol
def test_nothing_is_fetched_before_or_after_a_rebalance(
    join: Join, topic: str, bootstrap: str, protocol: str, settings: dict[str, Any]
) -> None:
    fetched: list[int] = []

    def statistics(text: str) -> None:
        partitions = json.loads(text)["topics"].get(topic, {"partitions": {}})["partitions"]
        fetched.append(sum(p["rxmsgs"] for p in partitions.values()))

    watched = {**settings, "statistics.interval.ms": 100, "stats_cb": statistics}
    producer = Producer({"bootstrap.servers": bootstrap})

    def fill() -> None:
        for number in range(400):
            producer.produce(topic, b"x" * 100, partition=number % 4)
        producer.flush()

    fill()
    first = join(protocol, watched)
    polled_until([first], lambda: first.assignment() == all_of(topic))
    second = join(protocol, settings)
    polled_until([first, second], lambda: shared([first, second], all_of(topic)))
    fill()
    second.close()
    polled_until([first], lambda: first.assignment() == all_of(topic))
    fill()
    seen = len(fetched)
    polled_until([first], lambda: len(fetched) >= seen + 5)
    assert set(fetched) == {0}


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("classic", {"session.timeout.ms": "6000", "max.poll.interval.ms": "6000"}),
        ("consumer", {"max.poll.interval.ms": "2000"}),
    ],
    ids=["cooperative", "kip-848"],
)
def test_partitions_lost_without_notice_vanish_before_they_come_again(
    join: Join, topic: str, protocol: str, settings: dict[str, Any]
) -> None:
    revoked: list[frozenset[TopicPartition]] = []
    member = join(protocol, settings, revoked.append)
    polled_until([member], lambda: member.assignment() == all_of(topic))
    time.sleep(int(settings["max.poll.interval.ms"]) / 1000 + 1)  # a driver that hangs
    polled_until([member], lambda: member.assignment() == frozenset())
    polled_until([member], lambda: member.assignment() == all_of(topic))
    assert revoked == []


@each_protocol
def test_a_handler_that_fails_is_heard_and_its_partitions_move_on(
    join: Join, topic: str, protocol: str, settings: dict[str, Any]
) -> None:
    def failing(_: frozenset[TopicPartition]) -> None:
        raise OSError("disk full")

    first = join(protocol, settings, failing)
    polled_until([first], lambda: first.assignment() == all_of(topic))
    second = join(protocol, settings)
    with pytest.raises(OSError, match="disk full"):
        polled_until([first, second], lambda: False)
    polled_until([first, second], lambda: shared([first, second], all_of(topic)))


def test_end_offsets_stop_at_an_open_transaction(join: Join, topic: str, bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for last in (True, False):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, b"x", partition=0)
        producer.flush()
        if last:
            producer.commit_transaction()
    open_and_empty = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    member = join("classic", {})
    assert member.end_offsets(open_and_empty) == dict(zip(open_and_empty, [11, 0], strict=True))
    producer.abort_transaction()
    ended = {open_and_empty[0]: 22}  # the abort's marker counts, and arrives after the call
    polled_until([member], lambda: member.end_offsets(open_and_empty[:1]) == ended)


def test_end_offsets_leave_out_a_topic_that_is_gone(join: Join, topic: str) -> None:
    here, gone = TopicPartition(topic, 0), TopicPartition("no-such-topic", 0)
    assert join("classic", {}).end_offsets([here, gone]) == {here: 0}


def test_a_cluster_that_does_not_answer_is_unreachable(nobody: dict[str, str]) -> None:
    member = KafkaGroupMember(nobody, ["t"], "g", on_revoke=lambda _: None, request_timeout_s=0.5)
    member.poll(10)
    with pytest.raises(Unreachable, match="lists no topics"):
        member.end_offsets([TopicPartition("t", 0)])
    member.copy_offsets_to_group(Offsets({TopicPartition("t", 0): 1}), "note")
    member.close()


def test_a_cluster_that_is_away_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The client tries to connect some twenty times a second: one complaint is enough."""
    nobody = {"bootstrap.servers": "127.0.0.1:1"}
    member = KafkaGroupMember(nobody, ["t"], "g", on_revoke=lambda _: None)
    try:
        polled_until([member], lambda: "brokers are down" in caplog.text)
        member.poll(1_000)
    finally:
        member.close()
    assert "Connect to" not in caplog.text
    # Producers of other tests may still look for brokers that have ended.
    assert "127.0.0.1:1/" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "settings", [{"no.such.key": "1"}, {"session.timeout.ms": "10000"}], ids=["unknown", "kip-848"]
)
def test_settings_that_the_client_refuses_are_named(settings: dict[str, str]) -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", **settings}
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        KafkaGroupMember(config, ["t"], "g", "consumer", on_revoke=lambda _: None)
