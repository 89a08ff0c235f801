"""Tries on a topic of its own what a sink does to a cluster, and says what the cluster answered.

What a provider supports is not known from its name: it is tried. Nothing but the trial's own topic,
its own group and one transactional id is made, all with the trial's name; the topic is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import confluent_kafka as kafka
from confluent_kafka.admin import NewTopic

from headgate.control_protocol.errors import HeadgateError, MissingRights, Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.kafka.client_settings import without_consumer_settings
from headgate.kafka.clients import new_admin, new_consumer, new_producer
from headgate.kafka.cluster_queries import with_log_silenced
from headgate.kafka.consumer_group import KafkaGroupMember
from headgate.kafka.control_log import PRODUCER
from headgate.kafka.control_topic import CONTROL_SETTINGS, read_topic_settings
from headgate.kafka.error_codes import NO_RIGHTS
from headgate.kafka.record_fetch import try_batch_consumer_and_describe

WAIT_S = 20.0
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a client says of a topic to which the brokers give no id."""

_CODES = kafka.KafkaError
_SETTINGS_REFUSED = {
    _CODES.INVALID_CONFIG,
    _CODES.POLICY_VIOLATION,
    _CODES.INVALID_REQUEST,
    _CODES.UNSUPPORTED_VERSION,
}
_LATER = {
    _CODES.UNKNOWN_TOPIC_OR_PART,
    _CODES.LEADER_NOT_AVAILABLE,
    _CODES._UNKNOWN_PARTITION,  # noqa: SLF001
    _CODES._UNKNOWN_TOPIC,  # noqa: SLF001
}


def describe_client() -> str:
    """Return which client this is: what a cluster can do is what both can."""
    version, library = kafka.version(), kafka.libversion()[0]
    return f"confluent-kafka {version}, librdkafka {library}"


@dataclass(frozen=True, slots=True)
class Appended:
    """A record that was written and read again: whose time it bears, and how far off this is."""

    append_time: bool
    ahead_ms: int


class ClusterTrial:
    """One topic with the trial's name; once ``made``, whoever made it has to ``delete_topic`` it.

    Raises ``MissingRights`` and ``Unreachable`` with what was tried and what was answered.
    """

    def __init__(self, settings: Mapping[str, str], name: str) -> None:
        self.name = name
        self._settings = with_log_silenced(settings)
        self._others = without_consumer_settings(self._settings)
        self._admin = new_admin(self._others)
        self.made = False

    def cluster_id_and_broker_count(self) -> tuple[str, int]:
        """Return the cluster's id, as it calls itself, and the number of its brokers."""
        try:
            found = self._admin.describe_cluster(request_timeout=WAIT_S).result()
        except kafka.KafkaException as error:
            raise _trial_error("describing the cluster", error) from error
        return str(found.cluster_id), len(found.nodes)

    def create_topic_and_list_refused_settings(self) -> list[str]:
        """Make the topic as the control topic is made; return the settings that were refused."""
        try:
            self._request_creation(CONTROL_SETTINGS)
        except kafka.KafkaException as error:
            if error.args[0].code() not in _SETTINGS_REFUSED:
                raise self._creation_error(error) from error
            return self._create_without_refused_settings()
        return []

    def _create_without_refused_settings(self) -> list[str]:
        """Create it with the settings that the cluster accepts; return those that it refused."""
        taken: dict[str, str] = {}
        for name, value in CONTROL_SETTINGS.items():
            try:
                self._request_creation({**taken, name: value}, validate_only=True)
                taken[name] = value
            except kafka.KafkaException as error:
                if error.args[0].code() not in _SETTINGS_REFUSED:
                    raise _trial_error(f"asking whether {name}={value} is taken", error) from error
        try:
            self._request_creation(taken)
        except kafka.KafkaException as error:
            raise self._creation_error(error) from error
        return [name for name in CONTROL_SETTINGS if name not in taken]

    def _creation_error(self, error: kafka.KafkaException) -> HeadgateError:
        code, tried = error.args[0].code(), f"creating topic {self.name}"
        if code < 0 or code == _CODES.REQUEST_TIMED_OUT:
            tried += ", which may have been made all the same (look for it, and delete it)"
        return _trial_error(tried, error)

    def _request_creation(self, config: Mapping[str, str], *, validate_only: bool = False) -> None:
        new = NewTopic(self.name, 1, -1, config=dict(config))
        asked = self._admin.create_topics(
            [new], request_timeout=WAIT_S, validate_only=validate_only
        )
        asked[self.name].result()
        self.made = self.made or not validate_only

    def delete_topic(self) -> None:
        try:
            self._admin.delete_topics([self.name], request_timeout=WAIT_S)[self.name].result()
        except kafka.KafkaException as error:
            raise _trial_error(f"deleting topic {self.name}, which stays", error) from error
        self.made = False

    def topic_id(self, topic: str) -> str:
        """Return the id that brokers give the topic; ``NO_ID`` if they give none."""
        end_s = time.monotonic() + WAIT_S
        while True:
            asked = self._admin.describe_topics(
                kafka.TopicCollection([topic]), request_timeout=WAIT_S
            )
            try:
                return str(asked[topic].result().topic_id)
            except kafka.KafkaException as error:
                if error.args[0].code() not in _LATER or time.monotonic() > end_s:
                    raise _trial_error(f"describing topic {topic}", error) from error
                time.sleep(0.1)  # brokers learn of a new topic one after the other

    def topic_settings_of(self, topic: str) -> Mapping[str, str]:
        """Return what DescribeConfigs says of the topic; empty if the cluster does not answer."""
        return read_topic_settings(self._settings, topic, int(WAIT_S * 1000)) or {}

    def append_and_read_back(self) -> Appended:
        """Write one record as control events are written, and read it again."""
        own = {**PRODUCER, "delivery.timeout.ms": int(WAIT_S * 1000)}
        producer = new_producer({**self._others, **own})
        before_ms = time.time_ns() // 1_000_000
        self._produce(producer, b"1")
        (message,) = self._read_messages(1, "read_uncommitted")
        kind, time_ms = message.timestamp()
        return Appended(kind == kafka.TIMESTAMP_LOG_APPEND_TIME, before_ms - time_ms)

    def try_batch_consumer_and_describe(self) -> str:
        """Let a consumer of batches come to the topic's end. Raises as ``record_fetch`` does."""
        return try_batch_consumer_and_describe(self._settings, TopicPartition(self.name, 0), WAIT_S)

    def _produce(self, producer: kafka.Producer, value: bytes) -> None:
        errors: list[kafka.KafkaError] = []
        producer.produce(
            self.name, value, partition=0, on_delivery=lambda e, _: errors.append(e) if e else None
        )
        waiting = producer.flush(WAIT_S + 1)
        if errors:
            raise _trial_error(f"writing to topic {self.name}", kafka.KafkaException(errors[0]))
        if waiting:
            raise Unreachable(f"writing to topic {self.name}: no answer within {WAIT_S:.0f} s")

    def run_transactions_and_read_back(self) -> list[bytes]:
        """Commit one transaction and abort another; return what a reader of committed ones sees."""
        own = {"transactional.id": self.name, "transaction.timeout.ms": 60_000}
        producer = new_producer({**self._others, **own})
        try:
            producer.init_transactions(WAIT_S)
            for value, end in (
                (b"2", producer.commit_transaction),
                (b"3", producer.abort_transaction),
            ):
                producer.begin_transaction()
                self._produce(producer, value)
                end(WAIT_S)
        except kafka.KafkaException as error:
            raise _trial_error("a transaction", error) from error
        return [message.value() or b"" for message in self._read_messages(2, "read_committed")]

    def _read_messages(self, min_count: int, isolation: str) -> list[kafka.Message]:
        """Return the messages from the topic's beginning to its end, once there are so many."""
        consumer = new_consumer(
            {
                **self._settings,
                "group.id": self.name,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )
        found: list[kafka.Message] = []
        end_s = time.monotonic() + WAIT_S
        try:
            consumer.assign([kafka.TopicPartition(self.name, 0, kafka.OFFSET_BEGINNING)])
            while time.monotonic() < end_s:
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == _CODES._PARTITION_EOF and len(found) >= min_count:  # noqa: SLF001
                    return found
                elif error.code() in NO_RIGHTS:
                    raise _trial_error(f"reading topic {self.name}", kafka.KafkaException(error))
        finally:
            consumer.close()
        raise Unreachable(
            f"reading topic {self.name}: {len(found)} of {min_count} records within {WAIT_S:.0f} s"
        )

    def join_and_leave_group(self, protocol: Literal["classic", "consumer"]) -> None:
        """Become a member of a group of the trial's name, as a participant does, and leave."""
        own = {key: v for key, v in self._settings.items() if key not in _OF_CLASSIC}
        settings = own if protocol == "consumer" else self._settings
        group = f"{self.name}-{protocol}"
        member = KafkaGroupMember(settings, [self.name], group, protocol, on_revoke=lambda _: None)
        end_s = time.monotonic() + WAIT_S
        try:
            while not member.assignment():
                member.poll(200)
                if time.monotonic() > end_s:
                    raise Unreachable(f"joining group {group}: no partition within {WAIT_S:.0f} s")
        finally:
            member.close()


_OF_CLASSIC = frozenset({"session.timeout.ms", "heartbeat.interval.ms"})
"""Settings of a member that brokers decide on in the newer protocol."""


def _trial_error(tried: str, error: kafka.KafkaException) -> HeadgateError:
    cause: Any = error.args[0]
    if cause.code() in NO_RIGHTS:
        return MissingRights(f"{tried}: refused: {cause.str()}", "")
    return Unreachable(f"{tried}: {cause.name()}: {cause.str()}", "")
