"""Asks a Kafka cluster within a time limit, and without librdkafka logging to the terminal.

It serves commands: metadata, rights and the newest messages. Nothing here joins a group, commits or
creates anything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import ConfigResource, ResourceType

from headgate.control_protocol.errors import (
    HeadgateError,
    MissingRights,
    Unreachable,
)
from headgate.control_protocol.identifiers import TopicId
from headgate.kafka.authentication import token_keeper_for
from headgate.kafka.client_settings import settings_error
from headgate.kafka.clients import new_admin, new_consumer
from headgate.kafka.control_topic import creation_error, new_control_topic
from headgate.kafka.error_codes import NO_RIGHTS, SETTINGS_NOT_TOLD

ANSWER_S_MAX = 5.0
_TRY_S = 1.0
_AGAIN_S = 0.1

_CODES = kafka.KafkaError
_REFUSED = NO_RIGHTS | {
    _CODES.SASL_AUTHENTICATION_FAILED,
    _CODES._AUTHENTICATION,  # noqa: SLF001 - librdkafka's public names for its own errors
}
_ABSENT = {
    _CODES.UNKNOWN_TOPIC_OR_PART,
    _CODES._UNKNOWN_TOPIC,  # noqa: SLF001
    _CODES._UNKNOWN_PARTITION,  # noqa: SLF001
}
_GROUP_STARTING = {
    _CODES.COORDINATOR_NOT_AVAILABLE,
    _CODES.COORDINATOR_LOAD_IN_PROGRESS,
    _CODES.NOT_COORDINATOR,
}
_ALL_DOWN = _CODES._ALL_BROKERS_DOWN  # noqa: SLF001
_MOST_TELLING = [
    _CODES._AUTHENTICATION,  # noqa: SLF001
    _CODES._SSL,  # noqa: SLF001
    _CODES._RESOLVE,  # noqa: SLF001
    _CODES._TRANSPORT,  # noqa: SLF001
]
"""The most telling ones first among a client's complaints while it cannot connect."""


def with_log_silenced(settings: Mapping[str, str]) -> dict[str, str]:
    """Switch off librdkafka's own log, unless a person set it: our errors say what is wrong."""
    return {"log_level": "0", **settings}


@dataclass(frozen=True, slots=True)
class ResourceRights:
    """Something on the cluster and what this client may do there; ``None``: unknown.

    ``members``: who is in a group, by client and host.
    """

    partitions: int = 0
    operations: frozenset[str] | None = None
    state: str = ""
    members: tuple[str, ...] = ()

    def known_missing_operations(self, *needed: str) -> list[str]:
        return [] if self.operations is None else [o for o in needed if o not in self.operations]


class Cluster:
    """One admin client. Raises ``Unreachable``, ``MissingRights``, ``ConfigurationError``."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._servers = settings["bootstrap.servers"]
        self._has_token = token_keeper_for(settings) is not None
        self._complaints: list[kafka.KafkaError] = []
        config = {**with_log_silenced(settings), "error_cb": self._complaints.append}
        try:
            self._admin = new_admin(config)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise settings_error(error, settings) from error

    def count_brokers(self) -> int:
        """Return how many brokers answer."""
        patience = time.monotonic() + ANSWER_S_MAX
        while True:
            try:
                return len(self._admin.list_topics(timeout=_TRY_S).brokers)
            except kafka.KafkaException as error:
                self._admin.poll(0)  # delivers the client's complaints
                # Refused by every broker: waiting longer would not change the answer.
                if self._is_reason_of_outage_known() or time.monotonic() > patience:
                    raise self._unreachable_or_refused_error(error) from error

    def _is_reason_of_outage_known(self) -> bool:
        codes = {complaint.code() for complaint in self._complaints}
        return _ALL_DOWN in codes and not codes.isdisjoint(_MOST_TELLING)

    def describe_topic(self, name: str) -> ResourceRights | None:
        """Return a topic, or ``None`` if it does not exist."""
        futures = self._admin.describe_topics(
            kafka.TopicCollection([name]),
            include_authorized_operations=True,
            request_timeout=ANSWER_S_MAX,
        )
        try:
            described = futures[name].result()
        except kafka.KafkaException as error:
            if error.args[0].code() in _ABSENT:
                return None
            raise _description_error(f"topic {name}", error) from error
        return ResourceRights(
            len(described.partitions), _operation_names(described.authorized_operations)
        )

    def topic_id(self, name: str) -> TopicId:
        """Return the id of an existing topic."""
        futures = self._admin.describe_topics(
            kafka.TopicCollection([name]), request_timeout=ANSWER_S_MAX
        )
        try:
            return TopicId(str(futures[name].result().topic_id))
        except kafka.KafkaException as error:
            raise _description_error(f"topic {name}", error) from error

    def is_compacted(self, topic: str) -> bool | None:
        """Return whether the brokers remove records of a topic for newer ones with the same key.

        ``None``: they do not say. Raises ``MissingRights`` and ``Unreachable``.
        """
        resource = ConfigResource(ResourceType.TOPIC, topic)
        futures = self._admin.describe_configs([resource], request_timeout=ANSWER_S_MAX)
        try:
            policy = futures[resource].result().get("cleanup.policy")
        except kafka.KafkaException as error:
            if error.args[0].code() in SETTINGS_NOT_TOLD:
                return None
            raise _description_error(f"the settings of topic {topic}", error) from error
        return None if policy is None else "compact" in str(policy.value)

    def describe_group(self, name: str) -> ResourceRights:
        """Return a group, whether or not it exists. A new cluster's first group takes a moment."""
        patience = time.monotonic() + ANSWER_S_MAX
        while True:
            futures = self._admin.describe_consumer_groups(
                [name], include_authorized_operations=True, request_timeout=ANSWER_S_MAX
            )
            try:
                described = futures[name].result()
            except kafka.KafkaException as error:
                if error.args[0].code() not in _GROUP_STARTING or time.monotonic() > patience:
                    raise _description_error(f"group {name}", error) from error
                time.sleep(_AGAIN_S)
                continue
            members = sorted(f"{m.client_id} at {m.host.lstrip('/')}" for m in described.members)
            return ResourceRights(
                operations=_operation_names(described.authorized_operations),
                state=described.state.name.lower(),
                members=tuple(members),
            )

    def may_create_control_topic(self, topic: str) -> bool:
        """Return whether a start could create it; the brokers only validate its request.

        Raises ``ControlTopicUnfit`` for another refusal than that of the right.
        """
        futures = self._admin.create_topics(
            [new_control_topic(topic)], request_timeout=ANSWER_S_MAX, validate_only=True
        )
        try:
            futures[topic].result()
        except kafka.KafkaException as error:
            if error.args[0].code() in _REFUSED:
                return False
            raise creation_error(topic, error.args[0]) from error
        return True

    def _unreachable_or_refused_error(self, error: kafka.KafkaException) -> HeadgateError:
        told = sorted(
            (complaint for complaint in self._complaints if complaint.code() in _MOST_TELLING),
            key=lambda complaint: _MOST_TELLING.index(complaint.code()),
        )
        reason = (told[0] if told else error.args[0]).str()
        if told and told[0].code() in _REFUSED:
            if self._has_token:
                reason = f"the token server gave a token, and the brokers refuse it: {reason}"
            return MissingRights(f"{self._servers}: {reason}", "check the credentials in [kafka]")
        return Unreachable(
            f"no broker answers at {self._servers}: {reason}",
            'check kafka."bootstrap.servers" and that the brokers run',
        )


def _description_error(what: str, error: kafka.KafkaException) -> HeadgateError:
    cause = error.args[0]
    if cause.code() in _REFUSED:
        return MissingRights(
            f"{what} may not be seen: {cause.str()}", "allow the principal to describe and read it"
        )
    return Unreachable(f"no answer about {what}: {cause.str()}", "try again")


def _operation_names(operations: Any) -> frozenset[str] | None:
    return None if operations is None else frozenset(o.name.lower() for o in operations)


def _new_reader(
    settings: Mapping[str, str], group_id: str, overrides: Mapping[str, bool]
) -> kafka.Consumer:
    config = {
        **with_log_silenced(settings),
        "group.id": group_id,
        "enable.auto.commit": False,
        **overrides,
    }
    try:
        return new_consumer(config)
    except (kafka.KafkaException, ValueError, TypeError) as error:
        raise settings_error(error, settings) from error


def read_newest_control_values(
    settings: Mapping[str, str], topic: str, group_id: str, count_max: int
) -> list[bytes]:
    """Return the values of partition 0's last ``count_max``, oldest first; none without the topic.

    A consumer must name a group; this one is neither joined nor committed to. Raises
    ``Unreachable``, ``MissingRights``, ``ConfigurationError``.
    """
    at = kafka.TopicPartition(topic, 0)
    overrides = {"enable.auto.offset.store": False, "enable.partition.eof": True}
    consumer = _new_reader(settings, group_id, overrides)
    try:
        low, high = consumer.get_watermark_offsets(at, timeout=ANSWER_S_MAX)
        at.offset = max(low, high - count_max)
        consumer.assign([at])
        return _read_values(consumer, high) if at.offset < high else []
    except kafka.KafkaException as error:
        if error.args[0].code() in _ABSENT:
            return []
        raise _description_error(f"topic {topic}", error) from error
    finally:
        consumer.close()


def read_newest_append_time(
    settings: Mapping[str, str], topic: str, group_id: str, wait_for_next_s: float = 0.0
) -> int | None:
    """Return, in epoch milliseconds, when the brokers appended partition 0's last message.

    With ``wait_for_next_s``: that of the next one instead, if one comes within that time. ``None``
    if there is none, or the topic takes its writers' time. Raises as
    ``read_newest_control_values``.
    """
    at = kafka.TopicPartition(topic, 0)
    consumer = _new_reader(settings, group_id, {})
    try:
        low, high = consumer.get_watermark_offsets(at, timeout=ANSWER_S_MAX)
        at.offset = high if wait_for_next_s else max(low, high - 1)
        consumer.assign([at])
        message = (
            consumer.poll(wait_for_next_s or ANSWER_S_MAX)
            if wait_for_next_s or low < high
            else None
        )
        if message is None or _is_end_of_log(message):
            return None
    except kafka.KafkaException as error:
        if error.args[0].code() in _ABSENT:
            return None
        raise _description_error(f"topic {topic}", error) from error
    finally:
        consumer.close()
    kind, time_ms = message.timestamp()
    return int(time_ms) if kind == kafka.TIMESTAMP_LOG_APPEND_TIME else None


def _read_values(consumer: kafka.Consumer, end: int) -> list[bytes]:
    found: list[bytes] = []
    patience = time.monotonic() + ANSWER_S_MAX
    while time.monotonic() < patience:
        for message in consumer.consume(1_000, 0.2):
            if _is_end_of_log(message):
                return found
            found.append(message.value() or b"")
            if (message.offset() or 0) + 1 >= end:
                return found
    return found


def _is_end_of_log(message: kafka.Message) -> bool:
    """Return whether it is no record but says that the log ends. Raises any other error in it."""
    error = message.error()
    if error is not None and error.code() != _CODES._PARTITION_EOF:  # noqa: SLF001
        raise kafka.KafkaException(error)
    return error is not None
