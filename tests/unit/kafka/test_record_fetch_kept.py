"""What a reading waits for, asks for and gives back; and chunks that are cut and joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException
from unit.kafka.test_record_fetch import A0, A1, B1, Consumer, end, read, records

from headgate.control_protocol.errors import MissingRights, TopicRecreated, WriteFailed
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.kafka import record_fetch
from headgate.kafka.librdkafka_binding import Event, Messages
from headgate.kafka.record_fetch import Chunk, ReadRequest
from headgate.native.byte_arrays import Packed


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(record_fetch, "time", clock)
    return clock


class Slow(Consumer):
    """Each turn takes its time."""

    def __init__(self, clock: Clock, took_s: float, *turns: Any) -> None:
        super().__init__(*turns)
        self.clock, self.took_s = clock, took_s

    def consume(self, _count: int, _ms: int, *, keys: bool, headers: bool) -> Messages:
        self.clock.now_s += self.took_s
        return super().consume(_count, _ms, keys=keys, headers=headers)


def test_one_that_goes_on_slowly_is_not_stalled(clock: Clock) -> None:
    turns = [(records(A0, offset), ()) for offset in range(9)]
    assert len(read(Slow(clock, 0.015, *turns), {A0: (0, 9)}, stall_ms_max=20)) == 9


def test_an_end_of_partition_is_progress_too(clock: Clock) -> None:
    turns = [((), [end(A0, offset)]) for offset in range(1, 9)]
    assert read(Slow(clock, 0.015, *turns), {A0: (0, 8)}, stall_ms_max=20) == []


def test_the_callers_own_time_does_not_count(clock: Clock) -> None:
    consumer = Slow(clock, 0.01, (records(A0, 0), ()), ((), ()), (records(A0, 1), ()))
    reading = ReadRequest({}, {A0: OffsetRange(0, 2)}, {}, stall_ms_max=25)
    for _ in record_fetch._RangeReader(consumer, reading).chunks():  # type: ignore[arg-type]
        clock.now_s += 3_600


def failed(at: TopicPartition, code: int, text: str) -> Event:
    return Event(code, text, at.topic, at.partition, 0)


@pytest.mark.parametrize(
    ("events", "hint"),
    [
        ([], "the broker answers, but nothing comes"),
        ([failed(A0, KafkaError._TRANSPORT, "connection refused")], "connection refused"),
    ],
)
def test_who_stalls_says_what_the_client_said_last(events: list[Event], hint: str) -> None:
    with pytest.raises(WriteFailed, match="a/0: no progress for 20 ms at offset 0") as stalled:
        read(Consumer(((), events)), {A1: (3, 3), A0: (0, 4)}, stall_ms_max=20)
    assert stalled.value.hint == hint


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED]
)
def test_a_missing_right_is_named_at_once(code: int) -> None:
    with pytest.raises(MissingRights, match="b/1 may not be read: no"):
        read(Consumer(((), [failed(B1, code, "no")])), {B1: (0, 1)})


def test_what_brokers_say_of_a_group_keeps_nobody_from_reading() -> None:
    refused = failed(B1, KafkaError.GROUP_AUTHORIZATION_FAILED, "no")
    read(Consumer(((), [refused]), (records(B1, 0), [])), {B1: (0, 1)})


class Admin:
    """Describes topics by their ids."""

    def __init__(self, ids: Mapping[str, str | Exception]) -> None:
        self.ids = ids
        self.asked: list[list[str]] = []

    def describe_topics(self, topics: Any, **asked: float) -> Mapping[str, Any]:
        assert asked["request_timeout"] == 15
        self.asked.append(topics.topic_names)
        return {name: SimpleNamespace(result=lambda n=name: self._found(n)) for name in self.ids}

    def _found(self, name: str) -> Any:
        answer = self.ids[name]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(topic_id=answer)


class Clients:
    """A pool of one consumer."""

    def __init__(self, consumer: Consumer, admin: Admin) -> None:
        self.consumer, self.asked = consumer, admin
        self.ended: list[str] = []
        consumer.unassign = lambda: self.ended.append("unassigned")  # type: ignore[attr-defined]
        consumer.close = lambda: self.ended.append("closed")  # type: ignore[attr-defined]

    def take_consumer(self, _: object) -> Consumer:
        return self.consumer

    def give_back_consumer(self, *_: object) -> None:
        self.ended.append("given back")

    def get_or_open_admin(self, _: object) -> Admin:
        return self.asked


def through(monkeypatch: pytest.MonkeyPatch, clients: Clients, ids: Mapping[str, str]) -> int:
    monkeypatch.setattr(record_fetch, "_CLIENTS", clients)
    topics = {name: TopicId(topic_id) for name, topic_id in ids.items()}
    reading = ReadRequest({}, {A0: OffsetRange(0, 1)}, topics, stall_ms_max=20)
    return sum(len(chunk.values) for chunk in record_fetch.read_ranges(reading))


def test_a_consumer_that_read_to_the_end_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients = Clients(Consumer((records(A0, 0), ())), Admin({"a": "id"}))
    assert through(monkeypatch, clients, {"a": "id", "b": "other"}) == 1
    assert clients.asked.asked == [["a"]], "only topics that it reads"
    assert clients.ended == ["unassigned", "given back"]


def test_without_ids_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(Consumer((records(A0, 0), ())), Admin({}))
    assert through(monkeypatch, clients, {"b": "other"}) == 1
    assert clients.asked.asked == []


AWAY = ((), [failed(A0, KafkaError.OFFSET_OUT_OF_RANGE, "out of range")])


@pytest.mark.parametrize("turn", [(records(A0, 0), ()), AWAY, ((), ())], ids=["end", "away", "-"])
def test_a_topic_that_is_another_is_named_however_the_reading_ends(
    monkeypatch: pytest.MonkeyPatch, turn: Any
) -> None:
    clients = Clients(Consumer(turn), Admin({"a": "new"}))
    with pytest.raises(TopicRecreated, match="a has the id new, its offsets belong to old"):
        through(monkeypatch, clients, {"a": "old"})
    assert clients.ended == ["closed"]


def test_a_topic_that_cannot_be_described_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    clients = Clients(Consumer((records(A0, 0), ())), Admin({"a": problem}))  # type: ignore[dict-item]
    with pytest.raises(WriteFailed, match="a cannot be described"):
        through(monkeypatch, clients, {"a": "id"})
    assert clients.ended == ["closed"]


# ------------------------------------------------------------------------------------ how many


class Counting(Consumer):
    """Hands over records of one size, and notes how many it was asked for, and for what."""

    def __init__(self, size: int, *turns: Any) -> None:
        super().__init__(*turns)
        self.size = size
        self.counts: list[int] = []
        self.wanted: set[tuple[bool, bool]] = set()

    def consume(self, count: int, _ms: int, *, keys: bool, headers: bool) -> Messages:
        self.counts.append(count)
        self.wanted.add((keys, headers))
        found = super().consume(count, _ms, keys=False, headers=False)
        found.sizes[:] = self.size
        return found


@pytest.mark.parametrize(
    ("size", "count"), [(0, 50), (1, 32_768), (1024, 8_192), (1 << 20, 8), (1 << 24, 1)]
)
def test_a_chunk_holds_so_many_bytes_and_no_more_than_are_left(size: int, count: int) -> None:
    turns = [(records(A0, 0), ()), (records(A0, *range(1, 100_000)), ())]
    consumer = Counting(size, *turns)
    read(consumer, {A0: (0, 100_000)})
    assert consumer.counts == [50, count]

    consumer = Counting(1, (records(A0, 5), ()), (records(A0, 6, 7), [end(A1, 9)]))
    read(consumer, {A0: (5, 8), A1: (0, 2)})
    assert consumer.counts == [5, 4]


@pytest.mark.parametrize("asked", [(False, False), (True, False), (False, True)])
def test_keys_and_headers_are_read_when_asked_for(asked: tuple[bool, bool]) -> None:
    consumer = Counting(1, (records(A0, 0), ()))
    reading = ReadRequest({}, {A0: OffsetRange(0, 1)}, {}, 20, *asked)
    assert len(list(record_fetch._RangeReader(consumer, reading).chunks())) == 1  # type: ignore[arg-type]
    assert consumer.wanted == {asked}


# -------------------------------------------------------------------------------------- chunks


def chunk(*offsets: int, asked: bool = True) -> Chunk:
    return Chunk(
        Packed.from_values([b"v%d" % offset for offset in offsets]),
        np.array([len(b"v%d" % offset) for offset in offsets], np.int64),
        np.array([offset % 2 for offset in offsets], np.int64),
        np.array(offsets, np.int64),
        np.array([offset * 10 for offset in offsets], np.int64),
        Packed.from_values([b"k%d" % offset for offset in offsets]) if asked else None,
        [[("h", b"%d" % offset)] for offset in offsets] if asked else None,
    )


def plain(some: Chunk) -> tuple[Any, ...]:
    return (
        *(list(some.values), some.lengths.tolist(), some.places.tolist(), some.offsets.tolist()),
        some.timestamps.tolist(),
        None if some.keys is None else list(some.keys),
        None if some.headers is None else [some.headers[row] for row in range(len(some.headers))],
    )


@pytest.mark.parametrize("asked", [True, False])
def test_chunks_are_cut_and_joined_with_all_that_they_hold(*, asked: bool) -> None:
    whole = chunk(7, 8, 9, 10, 11, asked=asked)
    some = whole.filter(np.array([True, False, True, True, False]))
    assert plain(some) == plain(chunk(7, 9, 10, asked=asked))
    groups = {number: plain(part) for number, part in whole.split_by_group(whole.places)}
    assert groups == {
        0: plain(chunk(8, 10, asked=asked)),
        1: plain(chunk(7, 9, 11, asked=asked)),
    }
    parts = [chunk(7, asked=asked), chunk(8, 9, asked=asked), chunk(10, 11, asked=asked)]
    assert plain(Chunk.concat(parts)) == plain(whole)
    assert Chunk.concat(parts[:1]) is parts[0]


def test_what_is_kept_outlives_the_lent_headers() -> None:
    lent = [[("h", b"1")]]
    kept = with_headers(chunk(1), lent).detached_copy()
    lent.clear()
    assert plain(kept) == plain(chunk(1))
    without = chunk(1, asked=False)
    assert without.detached_copy() is without


class Lent(list[Any]):
    """Headers that librdkafka still holds: who wants some of them reads none of the others."""

    def take(self, rows: Sequence[int]) -> Lent:
        return Lent([self[row] for row in rows])


def test_headers_stay_lent_when_a_chunk_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_fetch, "LentHeaders", Lent)
    lent = Lent([[("h", b"7")], [("h", b"8")]])
    whole = with_headers(chunk(7, 8), lent)
    one = whole.filter(np.array([False, True]))
    (group,) = [part for number, part in whole.split_by_group(whole.places) if number == 1]
    for part, offset in ((one, b"8"), (group, b"7")):
        assert isinstance(part.headers, Lent)
        assert list(part.headers) == [[("h", offset)]]


def with_headers(some: Chunk, lent: Any) -> Chunk:
    return replace(some, headers=lent)


# ---------------------------------------------------------------------------------------- the pool


class Client:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = settings
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(record_fetch, "BatchConsumer", Client)
    monkeypatch.setattr(record_fetch, "AdminClient", Client)
    monkeypatch.setattr(record_fetch, "os", SimpleNamespace(getpid=lambda: process[0]))
    process = [1]
    pool = record_fetch._Clients()
    yield SimpleNamespace(clients=pool, process=process)
    pool.close()


ONE, OTHER = {"bootstrap.servers": "one"}, {"bootstrap.servers": "other"}


def test_a_consumer_serves_one_reading_after_another_of_the_same_settings(
    pool: Any,
) -> None:
    first = pool.clients.take_consumer(ONE)
    assert first.settings["isolation.level"] == "read_committed"
    assert first.settings["bootstrap.servers"] == "one"
    assert pool.clients.take_consumer(ONE) is not first, "it is being read from"
    pool.clients.give_back_consumer(ONE, first)
    assert pool.clients.take_consumer(OTHER) is not first
    assert pool.clients.take_consumer({**ONE}) is first
    assert pool.clients.take_consumer(ONE) is not first
    assert pool.clients.get_or_open_admin(ONE) is pool.clients.get_or_open_admin(ONE)
    assert pool.clients.get_or_open_admin(ONE) is not pool.clients.get_or_open_admin(OTHER)


def test_clients_of_former_settings_are_closed_once_others_have_worked_for_a_while(
    pool: Any, clock: Clock
) -> None:
    """A sink that was read again with another password asks for none of them any more."""
    former = [pool.clients.take_consumer(ONE) for _ in range(2)]
    admin = pool.clients.get_or_open_admin(ONE)
    for consumer in former:
        pool.clients.give_back_consumer(ONE, consumer)
    for minute in range(20):
        clock.now_s = 60.0 * minute
        pool.clients.give_back_consumer(OTHER, pool.clients.take_consumer(OTHER))
        assert {each.closed for each in former} == {int(minute > 10)}
    assert pool.clients.get_or_open_admin(ONE) is not admin
    assert pool.clients.take_consumer(OTHER).closed == 0


def test_no_client_survives_a_fork(pool: Any) -> None:
    """A child that closes what its parent holds would speak into the parent's connections."""
    parents = pool.clients.take_consumer(ONE)
    admin = pool.clients.get_or_open_admin(ONE)
    pool.clients.give_back_consumer(ONE, parents)
    pool.process[0] = 2
    own = pool.clients.take_consumer(ONE)
    assert own is not parents
    assert pool.clients.get_or_open_admin(ONE) is not admin
    pool.clients.give_back_consumer(ONE, own)
    pool.clients.close()
    assert (parents.closed, own.closed) == (0, 1)
    again = pool.clients.take_consumer(ONE)
    assert again is not own
    assert pool.clients.get_or_open_admin(ONE) is not admin


def test_what_is_idle_is_closed_once(pool: Any) -> None:
    idle = pool.clients.take_consumer(ONE)
    pool.clients.give_back_consumer(ONE, idle)
    pool.clients.close()
    pool.clients.close()
    assert idle.closed == 1
