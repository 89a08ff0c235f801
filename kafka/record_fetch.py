"""Reads exactly the records of some offset ranges, straight from the source topics.

Partitions are assigned by hand, from the beginnings of their ranges; no group is joined and no
offset stored. A range ends when the reader's position reaches its end. The last offsets may hold no
record at all (markers, aborted or compacted records): then the end-of-partition event gives the
position.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from headgate.control_protocol.errors import (
    HeadgateError,
    MissingRights,
    OffsetOutOfRange,
    TopicRecreated,
    Unreachable,
    WriteFailed,
)
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.kafka.authentication import (
    to_librdkafka_settings,
    token_keeper_for,
    token_trouble_suffix,
)
from headgate.kafka.client_settings import with_quiet_log, without_consumer_settings
from headgate.kafka.clients import new_admin
from headgate.kafka.librdkafka_binding import BatchConsumer, Event, Headers, LentHeaders
from headgate.kafka.token_keeper import TokenKeeper
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Integers

_OURS = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    # An offset that is not in the log is reported, never replaced by another one.
    "auto.offset.reset": "error",
}
_DEFAULTS = {
    "group.id": "headgate-reader",  # librdkafka requires one; nothing is joined or committed
    "check.crcs": "true",
    # With the default of a second, a reader that keeps up is idle most of the time.
    "fetch.queue.backoff.ms": "5",
    "fetch.wait.max.ms": "100",
    "fetch.message.max.bytes": "1048576",
    "queued.min.messages": "100000",
    "queued.max.messages.kbytes": "8192",
}

# A chunk costs a millisecond or two whatever it holds.
_CHUNK_BYTES = 8 * 1024 * 1024
_CHUNK_RECORDS = 32_768
_POLL_MS = 100
_REQUEST_MS = 15_000
_UNUSED_S_MAX = 600.0

# Not of the group: batches are read without one, whatever the client asks about it.
_DENIED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_NOT_THERE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001

_Key = tuple[int, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records, column by column, of about ``_CHUNK_BYTES``.

    A value of ``None`` is a tombstone. ``lengths``: of the values, in bytes; ``places``: index of
    the record's partition in the ranges; ``timestamps``: in epoch milliseconds, negative for none.
    ``keys`` and ``headers`` exist only if asked for; headers may be valid only until the next
    chunk.
    """

    values: Packed
    lengths: Integers
    places: Integers
    offsets: Integers
    timestamps: Integers
    keys: Packed | None = None
    headers: Sequence[Headers] | None = None

    def filter(self, wanted: np.ndarray[Any, np.dtype[np.bool_]]) -> Chunk:
        """Return only the records whose flag is set."""
        headers = self.headers
        return Chunk(
            self.values.filter(wanted),
            self.lengths[wanted],
            self.places[wanted],
            self.offsets[wanted],
            self.timestamps[wanted],
            None if self.keys is None else self.keys.filter(wanted),
            None if headers is None else _headers_of_rows(headers, np.flatnonzero(wanted)),
        )

    def without_values(self) -> Chunk:
        """Return the records' other parts; of a whole chunk, values cost the most to copy."""
        return replace(self, values=Packed(pa.nulls(len(self.offsets), pa.large_binary())))

    def split_by_group(self, group_of_each_record: Integers) -> Iterator[tuple[int, Chunk]]:
        """Yield each group's number and records, in order; sorted once, then cut."""
        order = np.argsort(group_of_each_record, kind="stable")
        numbers, begins = np.unique(group_of_each_record[order], return_index=True)
        rows = pa.array(order)
        values = Packed(self.values.array.take(rows))
        keys = None if self.keys is None else Packed(self.keys.array.take(rows))
        lengths, places = self.lengths[order], self.places[order]
        offsets, timestamps = self.offsets[order], self.timestamps[order]
        ends = [*begins[1:].tolist(), len(order)][: len(numbers)]
        for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends, strict=True):
            part, lent = slice(begin, end), self.headers
            chunk = Chunk(
                values[part],
                lengths[part],
                places[part],
                offsets[part],
                timestamps[part],
                None if keys is None else keys[part],
                None if lent is None else _headers_of_rows(lent, order[part]),
            )
            yield number, chunk

    def detached_copy(self) -> Chunk:
        """Return the same records, valid beyond the next chunk."""
        return self if self.headers is None else replace(self, headers=list(self.headers))

    @classmethod
    def concat(cls, chunks: Sequence[Chunk]) -> Chunk:
        """Return one chunk of all their records, in order."""
        if len(chunks) == 1:
            return chunks[0]
        keys = [chunk.keys.array for chunk in chunks if chunk.keys is not None]
        headers = [chunk.headers for chunk in chunks if chunk.headers is not None]
        return cls(
            Packed(pa.concat_arrays([chunk.values.array for chunk in chunks])),
            np.concatenate([chunk.lengths for chunk in chunks]),
            np.concatenate([chunk.places for chunk in chunks]),
            np.concatenate([chunk.offsets for chunk in chunks]),
            np.concatenate([chunk.timestamps for chunk in chunks]),
            Packed(pa.concat_arrays(keys)) if keys else None,
            [one for some in headers for one in some] if headers else None,
        )


def _headers_of_rows(headers: Sequence[Headers], rows: Integers) -> Sequence[Headers]:
    if isinstance(headers, LentHeaders):
        return headers.take(rows)
    return [headers[row] for row in rows.tolist()]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read, and how long to wait for a sign of progress.

    Keys are cheap; headers cost more than a value, and are read only on access.
    """

    kafka: Mapping[str, str]
    ranges: Mapping[TopicPartition, OffsetRange]
    topic_ids: Mapping[str, TopicId]
    stall_ms_max: int = 60_000
    with_keys: bool = False
    with_headers: bool = False


def read_ranges(reading: ReadRequest) -> Generator[Chunk, None, None]:
    """Yield all records of the ranges, in order per partition.

    Raises ``OffsetOutOfRange``, ``TopicRecreated``, ``MissingRights``, and ``WriteFailed`` if the
    cluster does not deliver. If it returns normally, the ranges were read to their ends, from the
    topics with the expected ids.
    """
    consumer = _CLIENTS.take_consumer(reading.kafka)
    try:
        yield from _RangeReader(consumer, reading).chunks()
        # Behind the last record: asked before, a topic could be re-created between answer and read,
        # and records of another one would be written for these offsets.
        _require_same_topics(reading)
        consumer.unassign()
    except BaseException:
        consumer.close()
        raise
    _CLIENTS.give_back_consumer(reading.kafka, consumer)


def try_batch_consumer_and_describe(
    kafka: Mapping[str, str], at: TopicPartition, timeout_s: float
) -> str:
    """Let a consumer of batches, which no other client is like, reach the end of the partition.

    Return what it did. Raises ``TokenServerRefused``, ``TokenUnfit`` and ``TokenAway`` where it has
    no token, ``MissingRights`` and ``Unreachable`` where the brokers do not serve it.
    """
    keeper = token_keeper_for(kafka)
    if keeper is not None:
        keeper.require_token()
    consumer = _new_consumer(kafka, keeper)
    try:
        consumer.assign({_as_pair(at): OFFSET_END})
        ends_s, reason = time.monotonic() + timeout_s, "no answer"
        while time.monotonic() < ends_s:
            messages = consumer.consume(1, _POLL_MS)
            if len(messages.offsets):
                return _describe_successful_read(at, keeper)
            for event in messages.events:
                if event.code == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    return _describe_successful_read(at, keeper)
                if event.code in _DENIED:
                    raise _read_denied_error(at, event)
                reason = event.text
    finally:
        consumer.close()
    with_token = "the token server gave a token, and " if keeper is not None else ""
    raise Unreachable(
        f"{with_token}the brokers do not serve the consumer that reads batches: {reason} within "
        f"{timeout_s:.0f} s{token_trouble_suffix(kafka)}",
        "other clients of this process may be served: compare what the brokers log of both",
    )


def _describe_successful_read(at: TopicPartition, keeper: TokenKeeper | None) -> str:
    own = ", with a token of its own connection" if keeper is not None else ""
    return f"the consumer that reads batches came to the end of {at}{own}"


def _read_denied_error(at: TopicPartition, event: Event) -> MissingRights:
    return MissingRights(f"{at} may not be read: {event.text}", "grant READ on the topic")


class _RangeReader:
    """Reads some ranges once, with one consumer."""

    def __init__(self, consumer: BatchConsumer, reading: ReadRequest) -> None:
        self._consumer = consumer
        self._reading = reading
        self._partitions = list(reading.ranges)
        self._places = _partition_indexes_by_topic(self._partitions)
        self._next = np.array([r.begin for r in reading.ranges.values()], np.int64)
        self._ends = np.array([r.end for r in reading.ranges.values()], np.int64)
        self._fitting = 50  # records that fit into a chunk; a careful guess until some were seen
        self._last_error = ""

    def chunks(self) -> Iterator[Chunk]:
        ranges = self._reading.ranges.items()
        self._consumer.assign(
            {_as_pair(at): span.begin for at, span in ranges if not span.is_empty}
        )
        progress_s = time.monotonic()
        while (self._next < self._ends).any():
            before = self._next.copy()
            chunk = self._next_chunk()
            if len(chunk.values):
                yield chunk
            if (self._next > before).any():
                progress_s = time.monotonic()  # after the yield: the caller's time does not count
            elif time.monotonic() - progress_s > self._reading.stall_ms_max / 1000:
                raise self._stall_error()
            self._pause_finished(before)

    def _next_chunk(self) -> Chunk:
        """Return a chunk's worth of records, or fewer if no more are available at once."""
        left = int(np.maximum(self._ends - self._next, 0).sum())
        messages = self._consumer.consume(
            min(left, self._fitting),
            _POLL_MS,
            keys=self._reading.with_keys,
            headers=self._reading.with_headers,
        )
        places = np.empty(len(messages.offsets), np.int64)
        for topic, rows in messages.topics:
            places[rows] = self._places[topic][messages.partitions[rows]]
        chunk = Chunk(
            messages.values,
            messages.sizes,
            places,
            messages.offsets,
            messages.timestamps,
            messages.keys,
            messages.headers,
        )
        # Compared with the positions before these records move them: one that is delivered twice
        # (after a fetch that was repeated) counts once, one beyond its range never.
        wanted = (chunk.offsets >= self._next[places]) & (chunk.offsets < self._ends[places])
        np.maximum.at(self._next, places, chunk.offsets + 1)
        for event in messages.events:  # after the records that precede them
            self._on_event(event)
        if messages.sizes.any():
            fitting = int(_CHUNK_BYTES / messages.sizes.mean())
            self._fitting = max(1, min(fitting, _CHUNK_RECORDS))
        return chunk if wanted.all() else chunk.filter(wanted)

    def _on_event(self, event: Event) -> None:
        at = TopicPartition(event.topic, event.partition)
        if event.code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            place = self._places[event.topic][event.partition]
            self._next[place] = max(self._next[place], event.offset)
        elif event.code in _NOT_THERE:
            _require_same_topics(self._reading)
            raise OffsetOutOfRange(
                f"{at}: the offsets {self._reading.ranges.get(at)} are not in the log: "
                f"{event.text}",
                "retention may have removed them, or the topic lost its end",
            )
        elif event.code in _DENIED:
            raise _read_denied_error(at, event)
        else:
            # librdkafka reports many errors that it then recovers from; the stall limit decides.
            self._last_error = event.text

    def _pause_finished(self, positions_before: Integers) -> None:
        finished = np.flatnonzero((positions_before < self._ends) & (self._next >= self._ends))
        if len(finished):
            self._consumer.pause([_as_pair(self._partitions[place]) for place in finished])

    def _stall_error(self) -> HeadgateError:
        _require_same_topics(self._reading)
        place = int(np.flatnonzero(self._next < self._ends)[0])
        return WriteFailed(
            f"{self._partitions[place]}: no progress for {self._reading.stall_ms_max} ms at offset "
            f"{self._next[place]}, which should reach {self._ends[place]}",
            self._last_error or "the broker answers, but nothing comes",
        )


def _as_pair(at: TopicPartition) -> tuple[str, int]:
    return at.topic, at.partition


def _partition_indexes_by_topic(partitions: Sequence[TopicPartition]) -> dict[str, Integers]:
    """Return, per topic, the index of each of its partitions among these."""
    found = {
        topic: np.zeros(1 + max(at.partition for at in partitions if at.topic == topic), np.int64)
        for topic in {at.topic for at in partitions}
    }
    for place, at in enumerate(partitions):
        found[at.topic][at.partition] = place
    return found


def _require_same_topics(reading: ReadRequest) -> None:
    """Check that the topics are still those of the ranges. Raises ``TopicRecreated``."""
    topics = sorted({at.topic for at in reading.ranges} & set(reading.topic_ids))
    if not topics:
        return
    admin = _CLIENTS.get_or_open_admin(reading.kafka)
    asked = admin.describe_topics(TopicCollection(topics), request_timeout=_REQUEST_MS / 1000)
    for topic, answer in asked.items():
        try:
            found = str(answer.result().topic_id)
        except KafkaException as error:
            raise WriteFailed(f"{topic} cannot be described: {error}") from error
        if found != reading.topic_ids[topic]:
            raise TopicRecreated(
                f"{topic} has the id {found}, its offsets belong to {reading.topic_ids[topic]}",
                "the topic was deleted and created again",
            )


def _keeper_with_token(kafka: Mapping[str, str]) -> TokenKeeper | None:
    """Return the keeper once it has a token. Raises ``WriteFailed``: the batch is done again.

    That the sink may have no token at all was told at its start.
    """
    keeper = token_keeper_for(kafka)
    try:
        if keeper is not None:
            keeper.require_token()
    except HeadgateError as error:
        raise WriteFailed(f"no token for Kafka: {error.message}", error.hint) from error
    return keeper


def _new_consumer(kafka: Mapping[str, str], keeper: TokenKeeper | None) -> BatchConsumer:
    settings = {**_DEFAULTS, **to_librdkafka_settings(with_quiet_log(kafka)), **_OURS}
    return (
        BatchConsumer(settings, keeper.current_token_expiring_early)
        if keeper
        else BatchConsumer(settings)
    )


class _Clients:
    """Keeps this process's clients between batches, since a new one costs 0.1 s.

    Clients do not survive a fork, so their keys include the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[_Key, list[BatchConsumer]] = {}
        self._admins: dict[_Key, AdminClient] = {}
        self._used_s: dict[_Key, float] = {}
        atexit.register(self.close)

    def take_consumer(self, kafka: Mapping[str, str]) -> BatchConsumer:
        with self._lock:
            idle = self._idle.get(self._key_noting_use(kafka))
            if idle:
                return idle.pop()
        return _new_consumer(kafka, _keeper_with_token(kafka))

    def give_back_consumer(self, kafka: Mapping[str, str], consumer: BatchConsumer) -> None:
        with self._lock:
            self._idle.setdefault(self._key_noting_use(kafka), []).append(consumer)
            unused = self._pop_unused_clients()
        for each in unused:
            each.close()

    def get_or_open_admin(self, kafka: Mapping[str, str]) -> AdminClient:
        """Return the admin client that all threads share."""
        with self._lock:
            key = self._key_noting_use(kafka)
            if key not in self._admins:
                _keeper_with_token(kafka)
                self._admins[key] = new_admin(without_consumer_settings(with_quiet_log(kafka)))
            return self._admins[key]

    def _pop_unused_clients(self) -> list[BatchConsumer]:
        """Forget clients that nobody asked for lately: a sink may have other settings by now."""
        until_s, process = time.monotonic() - _UNUSED_S_MAX, os.getpid()
        unused = [key for key, at_s in self._used_s.items() if at_s < until_s and key[0] == process]
        closing = [each for key in unused for each in self._idle.pop(key, ())]
        for key in unused:
            del self._used_s[key]
            self._admins.pop(key, None)  # closed with its last user
        return closing

    def close(self) -> None:
        with self._lock:
            self._admins.clear()
            for (process, _), idle in self._idle.items():
                if process == os.getpid():
                    for consumer in idle:
                        consumer.close()
            self._idle.clear()

    def _key_noting_use(self, kafka: Mapping[str, str]) -> _Key:
        key = os.getpid(), tuple(sorted(kafka.items()))
        self._used_s[key] = time.monotonic()
        return key


_CLIENTS = _Clients()
