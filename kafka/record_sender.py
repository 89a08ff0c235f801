"""Sends records to a topic of somebody's own, and keeps a note of what was sent, both bounded.

The note is the metadata of a committed offset of a separate group that nobody joins; the offset has
no meaning. Brokers forget it with its topic, or if it was not written for long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import confluent_kafka as kafka

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.client_settings import settings_error, with_quiet_log, without_consumer_settings
from headgate.kafka.clients import new_admin, new_producer
from headgate.kafka.group_offsets import commit_offset_with_metadata, read_offsets_with_metadata

_log = redacted_logger("headgate.coordinator")

_REQUEST_S = 10.0
_LOOK_S = 0.2
"""How often a flush checks whether to end."""

_BYTES_MAX = 64 * 1024 * 1024
_PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "delivery.timeout.ms": 10_000,
    "topic.metadata.propagation.max.ms": 2_000,
    # A bad record can have any size; the topic's own limit decides.
    "message.max.bytes": _BYTES_MAX,
    "queue.buffering.max.kbytes": 2 * _BYTES_MAX // 1024,
}
# A broker refuses a whole batch for one of its records, and one that is larger than the topic
# accepts, whatever its records are.
_ALONE = {"batch.num.messages": 1}
_CONFIRMED_MAX = 500_000


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """One record, its headers in order."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(slots=True)
class Redelivery:
    """Remembers what was confirmed of records that are sent again because others were not.

    Without it, one that the topic refuses makes all others be sent each time. Hashes are kept, and
    no more than a bound: what is beyond may be sent again.
    """

    of: Hashable = None
    confirmed: set[int] = field(default_factory=set)
    has_failed: bool = False

    def forget_unless_continuing(self, of: Hashable) -> None:
        """Forget everything unless this is what was being sent."""
        if of != self.of:
            self.of, self.has_failed = of, False
            self.confirmed.clear()

    def note_confirmed(self, record: int) -> None:
        if len(self.confirmed) < _CONFIRMED_MAX:
            self.confirmed.add(record)


@contextmanager
def _translating_errors(what: str, hint: str) -> Iterator[None]:
    try:
        yield
    except kafka.KafkaException as error:
        raise Unreachable(f"{what}: {error.args[0].str()}", hint) from error


class GroupNote:
    """Keeps a text for a group. Every call is bounded, and raises ``Unreachable``."""

    def __init__(self, kafka_config: Mapping[str, Any], group_id: str, topic: str) -> None:
        self._config = kafka_config
        self._group_id = group_id
        self._topic = topic

    def read(self) -> str:
        """Return the text; empty if none is known."""
        asked = [(self._topic, 0)]
        with self._translating_note_errors():
            (place,) = read_offsets_with_metadata(self._config, self._group_id, asked, _REQUEST_S)
        return place.metadata or ""

    def store(self, text: str) -> None:
        place = kafka.TopicPartition(self._topic, 0, 0, text)
        with self._translating_note_errors():
            commit_offset_with_metadata(self._config, self._group_id, place)

    def _translating_note_errors(self) -> Any:
        hint = "it is tried again; its principal needs READ on the group and on the topic"
        return _translating_errors(f"the note of group {self._group_id} on {self._topic}", hint)


class RecordSender:
    """Sends to one topic. Use from one thread; sending fails once ``is_ending`` returns true.

    Every call is bounded, and raises ``Unreachable`` with the reason if it did not succeed.
    """

    def __init__(
        self,
        kafka_config: Mapping[str, Any],
        topic: str,
        is_ending: Callable[[], bool],
        *,
        what: str = "topic",
        hint: str = "it is tried again",
    ) -> None:
        self._topic = topic
        self._what = what
        self._hint = hint
        self._is_ending = is_ending
        self._config: dict[str, Any] = {
            **without_consumer_settings(with_quiet_log(kafka_config)),
            "error_cb": _on_client_error,
        }
        try:
            self._admin = new_admin(self._config)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise settings_error(error, kafka_config) from error
        self._producer: kafka.Producer | None = None

    def require_topic_id(self) -> str:
        """Return the topic's id; fail for a misspelt one: the broker would create it when something
        is sent to it."""
        named = kafka.TopicCollection([self._topic])
        with _translating_errors(f"{self._what} {self._topic}", self._hint):
            asked = self._admin.describe_topics(named, request_timeout=_REQUEST_S)
            return str(asked[self._topic].result().topic_id)

    def send(self, records: Iterable[OutgoingRecord], again: Redelivery | None = None) -> int:
        """Send all records and return how many were sent, all confirmed. If it raises, some may be
        there: the next call leaves out those that ``again`` remembers."""
        again = again or Redelivery()
        errors: list[str] = []
        count = 0

        def on_delivered(record: int, error: kafka.KafkaError | None, _: kafka.Message) -> None:
            if error is not None:
                errors.append(error.str())
            else:
                again.note_confirmed(record)

        config = {**self._config, **_PRODUCER, **(_ALONE if again.has_failed else {})}
        self._producer = self._producer or new_producer(config)
        try:
            for record in records:
                mark = hash(record)
                if mark in again.confirmed:
                    continue
                self._produce(record, partial(on_delivered, mark))
                count += 1
                if errors:
                    break
            # Before the count is returned: the caller stores it as progress, and what is not
            # confirmed by then would never be sent.
            self._flush()
        except (kafka.KafkaException, BufferError) as error:
            errors.append(str(error))
        except BaseException:
            self.close()
            raise
        if errors:
            self.close()
            again.has_failed = True
            raise self._failed_send_error("; ".join(sorted(set(errors))))
        return count

    def close(self) -> None:
        """Close, and drop what was not confirmed: it will be sent again."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(_LOOK_S)

    def _produce(self, record: OutgoingRecord, on_delivered: Callable[..., None]) -> None:
        assert self._producer is not None
        message = {"key": record.key, "value": record.value, "headers": list(record.headers)}
        self._producer.poll(0)
        try:
            self._producer.produce(self._topic, **message, on_delivery=on_delivered)
        except BufferError:
            self._flush()
            self._producer.produce(self._topic, **message, on_delivery=on_delivered)

    def _flush(self) -> None:
        """Wait until everything is confirmed or given up; the delivery time-out limits it."""
        assert self._producer is not None
        while self._producer.flush(_LOOK_S):
            if self._is_ending():
                raise self._failed_send_error("the coordinator ends")

    def _failed_send_error(self, reason: str) -> Unreachable:
        return Unreachable(f"{self._what} {self._topic}: {reason}", self._hint)


def _on_client_error(error: kafka.KafkaError) -> None:
    """Ignore the error: what matters comes with the call that fails."""
    _log.debug("%s", error.str())
