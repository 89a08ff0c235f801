"""Asks the source cluster on behalf of the coordinator, with confluent-kafka's admin client."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, OffsetSpec

from headgate.control_protocol.errors import ConfigurationError, MissingRights, Unreachable
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import TopicState
from headgate.kafka.client_settings import (
    TOPICS_OF_KAFKA,
    settings_error,
    settings_for_offset_queries,
)
from headgate.kafka.clients import new_admin
from headgate.kafka.error_codes import NO_RIGHTS
from headgate.kafka.group_offsets import read_offsets_with_metadata

REQUEST_TIMEOUT_S = 10.0


_NO_SUCH_OFFSET = -1
"""Kafka's answer if no record is as recent as the requested time."""


class KafkaSourceTopics:
    """The configured topics as the brokers know them now.

    A name that begins with ``^`` is a pattern, as in a Kafka subscription; a topic that matches it
    may come and go. Each request ends within ``request_timeout_s``, then raises ``Unreachable``. So
    does a named topic that the brokers do not know, since a broker whose metadata lag behind says
    the same. If it stays unknown for ``missing_max_s`` in total, it is a ``ConfigurationError``.
    Without an ``admin`` it has its own.
    """

    def __init__(
        self,
        kafka_config: Mapping[str, str],
        topics: Sequence[str],
        group_id: str,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        *,
        missing_max_s: float = 0.0,
        admin: AdminClient | None = None,
    ) -> None:
        self._missing_max_s = missing_max_s
        self._missing_since_s: dict[str, float] = {}
        self._topics = tuple(topics)
        self._config = dict(kafka_config)
        self._group_id = group_id
        self._timeout_s = request_timeout_s
        try:
            # A client is false while it has nothing to send: it has a length.
            self._admin = (
                new_admin(settings_for_offset_queries(kafka_config)) if admin is None else admin
            )
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise settings_error(error, kafka_config) from error

    def describe(self) -> Mapping[str, TopicState]:
        described = self._describe_topics()
        partitions = _partitions_with_leader(described)
        begins = self._list_offsets(partitions, OffsetSpec.earliest())
        ends = self._list_offsets(partitions, OffsetSpec.latest())
        return {
            name: TopicState(
                topic_id=TopicId(str(topic.topic_id)),
                partitions={  # retention may have passed the end between the two answers
                    p.partition: OffsetRange(begins[p], max(begins[p], ends[p]))
                    for p in partitions
                    if p.topic == name
                },
                silent=frozenset(p.id for p in topic.partitions if p.leader is None),
            )
            for name, topic in described.items()
        }

    def offsets_at(self, timestamp_ms: int) -> Offsets:
        partitions = _partitions_with_leader(self._describe_topics())
        found = self._list_offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        ends = self._list_offsets(partitions, OffsetSpec.latest())
        return Offsets({p: found[p] if found[p] >= 0 else ends[p] for p in partitions})

    def committed_offset_metadata(self) -> str | None:
        """Return the note of the first partition, in order, of the configured topics with one."""
        return next(iter(self.all_offset_metadata()), None)

    def all_offset_metadata(self) -> list[str]:
        """Return the notes next to the group's offsets of the configured topics, in their order."""
        partitions = sorted(
            (p.topic, p.partition) for p in _partitions_with_leader(self._describe_topics())
        )
        try:
            places = read_offsets_with_metadata(
                self._config, self._group_id, partitions, self._timeout_s
            )
        except kafka.KafkaException as error:
            raise _translate_error(f"group {self._group_id}", error) from error
        return [place.metadata for place in places if place.metadata]

    def close(self) -> None:
        """Do nothing: only idle connections are open, which end with the object."""

    def _describe_topics(self) -> Mapping[str, Any]:
        names = named_and_matching_topics(self._topics, self._list_topics)
        if not names:
            return {}
        try:
            return self._describe_named_topics(names)
        except Unreachable:
            # The client keeps waiting for the broker that it knew as the controller, dead or not;
            # listing topics makes it learn the new one.
            self._list_topics()
            return self._describe_named_topics(names)

    def _describe_named_topics(self, names: list[str]) -> Mapping[str, Any]:
        futures = self._admin.describe_topics(
            kafka.TopicCollection(names), request_timeout=self._timeout_s
        )
        described = {}
        for name, future in futures.items():
            try:
                described[name] = self._await_result(f"topic {name}", future)
                self._missing_since_s.pop(name, None)
            except _TopicMissing as error:
                if name in self._topics:
                    self._raise_missing(name, error)
        return described

    def _raise_missing(self, name: str, error: _TopicMissing) -> NoReturn:
        """Raise that the topic is missing.

        For a while that is something to try again, then a ``ConfigurationError``.
        """
        now_s = time.monotonic()
        if now_s - self._missing_since_s.setdefault(name, now_s) < self._missing_max_s:
            raise error
        raise ConfigurationError(error.message, error.hint) from error

    def _list_topics(self) -> Mapping[str, Any]:
        try:
            topics: Mapping[str, Any] = self._admin.list_topics(timeout=self._timeout_s).topics
        except kafka.KafkaException as error:
            raise _translate_error("the list of topics", error) from error
        return topics

    def _list_offsets(
        self, partitions: Sequence[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        futures = self._admin.list_offsets(
            {kafka.TopicPartition(p.topic, p.partition): spec for p in partitions},
            isolation_level=kafka.IsolationLevel.READ_COMMITTED,
            request_timeout=self._timeout_s,
        )
        return {
            TopicPartition(p.topic, p.partition): self._offset_from_answer(p, f)
            for p, f in futures.items()
        }

    def _offset_from_answer(self, asked: kafka.TopicPartition, future: Future[Any]) -> int:
        what = f"{asked.topic}/{asked.partition}"
        offset = int(self._await_result(what, future).offset)
        # While a broker starts, the client succeeds with an invalid offset.
        if offset < _NO_SUCH_OFFSET:
            raise Unreachable(f"the Kafka cluster gave no offset of {what}", "is it coming up?")
        return offset

    def _await_result(self, what: str, future: Future[Any]) -> Any:
        try:
            return future.result()
        except kafka.KafkaException as error:
            raise _translate_error(what, error) from error


def named_and_matching_topics(
    topics: Sequence[str], list_existing: Callable[[], Iterable[str]]
) -> list[str]:
    """Return the topics that are named, and the existing ones that a pattern matches.

    Everybody has to ask here: librdkafka, and brokers (KIP-848), read patterns in other ways.
    """
    patterns = [re.compile(topic) for topic in topics if topic.startswith("^")]
    named = [topic for topic in topics if not topic.startswith("^")]
    if not patterns:
        return named
    matching = {t for t in list_existing() if any(pattern.search(t) for pattern in patterns)}
    return [*named, *sorted(matching - TOPICS_OF_KAFKA - set(named))]


class _TopicMissing(Unreachable):
    """The brokers do not know such a topic or partition, or not yet."""


def _partitions_with_leader(described: Mapping[str, Any]) -> list[TopicPartition]:
    """Return those that a broker answers for: asking for another one would lose all answers."""
    return [
        TopicPartition(name, partition.id)
        for name, topic in described.items()
        for partition in topic.partitions
        if partition.leader is not None
    ]


def _translate_error(what: str, error: kafka.KafkaException) -> Exception:
    cause = error.args[0]
    if cause.code() in (kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError.TOPIC_EXCEPTION):
        return _TopicMissing(
            f"the source's {what} does not exist", "create it, or correct the sink's topics"
        )
    if cause.code() in NO_RIGHTS:
        return MissingRights(
            f"the Kafka cluster refuses to describe {what}: {cause.str()}",
            "allow the principal to describe and read it",
        )
    return Unreachable(
        f"the Kafka cluster did not answer about {what}: {cause.str()}",
        "check bootstrap.servers and that the brokers run",
    )
