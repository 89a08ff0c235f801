"""Holds the participant's seat in the source consumer group, with confluent-kafka.

The member only *owns* partitions; whoever runs a batch reads the records elsewhere. So every
partition is paused at the moment it is assigned, before its first fetch, and no message ever comes
out of ``poll``. Nothing here is needed for correctness (the table commit alone is); it decides who
works on what.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, OffsetSpec

from headgate.control_protocol.errors import MemberRefused, MissingRights, Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.client_settings import (
    settings_error,
    settings_for_offset_queries,
    with_default_session_timeout,
    with_quiet_log,
)
from headgate.kafka.clients import is_fatal_error, new_admin, new_consumer
from headgate.kafka.error_codes import NO_RIGHTS
from headgate.kafka.source_topics import named_and_matching_topics

log = redacted_logger(__name__)

GroupProtocol = Literal["classic", "consumer"]

REQUEST_TIMEOUT_S = 10.0
_NO_LEADER = -1

_REFRESH = "topic.metadata.refresh.interval.ms"
_DEFAULTS = {
    _REFRESH: 30_000,  # how soon an added partition is noticed, and a topic that a pattern matches
}

_FIXED = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    # Paused partitions fetch nothing; if that ever fails, these limits keep memory small.
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1024,
}

_WITH_EVERY_ATTEMPT = {
    kafka.KafkaError._TRANSPORT,  # noqa: SLF001 - the client's own way to name local errors
    kafka.KafkaError._RESOLVE,  # noqa: SLF001
}


class KafkaGroupMember:
    """Implements ``GroupMember`` over Kafka's classic protocol or KIP-848's ("consumer").

    ``on_revoke`` is called inside ``poll``, with the partitions that go to another member, while
    they are still owned: Kafka waits for it up to ``max.poll.interval.ms``, so it must be quicker.
    It does not receive partitions that are already lost (session expired): it is too late to
    announce anything for them. ``kafka_config`` uses librdkafka's names; what this class relies on
    (no automatic commits, ``read_committed``) cannot be overridden. Without an ``admin`` it has its
    own.

    Use from one thread; ``assignment`` may be read from any.
    """

    def __init__(
        self,
        kafka_config: Mapping[str, str],
        topics: Sequence[str],
        group_id: str,
        protocol: GroupProtocol = "classic",
        *,
        on_revoke: Callable[[frozenset[TopicPartition]], None],
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        admin: AdminClient | None = None,
    ) -> None:
        config = _member_config(kafka_config, group_id, protocol)
        self._on_revoke = on_revoke
        self._request_timeout_s = request_timeout_s
        strategy = config.get("partition.assignment.strategy", "cooperative")
        self._incremental = "cooperative" in strategy
        self._owned: frozenset[TopicPartition] = frozenset()
        self._given_up: set[TopicPartition] = set()
        self._leaderless: frozenset[TopicPartition] = frozenset()
        try:
            self._consumer = new_consumer(config)
            # A client is false while it has nothing to send: it has a length.
            self._admin = (
                new_admin(settings_for_offset_queries(kafka_config)) if admin is None else admin
            )
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise settings_error(error, kafka_config) from error
        self._topics = _TopicsToSubscribe(topics, self._list_topic_names, int(config[_REFRESH]))
        self._subscribe(self._topics.find_topics_at_start())

    def _subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(
            topics,
            on_assign=self._on_assigned,
            on_revoke=self._on_revoked,
            on_lost=self._on_lost,
        )

    def _list_topic_names(self) -> Iterable[str]:
        names: Iterable[str] = self._admin.list_topics(timeout=self._request_timeout_s).topics
        return names

    def poll(self, timeout_ms: int) -> None:
        """Serve the membership for ``timeout_ms``; raises what ``on_revoke`` raised.

        A partition that is given up and regained within one poll is missing from ``assignment()``
        until the next: others may have worked on it in between, so its owner must see the gap.
        """
        self._given_up.clear()
        if topics := self._topics.poll_changed():
            self._subscribe(topics)
        try:
            message = self._consumer.poll(timeout_ms / 1000)
        finally:
            assigned = {TopicPartition(p.topic, p.partition) for p in self._consumer.assignment()}
            self._owned = frozenset(assigned - self._given_up)
        if message is not None and message.error() is not None:
            _raise_if_refused_else_log(message.error())

    def assignment(self) -> frozenset[TopicPartition]:
        return self._owned

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the last stable offsets; a partition without one (its topic is gone) is left out.

        So is a partition without a leader, once the client has found out: until then the cluster
        gives no answer at all. Raises ``Unreachable`` if it does not answer in time.
        """
        try:
            ends = self._list_end_offsets(partitions)
        except Unreachable:
            led = self._partitions_with_leader(partitions)
            if len(led) == len(partitions):
                raise
            self._log_partitions_without_leader(frozenset(partitions) - frozenset(led))
            return self._list_end_offsets(led)
        self._leaderless = frozenset()
        return ends

    def _log_partitions_without_leader(self, partitions: frozenset[TopicPartition]) -> None:
        """Log it once: the question comes again every half second."""
        if partitions != self._leaderless:
            self._leaderless = partitions
            log.warning("without a leader: %s", ", ".join(map(str, sorted(partitions))))

    def _partitions_with_leader(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        try:
            topics = self._admin.list_topics(timeout=self._request_timeout_s).topics
        except kafka.KafkaException as error:
            raise Unreachable(
                f"the Kafka cluster lists no topics: {error.args[0].str()}"
            ) from error
        leaders = {
            (name, n): at.leader for name, t in topics.items() for n, at in t.partitions.items()
        }
        return [p for p in partitions if leaders.get((p.topic, p.partition), _NO_LEADER) >= 0]

    def _list_end_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        if not partitions:
            return {}
        futures = self._admin.list_offsets(
            {kafka.TopicPartition(p.topic, p.partition): OffsetSpec.latest() for p in partitions},
            isolation_level=kafka.IsolationLevel.READ_COMMITTED,
            request_timeout=self._request_timeout_s,
        )
        return {
            TopicPartition(asked.topic, asked.partition): end
            for asked, future in futures.items()
            if (end := _end_offset_from_answer(asked, future)) is not None
        }

    def is_buffer_full(self) -> bool:
        """Return ``False``: what Kafka holds does not wait for us."""
        return False

    def copy_offsets_to_group(self, offsets: Offsets, metadata: str) -> None:
        """Commit in the background; a refusal is only logged, since the table holds the truth."""
        copies = [
            kafka.TopicPartition(p.topic, p.partition, offset, metadata)
            for p, offset in offsets.restricted_to(self._owned).items()
        ]
        if not copies:
            return
        try:
            self._consumer.commit(offsets=copies, asynchronous=True)
        except (kafka.KafkaException, RuntimeError) as error:
            log.warning("the group's offsets (for lag tools only) were not updated: %s", error)

    def close(self) -> None:
        """Leave the group within about five seconds; ``on_revoke`` is not called any more."""
        self._on_revoke = _ignore_revocation
        self._owned = frozenset()
        self._consumer.close()

    def _on_assigned(self, consumer: kafka.Consumer, gained: list[kafka.TopicPartition]) -> None:
        # From the end, whatever the group has stored, and paused as soon as there is something to
        # pause: this member reads nothing by itself.
        for partition in gained:
            partition.offset = kafka.OFFSET_END
        if self._incremental:
            consumer.incremental_assign(gained)
        else:
            consumer.assign(gained)
        consumer.pause(gained)

    def _on_revoked(self, consumer: kafka.Consumer, leaving: list[kafka.TopicPartition]) -> None:
        partitions = frozenset(TopicPartition(p.topic, p.partition) for p in leaving)
        # Noted before the call, which may raise: one that is regained in the same poll must be seen
        # as lost in between.
        self._given_up |= partitions
        try:
            if partitions:
                self._on_revoke(partitions)
        finally:
            # Only now may the next owner have them: its PRESENCE then stands in the log behind what
            # was announced here (POSITION-1, POSITION-2). Released in any case, or the group would
            # wait for ever.
            self._release(consumer, leaving)

    def _on_lost(self, consumer: kafka.Consumer, leaving: list[kafka.TopicPartition]) -> None:
        log.warning(
            "lost without notice, others may own them already: %s", _describe_partitions(leaving)
        )
        self._given_up |= {TopicPartition(p.topic, p.partition) for p in leaving}
        self._release(consumer, leaving)

    def _release(self, consumer: kafka.Consumer, leaving: list[kafka.TopicPartition]) -> None:
        if self._incremental:
            consumer.incremental_unassign(leaving)
        else:
            consumer.unassign()


class _TopicsToSubscribe:
    """The topics by their names: a pattern that is subscribed would be read in another way than the
    coordinator does, and partitions be waited for that nobody has.

    Looks for topics that are new in a thread of its own: no poll waits for it.
    """

    def __init__(
        self, topics: Sequence[str], list_names: Callable[[], Iterable[str]], refresh_ms: int
    ) -> None:
        self._wanted = tuple(topics)
        self._list_names = list_names
        self._refresh_s = (refresh_ms if refresh_ms > 0 else _DEFAULTS[_REFRESH]) / 1000
        self._known: list[str] = []
        self._looking: Future[list[str]] | None = None
        self._due_s = 0.0

    def find_topics_at_start(self) -> list[str]:
        """Return them now; without an answer those that have names, and the others soon."""
        try:
            self._known = self._look()
            self._due_s = time.monotonic() + self._refresh_s
        except kafka.KafkaException:
            self._known = named_and_matching_topics(self._wanted, list)
        return self._known

    def poll_changed(self) -> list[str] | None:
        """Return them if they are others than before."""
        if self._looking is None:
            if time.monotonic() >= self._due_s and any(t.startswith("^") for t in self._wanted):
                self._looking = Future()
                threading.Thread(
                    target=self._find_topics_into_future,
                    args=[self._looking],
                    name="headgate-topics",
                    daemon=True,
                ).start()
            return None
        if not self._looking.done():
            return None
        answer, self._looking = self._looking, None
        self._due_s = time.monotonic() + self._refresh_s
        if answer.exception() is not None or answer.result() == self._known:
            return None
        self._known = answer.result()
        return self._known

    def _look(self) -> list[str]:
        return named_and_matching_topics(self._wanted, self._list_names)

    def _find_topics_into_future(self, answer: Future[list[str]]) -> None:
        try:
            answer.set_result(self._look())
        except Exception as error:  # noqa: BLE001 - it is asked again, whatever it was
            answer.set_exception(error)


def require_accepted_group_settings(
    kafka_config: Mapping[str, str], group_id: str, protocol: GroupProtocol
) -> None:
    """Raise ``ConfigurationError`` if the client takes no member with these settings. Joins not."""
    try:
        new_consumer(_member_config(kafka_config, group_id, protocol)).close()
    except (kafka.KafkaException, ValueError, TypeError) as error:
        raise settings_error(error, kafka_config) from error


def _member_config(
    kafka_config: Mapping[str, str], group_id: str, protocol: GroupProtocol
) -> dict[str, Any]:
    config: dict[str, Any] = {**_DEFAULTS, **with_quiet_log(kafka_config), **_FIXED}
    config |= {"group.id": group_id, "group.protocol": protocol}
    config |= {"on_commit": _on_offsets_committed, "error_cb": _on_client_error, "logger": log}
    if protocol == "classic":
        config.setdefault("partition.assignment.strategy", "cooperative-sticky")
        config = with_default_session_timeout(config)
    return config


def _end_offset_from_answer(asked: kafka.TopicPartition, future: Future[Any]) -> int | None:
    try:
        end = int(future.result().offset)
    except kafka.KafkaException as error:
        cause = error.args[0]
        if cause.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            log.warning("%s/%s does not exist any more", asked.topic, asked.partition)
            return None
        raise _end_unknown_error(asked, cause.str()) from error
    if end < 0:  # while a broker starts, the client succeeds with an invalid offset
        raise _end_unknown_error(asked, f"the client says {end}")
    return end


def _end_unknown_error(asked: kafka.TopicPartition, reason: str) -> Unreachable:
    return Unreachable(
        f"no end offset of {asked.topic}/{asked.partition}: {reason}",
        "check that the Kafka cluster answers; the question is repeated",
    )


def _raise_if_refused_else_log(error: kafka.KafkaError) -> None:
    """Raise only what waiting cannot fix of what ``poll`` reports besides rebalances."""
    if error.code() in NO_RIGHTS:
        raise MissingRights(
            f"the Kafka cluster refuses this client: {error.str()}",
            "allow the principal to read the source topics and to join the group",
        )
    if is_fatal_error(error):
        raise MemberRefused(
            f"the Kafka cluster refuses this participant for good: {error.str()}",
            "it gets no partition any more; correct what the cluster names, and start it again",
        )
    log.warning("Kafka group: %s", error.str())


def _on_offsets_committed(error: kafka.KafkaError | None, _: list[kafka.TopicPartition]) -> None:
    if error is not None:
        log.warning("the group's offsets (for lag tools only) were not updated: %s", error.str())


def _on_client_error(error: kafka.KafkaError) -> None:
    repeats = error.code() in _WITH_EVERY_ATTEMPT
    log.log(logging.DEBUG if repeats else logging.WARNING, "Kafka: %s", error.str())


def _ignore_revocation(_: frozenset[TopicPartition]) -> None:
    """Replaces the handler once the owner has closed."""


def _describe_partitions(partitions: list[kafka.TopicPartition]) -> str:
    return ", ".join(sorted(f"{p.topic}/{p.partition}" for p in partitions))
