"""Tests the contract of ``GroupMember``: who owns what, when it lets go, what it may copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import GroupMember
from headgate.control_protocol.testing import FakeGroup, FakeMember, FakeSource
from headgate.kafka.consumer_group import GroupProtocol, KafkaGroupMember
from headgate.kafka.group_offsets import read_offsets_with_metadata

PARTITIONS = 4
PATIENCE_S = 40.0

Handler = Callable[[frozenset[TopicPartition]], None]


class World(Protocol):
    """A group over one topic of four partitions."""

    topic: str

    def join(self, name: str, on_revoke: Handler) -> GroupMember: ...
    def leave(self, name: str) -> None: ...
    def produce(self, partition: int, records: int) -> None: ...
    def committed(self) -> dict[TopicPartition, tuple[int, str]]: ...
    def close(self) -> None: ...


class FakeWorld:
    """The fake group shares partitions out as Kafka's assignors would: evenly."""

    topic = "topic"

    def __init__(self) -> None:
        self.source = FakeSource()
        self.source.create_or_replace(self.topic, PARTITIONS)
        self.group = FakeGroup(self.source)
        self.members: dict[str, FakeMember] = {}

    def join(self, name: str, on_revoke: Handler) -> GroupMember:
        self.members[name] = FakeMember(self.group, name, on_revoke)
        self._share_out()
        return self.members[name]

    def leave(self, name: str) -> None:
        self.members.pop(name).close()
        self._share_out()

    def _share_out(self) -> None:
        names = sorted(self.members)
        everything = sorted(self.source.partitions)
        self.group.set_target_assignment(
            {n: everything[i :: len(names)] for i, n in enumerate(names)}
        )

    def produce(self, partition: int, records: int) -> None:
        self.source.produce(TopicPartition(self.topic, partition), records)

    def committed(self) -> dict[TopicPartition, tuple[int, str]]:
        return self.source.committed

    def close(self) -> None:
        """Nothing is held."""


class KafkaWorld:
    """A real group under one of Kafka's protocols."""

    def __init__(self, admin: AdminClient, topic: str, bootstrap: str) -> None:
        self.admin = admin
        self.topic = topic
        self.config = {"bootstrap.servers": bootstrap}
        self.protocol: GroupProtocol = "classic"
        self.stack = ExitStack()
        self.members: dict[str, KafkaGroupMember] = {}

    def join(self, name: str, on_revoke: Handler) -> GroupMember:
        member = KafkaGroupMember(
            self.config, [self.topic], self.topic, self.protocol, on_revoke=on_revoke
        )
        self.members[name] = member
        self.stack.callback(member.close)
        return member

    def leave(self, name: str) -> None:
        self.members.pop(name).close()

    def produce(self, partition: int, records: int) -> None:
        producer = Producer(self.config)
        for _ in range(records):
            producer.produce(self.topic, b"x", partition=partition)
        assert producer.flush(30) == 0

    def committed(self) -> dict[TopicPartition, tuple[int, str]]:
        partitions = self.admin.list_topics(self.topic).topics[self.topic].partitions
        asked = [(self.topic, number) for number in partitions]
        return {
            TopicPartition(p.topic, p.partition): (p.offset, p.metadata)
            for p in read_offsets_with_metadata(self.config, self.topic, asked, timeout_s=10)
            if p.offset >= 0
        }

    def close(self) -> None:
        self.stack.close()


@pytest.fixture(
    params=[
        "fake",
        pytest.param("classic", marks=[pytest.mark.integration, pytest.mark.wide]),
        pytest.param("consumer", marks=pytest.mark.integration),
    ]
)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld()
        return
    topic = request.getfixturevalue("topic_factory")(PARTITIONS)
    admin, bootstrap = map(request.getfixturevalue, ("admin", "bootstrap"))
    world = KafkaWorld(admin, topic, bootstrap)
    world.protocol = request.param
    yield world
    world.close()


def everything(world: World) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(world.topic, number) for number in range(PARTITIONS))


def poll_until(members: list[GroupMember], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        for member in members:
            member.poll(20)


def nothing(_: frozenset[TopicPartition]) -> None:
    """For members that nobody asks."""


def test_nobody_owns_anything_before_polling(world: World) -> None:
    assert world.join("a", nothing).assignment() == frozenset()


def test_a_member_alone_owns_everything(world: World) -> None:
    member = world.join("a", nothing)
    poll_until([member], lambda: member.assignment() == everything(world))


def test_partitions_move_only_after_their_owner_was_asked(world: World) -> None:
    asked: set[TopicPartition] = set()
    owned_when_asked: list[bool] = []

    def ask(partitions: frozenset[TopicPartition]) -> None:
        asked.update(partitions)
        owned_when_asked.append(partitions <= first.assignment())
        owned_when_asked.append(not partitions & second.assignment())

    first = world.join("a", ask)
    poll_until([first], lambda: first.assignment() == everything(world))
    second = world.join("b", nothing)
    poll_until(
        [first, second],
        lambda: (
            len(second.assignment()) == PARTITIONS // 2
            and first.assignment() | second.assignment() == everything(world)
        ),
    )
    assert not first.assignment() & second.assignment()
    assert second.assignment() <= asked
    assert owned_when_asked
    assert all(owned_when_asked)


def test_what_a_handler_raises_reaches_the_poller_and_the_partitions_move(world: World) -> None:
    def fail(_: frozenset[TopicPartition]) -> None:
        raise OSError("disk full")

    first = world.join("a", fail)
    poll_until([first], lambda: first.assignment() == everything(world))
    second = world.join("b", nothing)
    with pytest.raises(OSError, match="disk full"):
        poll_until([first, second], lambda: False)
    poll_until([first, second], lambda: len(second.assignment()) == PARTITIONS // 2)


def test_who_leaves_owns_nothing_is_not_asked_and_its_partitions_are_taken_up(
    world: World,
) -> None:
    asked: list[frozenset[TopicPartition]] = []
    first, second = world.join("a", nothing), world.join("b", asked.append)
    poll_until([first, second], lambda: len(second.assignment()) == PARTITIONS // 2)
    asked.clear()
    world.leave("b")
    assert second.assignment() == frozenset()
    assert asked == []
    poll_until([first], lambda: first.assignment() == everything(world))


def test_end_offsets_are_the_next_to_be_written_whoever_owns(world: World) -> None:
    world.produce(1, 3)
    partitions = sorted(everything(world))[:2]
    member = world.join("a", nothing)
    poll_until([member], lambda: bool(member.assignment()))
    assert member.end_offsets(partitions) == dict(zip(partitions, [0, 3], strict=True))
    assert member.end_offsets([]) == {}


def test_a_partition_that_is_not_there_has_no_end(world: World) -> None:
    here, gone = TopicPartition(world.topic, 0), TopicPartition("no-such-topic", 0)
    member = world.join("a", nothing)
    poll_until([member], lambda: bool(member.assignment()))
    assert member.end_offsets([here, gone]) == {here: 0}


def test_settled_offsets_are_copied_with_their_note(world: World) -> None:
    world.produce(2, 5)
    own, foreign = TopicPartition(world.topic, 2), TopicPartition("elsewhere", 0)
    member = world.join("a", nothing)
    poll_until([member], lambda: own in member.assignment())
    member.copy_offsets_to_group(Offsets({own: 4, foreign: 9}), "sink")
    poll_until([member], lambda: world.committed() == {own: (4, "sink")})


def test_only_owners_copy_offsets(world: World) -> None:
    member = world.join("a", nothing)
    member.copy_offsets_to_group(Offsets({TopicPartition(world.topic, 0): 4}), "sink")
    poll_until([member], lambda: member.assignment() == everything(world))
    assert world.committed() == {}
