"""Reads and writes compacted topics, whose newest record of a key counts: those of a fleet.

A reader takes committed records only, of all partitions, without joining a group. A writer writes
several records at once, or none: who begins to write with an id ends whoever began before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.control_protocol.errors import (
    FleetChangedMeanwhile,
    FleetTopicUnfit,
    HeadgateError,
    MissingRights,
    RetryLater,
    Unreachable,
)
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.client_settings import (
    settings_error,
    settings_for_offset_queries,
    with_quiet_log,
    without_consumer_settings,
)
from headgate.kafka.clients import is_fatal_error, new_admin, new_consumer, new_producer
from headgate.kafka.control_log import PRODUCER
from headgate.kafka.control_topic import APPEND_TIME
from headgate.kafka.error_codes import NO_RIGHTS, NO_TOPIC, translate_topic_error

log = redacted_logger(__name__)

REQUEST_TIMEOUT_S = 10.0
CHANGE_TIMEOUT_S = 30.0
TRANSACTION_TIMEOUT_MS = 60_000
RECORDS_PER_READ_MAX = 2_000
_BROKER_DEFAULT = -1
SETTINGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(1024 * 1024),
    "message.timestamp.type": APPEND_TIME,  # readers compare brokers' times, never workers'
    # A topic of some megabytes that is read from its beginning: compacted early.
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": str(10 * 60 * 1000),
}
WAIT_MS = 100
"""An empty partition tells its end only after this: what a command waits for."""
READER: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    # A follower may tell an end that a change has passed already, and is in sync all the same.
    "client.rack": "",
    "fetch.error.backoff.ms": 100,
}
"""Readers of such topics take committed records, from the beginning, and hear of the end."""
_TOO_LONG = {kafka.KafkaError.MSG_SIZE_TOO_LARGE, kafka.KafkaError.RECORD_LIST_TOO_LARGE}
_FENCED = {
    kafka.KafkaError._FENCED,  # noqa: SLF001
    kafka.KafkaError.INVALID_PRODUCER_EPOCH,
    kafka.KafkaError.PRODUCER_FENCED,
    kafka.KafkaError.INVALID_TXN_STATE,
}


@dataclass(frozen=True, slots=True)
class CompactedRecord:
    """A record as it stands in its partition; ``time_ms`` is the broker's."""

    topic: str
    partition: int
    offset: int
    time_ms: int
    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class KeyedValue:
    """What is to be written: a value, or a tombstone, under a key of a partition."""

    topic: str
    partition: int
    key: str
    value: bytes | None


def compacted_record_of(message: kafka.Message) -> CompactedRecord:
    """Return a message without an error as a record; a key that is no text becomes one."""
    return CompactedRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        (message.key() or b"").decode("utf-8", "replace"),
        message.value(),
    )


# ------------------------------------------------------------------------------- topics themselves


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a cluster says of a topic. One that is created anew has another id."""

    topic_id: TopicId
    partitions: int


class TopicAdmin:
    """Asks for topics, and creates them. Use from one thread."""

    def __init__(self, kafka_config: Mapping[str, str]) -> None:
        self._admin: AdminClient = _make_client(
            kafka_config, lambda: new_admin(settings_for_offset_queries(kafka_config))
        )

    def describe_topic(self, topic: str) -> TopicFacts | None:
        """Return what is known of a topic; ``None`` if it does not exist.

        Raises ``Unreachable``, ``MissingRights``.
        """
        asked = kafka.TopicCollection([topic])
        answer = self._admin.describe_topics(asked, request_timeout=REQUEST_TIMEOUT_S)[topic]
        try:
            found = answer.result()
        except kafka.KafkaException as error:
            if error.args[0].code() in NO_TOPIC:
                return None
            raise _translate_topic_error(topic, error) from error
        return TopicFacts(TopicId(str(found.topic_id)), len(found.partitions))

    def ensure_topic(self, topic: str, partitions_if_created: int) -> TopicFacts:
        """Return what is known of the topic, which is created if it is missing.

        Raises ``FleetTopicUnfit``, ``Unreachable``, ``MissingRights``.
        """
        if found := self.describe_topic(topic):
            return found
        new = NewTopic(topic, partitions_if_created, _BROKER_DEFAULT, config=SETTINGS)
        try:
            self._admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)[topic].result()
        except kafka.KafkaException as error:
            cause = error.args[0]
            if cause.code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                if cause.retriable() or cause.code() < 0:
                    raise _translate_topic_error(topic, error) from error
                raise FleetTopicUnfit(
                    f"topic {topic} is missing and cannot be created: {cause.str()}",
                    f"create it with {partitions_if_created} partitions and "
                    "cleanup.policy=compact, or allow the principal to create it",
                ) from error
        deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
        while (
            found := self.describe_topic(topic)
        ) is None:  # brokers learn of it one after the other
            if time.monotonic() > deadline_s:
                raise Unreachable(f"topic {topic} was created but does not show up")
            time.sleep(0.05)
        return found


# ---------------------------------------------------------------------------------------- reading


class CompactedReader:
    """Reads all partitions of some topics from their beginning, and goes on as records come.

    ``group_id`` is not joined; brokers are asked for its coordinator all the same. They keep a
    request for ``wait_ms`` while nothing comes. Use from one thread.
    """

    def __init__(
        self,
        kafka_config: Mapping[str, str],
        group_id: str,
        partitions: Mapping[str, int],
        *,
        wait_ms: int = WAIT_MS,
    ) -> None:
        config = {
            **with_quiet_log(kafka_config),
            **READER,
            "fetch.wait.max.ms": wait_ms,
            "group.id": group_id,
            "error_cb": _on_client_error,
        }
        self._consumer: kafka.Consumer = _make_client(kafka_config, lambda: new_consumer(config))
        places = [
            kafka.TopicPartition(topic, number, kafka.OFFSET_BEGINNING)
            for topic, count in partitions.items()
            for number in range(count)
        ]
        self._behind = {(at.topic, at.partition) for at in places}
        self._consumer.assign(places)

    @property
    def has_reached_end(self) -> bool:
        """Return whether each partition has been read to where it ended once."""
        return not self._behind

    def read_next(self, timeout_s: float) -> list[CompactedRecord]:
        """Return the next records, in the order of each partition; none after this time.

        Raises ``MissingRights``, ``FleetTopicUnfit`` if a topic is gone.
        """
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        more = self._consumer.consume(RECORDS_PER_READ_MAX, timeout=0)
        return [
            record for message in (first, *more) if (record := self._to_record_or_note_end(message))
        ]

    def read_to_end(self, patience_s: float) -> list[CompactedRecord]:
        """Return all records up to the topics' ends. Raises ``Unreachable`` after this time."""
        until_s = time.monotonic() + patience_s
        found: list[CompactedRecord] = []
        while self._behind:
            found += self.read_next(0.2)
            if self._behind and time.monotonic() > until_s:
                topic = min(topic for topic, _ in self._behind)
                raise Unreachable(
                    f"topic {topic} could not be read to its end within {patience_s:g} s",
                    "check bootstrap.servers and that the brokers run",
                )
        return found

    def close(self) -> None:
        self._consumer.close()

    def _to_record_or_note_end(self, message: kafka.Message) -> CompactedRecord | None:
        error = message.error()
        if error is None:
            return compacted_record_of(message)
        if error.code() == kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001
            self._behind.discard((message.topic(), message.partition()))
        elif error.code() in NO_RIGHTS | NO_TOPIC:
            raise _translate_topic_error(
                message.topic() or "of the fleet", kafka.KafkaException(error)
            )
        return None


# ---------------------------------------------------------------------------------------- writing


class TransactionalWriter:
    """Writes several records at once, or none. Beginning it ends whoever began before (FLEET-5).

    So what is read after ``fence_earlier_writers`` is what the next ``write`` changes: if somebody
    else begins in between, the write fails, and has changed nothing.
    """

    def __init__(
        self,
        kafka_config: Mapping[str, str],
        transactional_id: str,
    ) -> None:
        self._id = transactional_id
        config = {
            **without_consumer_settings(with_quiet_log(kafka_config)),
            **PRODUCER,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 20,  # thousands of specs in few requests
            "error_cb": _on_client_error,
        }
        # The client wants it below the transaction's own limit.
        config["delivery.timeout.ms"] = int(CHANGE_TIMEOUT_S * 1000)
        self._producer: kafka.Producer = _make_client(kafka_config, lambda: new_producer(config))

    def fence_earlier_writers(self) -> None:
        """End whoever began before, and wait for what they had under way.

        Raises ``Unreachable``, ``MissingRights``.
        """
        try:
            self._producer.init_transactions(CHANGE_TIMEOUT_S)
        except kafka.KafkaException as error:
            raise self._failed_write_error(error) from error

    def write(self, records: Iterable[KeyedValue]) -> None:
        """Write all of them, or none.

        Raises ``FleetChangedMeanwhile`` if somebody else began, and ``FleetTopicUnfit`` if a record
        is longer than the topic takes (nothing is written then), and ``RetryLater`` if nobody knows
        whether it is.
        """
        try:
            self._producer.begin_transaction()
            for record in records:
                self._produce(record)
            self._producer.commit_transaction(CHANGE_TIMEOUT_S)
        except kafka.KafkaException as error:
            cause = error.args[0]
            if cause.txn_requires_abort() or cause.code() in _TOO_LONG:
                with suppress(kafka.KafkaException):  # open, it would hold up all readers
                    self._producer.abort_transaction(REQUEST_TIMEOUT_S)
            raise self._failed_write_error(error) from error

    def _produce(self, record: KeyedValue) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic, record.value, record.key.encode(), partition=record.partition
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _failed_write_error(self, error: kafka.KafkaException) -> HeadgateError:
        cause = error.args[0]
        if cause.code() in _FENCED or "fenced" in cause.str():
            return FleetChangedMeanwhile(
                f"somebody else changes the fleet {self._id} at the same time; nothing was changed",
                "run the command again: it begins with what the fleet is now",
            )
        if cause.code() in NO_RIGHTS:
            return MissingRights(
                f"the cluster refuses this client to write as {self._id}: {cause.str()}",
                "allow the principal to write to the fleet's topic, and that transactional id",
            )
        if cause.code() in _TOO_LONG:
            return FleetTopicUnfit(
                f"the topic of fleet {self._id} takes no batch of that size; nothing was changed: "
                f"{cause.str()}",
                f"set max.message.bytes={SETTINGS['max.message.bytes']} on its topic",
            )
        return RetryLater(
            f"the brokers did not confirm the change of the fleet {self._id}: {cause.str()}",
            "run the command again: it begins with what the fleet is now",
        )


class CompactedProducer:
    """Writes single records, and waits for none: the next one of a key says more. Use from one
    thread."""

    def __init__(self, kafka_config: Mapping[str, str]) -> None:
        config = {
            **without_consumer_settings(with_quiet_log(kafka_config)),
            **PRODUCER,
            "linger.ms": 50,
            "delivery.timeout.ms": 30_000,
            "error_cb": _on_client_error,
        }
        self._open: Callable[[], kafka.Producer] = lambda: _make_client(
            kafka_config, lambda: new_producer(config)
        )
        self._failed: list[str] = []
        self._written = False
        self._producer: kafka.Producer = self._open()

    def try_enqueue(self, record: KeyedValue) -> bool:
        """Return whether the client took it; it does not while its queue is full."""
        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key.encode(),
                partition=record.partition,
                on_delivery=self._on_delivery,
            )
        except BufferError:
            return False
        except kafka.KafkaException as error:
            self._recover_from_error(error)
            return False
        return True

    def take_failures(self) -> Sequence[str]:
        """Return why records were not written since the last call, once each."""
        self._call_noting_failures(lambda: self._producer.poll(0))
        failed, self._failed = self._failed, []
        return sorted({*failed})

    def take_written_flag(self) -> bool:
        """Return whether a record is known to be written since the last call."""
        written, self._written = self._written, False
        return written

    def flush(self, timeout_s: float) -> None:
        """Wait up to this time for what was written.

        Never raises: ``take_failures`` says what failed.
        """
        self._call_noting_failures(lambda: self._producer.flush(timeout_s))

    def _call_noting_failures(self, act: Callable[[], object]) -> None:
        """Let the client work. It raises what is fatal to it, also out of our callback."""
        try:
            act()
        except kafka.KafkaException as error:
            self._recover_from_error(error)
        except SystemError as error:
            self._recover_from_error(error.__cause__ or error)

    def _recover_from_error(self, error: BaseException) -> None:
        """Begin anew after a fatal error, such as a missing right: it writes nothing any more."""
        cause: Any = error.args[0] if error.args else None
        is_known = isinstance(cause, kafka.KafkaError)
        self._failed.append(cause.str() if is_known else str(error))
        if not is_known or is_fatal_error(cause):
            try:
                self._producer = self._open()
            except HeadgateError as problem:  # the former one fails again: then this is tried again
                self._failed.append(str(problem))

    def _on_delivery(self, error: kafka.KafkaError | None, _: kafka.Message) -> None:
        if error is None:
            self._written = True
        else:
            self._failed.append(error.str())


def _translate_topic_error(topic: str, error: kafka.KafkaException) -> HeadgateError:
    missing = FleetTopicUnfit(
        f"topic {topic} does not exist", "headgate fleet apply creates it; or correct fleet.name"
    )
    return translate_topic_error(f"topic {topic}", error, missing)


def _make_client(kafka_config: Mapping[str, str], make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (kafka.KafkaException, ValueError, TypeError) as error:
        raise settings_error(error, kafka_config) from error


def _on_client_error(error: kafka.KafkaError) -> None:
    log.debug("fleet: %s", error.str())
