"""Holds a worker's seat in a fleet's consumer group, and reads the slots that it gets.

The group decides who has which slot, and notices who is gone. A gained slot is read from its
beginning, and no offset is ever stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import confluent_kafka as kafka

from headgate.control_protocol.errors import MemberRefused, MissingRights
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.client_settings import settings_error, with_quiet_log
from headgate.kafka.clients import is_fatal_error, new_consumer
from headgate.kafka.compacted_topics import READER, CompactedRecord, compacted_record_of
from headgate.kafka.error_codes import NO_RIGHTS

log = redacted_logger(__name__)

_RECORDS_MAX = 1_000
_FIXED: dict[str, Any] = {
    **READER,
    "partition.assignment.strategy": "cooperative-sticky",
    "topic.metadata.refresh.interval.ms": 30_000,
    "fetch.wait.max.ms": 500,
}


@dataclass(frozen=True, slots=True)
class SlotsGained:
    """These slots are read from their beginning from here on; none: the group has answered."""

    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class SlotsRevoked:
    """The group gives these slots to others."""

    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class SlotsLost:
    """The session has expired: others may own these slots already, or nobody."""

    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class SlotRead:
    """The slot has been read to its end."""

    slot: int


SlotEvent = SlotsGained | SlotsRevoked | SlotsLost | SlotRead | CompactedRecord


class SlotMember:
    """A member of the group ``group_id`` over one topic. Use from one thread.

    With an ``instance_id`` its slots wait for it, for the session's time-out, when it leaves.
    """

    def __init__(
        self,
        kafka_config: Mapping[str, str],
        topic: str,
        group_id: str,
        *,
        session_timeout_ms: int,
        instance_id: str = "",
    ) -> None:
        config: dict[str, Any] = {**with_quiet_log(kafka_config), **_FIXED}
        config |= {"group.id": group_id, "error_cb": _on_client_error, "logger": log}
        config |= {"session.timeout.ms": session_timeout_ms}
        config |= {"heartbeat.interval.ms": min(3_000, session_timeout_ms // 3)}
        if instance_id:
            config["group.instance.id"] = instance_id
        self._events: deque[SlotEvent] = deque()
        try:
            self._consumer = new_consumer(config)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise settings_error(error, kafka_config) from error
        self._consumer.subscribe(
            [topic], on_assign=self._on_assigned, on_revoke=self._on_revoked, on_lost=self._on_lost
        )

    def poll(self, timeout_s: float) -> list[SlotEvent]:
        """Return what happened, in order. Raises ``MissingRights``, ``MemberRefused``."""
        message = self._consumer.poll(timeout_s)
        some = [] if message is None else [message]
        some += self._consumer.consume(_RECORDS_MAX, timeout=0) if some else []
        for each in some:
            self._take_message(each)
        events, self._events = [*self._events], deque()
        return events

    def close(self) -> None:
        """Leave the group; a broker that is away is waited for, for some seconds."""
        self._consumer.close()

    def _take_message(self, message: kafka.Message) -> None:
        error = message.error()
        if error is None:
            self._events.append(compacted_record_of(message))
        elif error.code() == kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001
            self._events.append(SlotRead(message.partition()))
        elif error.code() in NO_RIGHTS:
            raise MissingRights(
                f"the Kafka cluster refuses this worker: {error.str()}",
                "allow the principal to read the fleet's topic and to join its group",
            )
        elif is_fatal_error(error):
            # The client says it once, keeps quiet from then on, and never says that slots are lost.
            raise MemberRefused(
                f"the Kafka cluster refuses this worker for good: {error.str()}",
                "if it was fenced, another worker has its worker.name: give each one of its own",
            )
        else:
            log.debug("fleet group: %s", error.str())

    def _on_assigned(self, consumer: kafka.Consumer, gained: list[kafka.TopicPartition]) -> None:
        for slot in gained:
            slot.offset = kafka.OFFSET_BEGINNING
        consumer.incremental_assign(gained)
        self._events.append(SlotsGained(_slot_numbers(gained)))

    def _on_revoked(self, consumer: kafka.Consumer, leaving: list[kafka.TopicPartition]) -> None:
        consumer.incremental_unassign(leaving)
        self._events.append(SlotsRevoked(_slot_numbers(leaving)))

    def _on_lost(self, consumer: kafka.Consumer, leaving: list[kafka.TopicPartition]) -> None:
        consumer.incremental_unassign(leaving)
        self._events.append(SlotsLost(_slot_numbers(leaving)))


def _slot_numbers(slots: list[kafka.TopicPartition]) -> frozenset[int]:
    return frozenset(slot.partition for slot in slots)


def _on_client_error(error: kafka.KafkaError) -> None:
    log.debug("fleet group: %s", error.str())
