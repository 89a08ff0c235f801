"""Creates and checks the control topic and its settings, with confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import (
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headgate.control_protocol.errors import (
    ControlTopicUnfit,
    HeadgateError,
    MissingRights,
    Unreachable,
)
from headgate.control_protocol.message_encoding import MESSAGE_BYTES_MAX
from headgate.kafka.client_settings import settings_error, with_quiet_log, without_consumer_settings
from headgate.kafka.clients import new_admin
from headgate.kafka.error_codes import NO_RIGHTS, SETTINGS_NOT_TOLD

REQUEST_TIMEOUT_MS = 10_000

_BATCH_BYTES = 1024
"""What Kafka itself adds to a message, generously estimated."""

APPEND_TIME = "LogAppendTime"
_BROKER_DEFAULT = -1
CONTROL_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 24 * 60 * 60 * 1000),  # for people: no rule needs yesterday's events
    "max.message.bytes": str(1024 * 1024),
    "message.timestamp.type": APPEND_TIME,  # else brokers refuse who has a clock far ahead
}
_AS_IT_SHOULD_BE = (
    "one partition, cleanup.policy=delete, max.message.bytes of at least"
    f" {MESSAGE_BYTES_MAX + _BATCH_BYTES}"
)
_LATER = {
    kafka.KafkaError.REQUEST_TIMED_OUT,
    kafka.KafkaError.NOT_CONTROLLER,
    kafka.KafkaError.THROTTLING_QUOTA_EXCEEDED,
}
"""The client does not mark these as retriable in an answer to an admin request."""


def ensure_control_topic(
    kafka_config: Mapping[str, str], topic: str, timeout_ms: int = REQUEST_TIMEOUT_MS
) -> None:
    """Create the control topic if it is missing; otherwise check it.

    Raises ``ControlTopicUnfit``, ``MissingRights``, ``Unreachable``, ``ConfigurationError``.
    """
    cluster = _Cluster(kafka_config, topic, timeout_ms)
    if not cluster.require_fitting_topic_if_present():
        cluster.create_topic()


def require_fitting_topic_if_present(
    kafka_config: Mapping[str, str], topic: str, timeout_ms: int = REQUEST_TIMEOUT_MS
) -> bool:
    """Return whether there is the control topic, and raise where it does not fit.

    Raises as ``ensure_control_topic``.
    """
    return _Cluster(kafka_config, topic, timeout_ms).require_fitting_topic_if_present()


def will_use_append_time(
    kafka_config: Mapping[str, str], topic: str, timeout_ms: int = REQUEST_TIMEOUT_MS
) -> bool:
    """Return whether brokers put their own time on the events.

    ``True`` without a topic, since it is created so.
    """
    settings = read_topic_settings(kafka_config, topic, timeout_ms)
    return settings is None or settings.get("message.timestamp.type") == APPEND_TIME


def read_topic_settings(
    kafka_config: Mapping[str, str], topic: str, timeout_ms: int = REQUEST_TIMEOUT_MS
) -> Mapping[str, str] | None:
    """Return what the cluster tells of any topic's settings; ``None`` without the topic.

    Raises ``MissingRights``, ``Unreachable``, ``ConfigurationError``.
    """
    return _Cluster(kafka_config, topic, timeout_ms).topic_settings()


class _Cluster:
    def __init__(self, kafka_config: Mapping[str, str], topic: str, timeout_ms: int) -> None:
        self._topic = topic
        self._timeout_s = timeout_ms / 1000
        try:
            self._admin = new_admin(without_consumer_settings(with_quiet_log(kafka_config)))
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise settings_error(error, kafka_config) from error

    def require_fitting_topic_if_present(self) -> bool:
        described = self._describe_topic()
        settings = self.topic_settings() if described else None
        if described is None or settings is None:
            return False
        faults = faults_of_control_topic(len(described.partitions), settings)
        if faults:
            raise ControlTopicUnfit(
                f"control topic {self._topic} has {' and '.join(faults)}",
                f"it needs {_AS_IT_SHOULD_BE}; correct it, or name another topic",
            )
        return True

    def create_topic(self) -> None:
        new = [new_control_topic(self._topic)]
        futures = self._admin.create_topics(new, request_timeout=self._timeout_s)
        try:
            futures[self._topic].result()
        except kafka.KafkaException as error:
            cause = error.args[0]
            if cause.code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise creation_error(self._topic, cause) from error
        # Brokers learn of a new topic one after the other.
        deadline_s = time.monotonic() + self._timeout_s
        while not self.require_fitting_topic_if_present():
            if time.monotonic() > deadline_s:
                raise Unreachable(f"control topic {self._topic} was created but does not show up")
            time.sleep(0.05)

    def _describe_topic(self) -> Any | None:
        topics = kafka.TopicCollection([self._topic])
        futures = self._admin.describe_topics(topics, request_timeout=self._timeout_s)
        try:
            return futures[self._topic].result()
        except kafka.KafkaException as error:
            cause = error.args[0]
            if cause.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if cause.code() in NO_RIGHTS:
                raise MissingRights(
                    f"control topic {self._topic}: the cluster refuses to tell of it:"
                    f" {cause.str()}",
                    "allow the principal Describe on it, and Read and Write",
                ) from error
            raise _unreachable_or_refused_error(f"control topic {self._topic}", cause) from error

    def topic_settings(self) -> Mapping[str, str] | None:
        """Return what the cluster tells of the topic's settings; ``None`` without the topic."""
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        futures = self._admin.describe_configs([resource], request_timeout=self._timeout_s)
        try:
            entries = futures[resource].result()
        except kafka.KafkaException as error:
            cause = error.args[0]
            if cause.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if cause.code() in NO_RIGHTS:
                raise MissingRights(
                    f"topic {self._topic}: the cluster refuses to tell its settings: {cause.str()}",
                    "allow the principal DescribeConfigs on it",
                ) from error
            if cause.code() in SETTINGS_NOT_TOLD:
                return {}
            raise _unreachable_or_refused_error(f"topic {self._topic}", cause) from error
        return {name: str(entry.value) for name, entry in entries.items()}


def new_control_topic(topic: str) -> NewTopic:
    """Return the control topic as a start asks for it."""
    return NewTopic(topic, 1, _BROKER_DEFAULT, config=CONTROL_SETTINGS)


def creation_error(topic: str, cause: kafka.KafkaError) -> HeadgateError:
    """Return what a refused request to create the control topic means."""
    if cause.code() in _LATER or cause.code() < 0:
        return _unreachable_or_refused_error(f"control topic {topic}", cause)
    return ControlTopicUnfit(
        f"control topic {topic} is missing and cannot be created: {cause.str()}",
        f"create it with {_AS_IT_SHOULD_BE}, or allow the principal to create it",
    )


def _unreachable_or_refused_error(what: str, cause: kafka.KafkaError) -> Unreachable:
    return Unreachable(
        f"{what}: the Kafka cluster did not answer: {cause.str()}",
        "check bootstrap.servers and that the brokers run",
    )


def faults_of_control_topic(partition_count: int, settings: Mapping[str, str]) -> list[str]:
    """Return what is wrong with a control topic of so many partitions and these settings."""
    faults = []
    if partition_count != 1:
        faults.append(f"{partition_count} partitions")
    # Not every provider tells of each setting. What is not said is no fault: a topic that compacts
    # refuses events, which have no key, and one that takes no large ones says so at the first.
    if settings.get("cleanup.policy", "delete") != "delete":
        faults.append(f"cleanup.policy={settings['cleanup.policy']}")
    size = settings.get("max.message.bytes", "")
    if size.isdecimal() and int(size) < MESSAGE_BYTES_MAX + _BATCH_BYTES:
        faults.append(f"max.message.bytes={size}")
    return faults
