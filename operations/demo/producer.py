"""Fills the demo's topic with a number of trips at a given rate, each confirmed by the broker."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.control_protocol.errors import ConfigurationError, HeadgateError, Unreachable
from headgate.operations.demo.trips import generate_trips

CountByPartition = dict[int, int]

REQUEST_SECONDS_MAX = 30.0
FLUSH_SECONDS_MAX = 120.0

# Records between two checks of the clock and of the broker's answers.
STRIDE = 500

PRODUCER_SETTINGS = {
    "enable.idempotence": True,  # a retry by librdkafka must not double a record of the demo
    "compression.type": "lz4",
    "linger.ms": 20,
    "queue.buffering.max.messages": 200_000,
    "log_level": 0,
}


def ensure_topic(
    bootstrap: str, topic: str, *, partitions: int = 4, config: Mapping[str, str] | None = None
) -> None:
    """Create the topic, or check its number of partitions; it can be used when this returns.

    Raises ``Unreachable``, and ``ConfigurationError`` if it has another number of partitions.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(topic, partitions, 1, config=dict(config or {}))
    try:
        admin.create_topics([new], request_timeout=REQUEST_SECONDS_MAX)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise Unreachable(f"{bootstrap}: topic {topic!r} was not created: {error}") from error
    try:
        present = _await_partition_count(admin, topic)
    except KafkaException as error:
        raise Unreachable(f"{bootstrap}: topic {topic!r} cannot be looked up: {error}") from error
    if present != partitions:
        raise ConfigurationError(
            f"{bootstrap}: topic {topic!r} has {present} partitions, not {partitions}",
            "name another topic",
        )


def _await_partition_count(admin: AdminClient, topic: str) -> int:
    """Return the topic's partitions; a broker learns of a new topic only after some moments."""
    deadline = time.monotonic() + REQUEST_SECONDS_MAX
    while time.monotonic() < deadline:
        described = admin.list_topics(topic, timeout=REQUEST_SECONDS_MAX).topics[topic]
        if not described.error:
            return len(described.partitions)
        time.sleep(0.02)
    raise Unreachable(f"topic {topic!r} was created, but is not there: {described.error}")


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[bytes],
    *,
    partitions: int = 4,
    rate: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> CountByPartition:
    """Send the records to the partitions in turn; return how many each of them confirmed.

    ``rate`` is in records per second, ``None`` for as fast as possible. ``on_progress`` is called
    with the number confirmed so far. Raises ``Unreachable`` unless every record was confirmed.
    """
    delivery = _Delivery(bootstrap, topic)
    began = time.monotonic()
    sent = 0
    for stride in _split_into_batches(records):
        for number, value in enumerate(stride, sent):
            delivery.send(value, number % partitions)
        sent += len(stride)
        delivery.poll_confirmations()
        if on_progress:
            on_progress(delivery.confirmed_count)
        if rate:
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))
    delivery.await_confirmations_or_raise(sent)
    if on_progress:
        on_progress(delivery.confirmed_count)
    return dict(sorted(delivery.confirmed.items()))


class _Delivery:
    """One producer, and the broker's answers to its records."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._where = f"{bootstrap}: {topic}"
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER_SETTINGS})
        self._failure: KafkaError | None = None
        self.confirmed: Counter[int] = Counter()

    @property
    def confirmed_count(self) -> int:
        return self.confirmed.total()

    def send(self, value: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, value, partition=partition, on_delivery=self._on_delivery
                )
            except BufferError:  # the queue is full: answers make room
                self._producer.poll(0.1)
            else:
                return

    def poll_confirmations(self) -> None:
        """Take the answers so far. Raises ``Unreachable`` if one was a refusal."""
        self._producer.poll(0)
        if self._failure:
            raise Unreachable(f"{self._where}: a record was not taken: {self._failure.str()}")

    def await_confirmations_or_raise(self, sent: int) -> None:
        """Wait for all answers.

        Raises ``Unreachable`` unless all ``sent`` records were confirmed.
        """
        self._producer.flush(FLUSH_SECONDS_MAX)
        self.poll_confirmations()
        if self.confirmed_count != sent:
            raise Unreachable(f"{self._where}: {self.confirmed_count} of {sent} records confirmed")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.confirmed[message.partition()] += 1
        else:
            self._failure = self._failure or error


def _split_into_batches(records: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    source = iter(records)
    while stride := tuple(islice(source, STRIDE)):
        yield stride


# Produces the demo's records: a thread that fills the topic at the pace of the show.


DURATION_S = 40
"""How long the whole stream would last at its even pace."""

BACKLOG_SHARE = 0.25
"""The share that is produced before anybody reads."""

RESERVE_SHARE = 0.4
TRICKLE = 3
"""Slowdown of the last share until the kill on a busy machine: rows must be in flight."""

STOP_SECONDS_MAX = 15


class TripStream:
    """Sends ``records`` trips to the partitions of a topic in turn, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, *, records: int, seed: int) -> None:
        self.records = records
        self._bootstrap, self._topic, self._seed = bootstrap, topic, seed
        self._confirmed = 0
        self._failure: HeadgateError | None = None
        self._awaited = threading.Event()
        self._released = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-stream", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def lift_backlog_limit(self) -> None:
        """Note that somebody reads: more than the backlog may follow."""
        self._awaited.set()

    def release_withheld_records(self) -> None:
        """Stop holding back records."""
        self._released.set()

    def stop(self) -> None:
        self._stopped.set()
        self._awaited.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)

    @property
    def confirmed_count_or_raise(self) -> int:
        """Return how many records the broker has confirmed. Raises what ended the stream early."""
        if self._failure:
            raise self._failure
        return self._confirmed

    def _run(self) -> None:
        try:
            produce(
                self._bootstrap, self._topic, self._paced_trips(), on_progress=self._note_confirmed
            )
        except HeadgateError as error:
            self._failure = error

    def _note_confirmed(self, confirmed: int) -> None:
        self._confirmed = confirmed

    def _paced_trips(self) -> Iterator[bytes]:
        due_s = time.monotonic()
        for number, trip in enumerate(islice(generate_trips(self._seed), self.records)):
            if number % STRIDE == 0:
                if number >= self.records * BACKLOG_SHARE and not self._awaited.is_set():
                    self._awaited.wait()
                    due_s = time.monotonic()
                due_s += seconds_before_stride(
                    number, self.records, released=self._released.is_set()
                )
                if self._stopped.wait(max(0.0, due_s - time.monotonic())):
                    return
            yield trip


def seconds_before_stride(record_number: int, record_count: int, *, released: bool) -> float:
    """Return the seconds between two strides at record ``record_number`` of ``record_count``."""
    even = DURATION_S * STRIDE / record_count
    held_back = not released and record_number >= record_count * (1 - RESERVE_SHARE)
    return even * TRICKLE if held_back else even
