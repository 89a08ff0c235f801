"""The contract of ``ControlLog``: what every control log, real or fake, promises to both roles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import AdminClient
from support.control_envelopes import EXAMPLES, envelope
from support.topics import delete_topics, wait_for_topics

from headgate.control_protocol import message_encoding
from headgate.control_protocol.errors import LogDiscontinuity
from headgate.control_protocol.events import Envelope, LogRecord, Presence, PresenceKind
from headgate.control_protocol.identifiers import ControlOffset
from headgate.control_protocol.message_encoding import SkipReason, Wire
from headgate.control_protocol.ports import ControlLog
from headgate.control_protocol.signatures import Keys
from headgate.control_protocol.testing import FakeLog, FakeLogServer
from headgate.kafka.control_log import KafkaLog, KafkaLogTimes
from headgate.kafka.control_topic import ensure_control_topic

TURN_MS = 200
TURNS_MAX = 100


class CountingLog(ControlLog, Protocol):
    skipped: Counter[SkipReason]


class World(Protocol):
    """A control topic and everybody who touches it."""

    def open(self, wire: Wire | None = None) -> CountingLog: ...
    def append_foreign(self, message: bytes) -> None: ...
    def expire(self, before: int) -> None: ...
    def recreate(self) -> None: ...


class FakeWorld:
    def __init__(self) -> None:
        self._server = FakeLogServer()

    def open(self, wire: Wire | None = None) -> CountingLog:
        return FakeLog(self._server, wire)

    def append_foreign(self, message: bytes) -> None:
        self._server.append(message)

    def expire(self, before: int) -> None:
        self._server.expire(before)

    def recreate(self) -> None:
        self._server.recreate()


class KafkaWorld:
    def __init__(self, bootstrap: str, topic: str, stack: ExitStack) -> None:
        self._config = {"bootstrap.servers": bootstrap}
        self._topic = topic
        self._stack = stack
        self._admin = AdminClient(self._config)
        ensure_control_topic(self._config, topic)

    def open(self, wire: Wire | None = None) -> CountingLog:
        config = {**self._config, "group.id": "sink"}
        log = KafkaLog(config, self._topic, KafkaLogTimes(identity_ms=50), wire)
        self._stack.callback(log.close)
        return log

    def append_foreign(self, message: bytes) -> None:
        producer = kafka.Producer(self._config)
        producer.produce(self._topic, message, partition=0)
        assert producer.flush(10) == 0

    def expire(self, before: int) -> None:
        partition = kafka.TopicPartition(self._topic, 0, before)
        for future in self._admin.delete_records([partition]).values():
            future.result()

    def recreate(self) -> None:
        delete_topics(self._admin, self._topic)
        ensure_control_topic(self._config, self._topic)
        wait_for_topics(self._admin, self._topic)


@pytest.fixture(params=["fake", pytest.param("kafka", marks=pytest.mark.integration)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld()
        return
    admin: AdminClient = request.getfixturevalue("admin")
    topic: str = request.getfixturevalue("unique_name")
    with ExitStack() as stack:
        yield KafkaWorld(request.getfixturevalue("bootstrap"), topic, stack)
    delete_topics(admin, topic)


def numbered_event(number: int) -> Envelope:
    return envelope(EXAMPLES["presence"], sequence=number)


def receive(log: ControlLog, count: int) -> list[LogRecord]:
    """The next records, no more and no fewer than ``count``."""
    records: list[LogRecord] = []
    for _ in range(TURNS_MAX):
        records += log.read(TURN_MS)
        if len(records) >= count:
            break
    assert len(records) == count
    return records


def await_discontinuity(log: ControlLog) -> None:
    with pytest.raises(LogDiscontinuity):
        for _ in range(TURNS_MAX):
            log.read(TURN_MS)


def test_every_client_reads_what_was_appended_in_order(world: World) -> None:
    writer, readers = world.open(), [world.open(), world.open()]
    writer.append([numbered_event(0)])
    writer.append([numbered_event(1), numbered_event(2)])
    for reader in [*readers, writer]:
        records = receive(reader, 3)
        assert [record.envelope for record in records] == [
            numbered_event(0),
            numbered_event(1),
            numbered_event(2),
        ]
        assert [record.offset for record in records] == [0, 1, 2]


def test_an_idle_log_reads_as_nothing(world: World) -> None:
    assert world.open().read(10) == []


def test_a_reader_goes_on_where_it_is_placed(world: World) -> None:
    log = world.open()
    log.append([numbered_event(n) for n in range(5)])
    log.seek(ControlOffset(3))
    assert [record.offset for record in receive(log, 2)] == [3, 4]
    log.seek(ControlOffset(1))
    assert [record.offset for record in receive(log, 4)] == [1, 2, 3, 4]


def test_the_end_is_where_the_next_event_goes(world: World) -> None:
    log = world.open()
    assert log.end_offset() == 0
    log.append([numbered_event(0), numbered_event(1)])
    end = log.end_offset()
    log.seek(end)
    assert log.read(10) == []
    log.append([numbered_event(2)])
    assert receive(log, 1) == [LogRecord(end, numbered_event(2))]


def test_more_records_than_one_read_takes_all_arrive(world: World) -> None:
    log = world.open()
    log.append([numbered_event(n) for n in range(2_500)])
    assert [record.envelope.sequence for record in receive(log, 2_500)] == list(range(2_500))


def test_a_message_of_the_largest_size_passes(world: World) -> None:
    state = "x" * (message_encoding.MESSAGE_BYTES_MAX - 200)
    large = envelope(Presence(PresenceKind.ALIVE, frozenset(), {}, state))
    log = world.open()
    log.append([large])
    assert receive(log, 1)[0].envelope == large


def test_what_is_not_ours_is_skipped_and_counted(world: World) -> None:
    log = world.open()
    world.append_foreign(b"hello")
    world.append_foreign(b"")
    world.append_foreign(message_encoding.encode_envelope(numbered_event(0))[:-1])
    world.append_foreign(message_encoding.encode_envelope(replace(numbered_event(0), version=99)))
    log.append([numbered_event(1)])
    assert receive(log, 1) == [LogRecord(ControlOffset(4), numbered_event(1))]
    assert log.skipped == {
        SkipReason.NOT_OURS: 2,
        SkipReason.UNDECODABLE: 1,
        SkipReason.OTHER_VERSION: 1,
    }


def test_a_place_behind_the_end_is_a_discontinuity(world: World) -> None:
    log = world.open()
    log.append([numbered_event(0)])
    log.seek(ControlOffset(7))
    await_discontinuity(log)


def test_an_expired_place_is_a_discontinuity(world: World) -> None:
    log = world.open()
    log.append([numbered_event(0), numbered_event(1), numbered_event(2)])
    world.expire(before=2)
    log.seek(ControlOffset(1))
    await_discontinuity(log)


def test_a_re_created_log_is_a_discontinuity_until_the_reader_is_placed(world: World) -> None:
    reader, other = world.open(), world.open()
    reader.append([numbered_event(0), numbered_event(1)])
    receive(reader, 2)
    world.recreate()
    await_discontinuity(reader)
    with pytest.raises(LogDiscontinuity):
        reader.read(0)
    reader.seek(reader.end_offset())
    reader.append([numbered_event(2)])
    assert receive(reader, 1) == [LogRecord(ControlOffset(0), numbered_event(2))]
    other.seek(ControlOffset(0))
    assert receive(other, 1) == [LogRecord(ControlOffset(0), numbered_event(2))]


def test_a_re_created_log_that_grew_is_a_discontinuity_too(world: World) -> None:
    reader, writer = world.open(), world.open()
    writer.append([numbered_event(0)])
    receive(reader, 1)
    world.recreate()
    writer.append([numbered_event(n) for n in range(9)])
    await_discontinuity(reader)


def test_signed_events_are_heard_by_those_who_have_the_key(world: World) -> None:
    """Also on a topic that was re-created, whose id the signatures then hold."""
    sink = numbered_event(0).sink
    signed, forging = Wire(sink, Keys(("key " * 8,))), Wire(sink, Keys(("else" * 8,)))
    speaker, hearer, forger, bare = (
        world.open(wire) for wire in (signed, signed, forging, Wire(sink))
    )
    for number, log in enumerate((forger, speaker, bare)):
        log.append([numbered_event(number)])
    assert [record.envelope for record in receive(hearer, 1)] == [numbered_event(1)]
    speaker.append([numbered_event(3)])
    assert [record.envelope for record in receive(hearer, 1)] == [numbered_event(3)]
    assert hearer.skipped == {SkipReason.WRONGLY_SIGNED: 1, SkipReason.UNSIGNED: 1}
    assert [record.envelope for record in receive(bare, 1)] == [numbered_event(2)]
    assert bare.skipped[SkipReason.SIGNED] >= 1

    world.recreate()
    with pytest.raises(LogDiscontinuity):
        for _ in range(TURNS_MAX):
            hearer.read(TURN_MS)
    for log in (hearer, speaker):
        log.seek(ControlOffset(0))
    speaker.append([numbered_event(4)])
    assert [record.envelope for record in receive(hearer, 1)] == [numbered_event(4)]
