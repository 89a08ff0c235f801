"""Sends to the dead-letter topic with confluent-kafka, and stores the progress.

Progress is the note of a committed offset of a separate group, on the topic's partition 0. Nobody
joins the group. Brokers forget it with the topic, or if it was not written for long: then
everything is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import confluent_kafka as kafka

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.coordinator.dead_letters import DeadLetter, Progress
from headgate.kafka.client_settings import settings_error, with_quiet_log, without_consumer_settings
from headgate.kafka.clients import new_admin, new_producer
from headgate.kafka.group_offsets import read_stored_offsets, store_offset

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


class DeadLetterTopic:
    """Sends dead letters. Use from one thread; sending fails once ``ending`` returns true.

    Every call is bounded, and raises ``Unreachable`` with the reason if it did not succeed.
    """

    def __init__(
        self,
        kafka_config: Mapping[str, str],
        topic: str,
        group_id: str,
        is_ending: Callable[[], bool],
    ) -> None:
        self._topic = topic
        self._group_id = group_id
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

    def progress(self) -> Progress | None:
        """Return the progress; ``None`` if none is known. Raises if there is no such topic."""
        self._require_topic()
        asked = [(self._topic, 0)]
        with self._translate_errors():
            (place,) = read_stored_offsets(self._config, self._group_id, asked, _REQUEST_S)
        return Progress.from_note(place.metadata) if place.metadata else None

    def store(self, progress: Progress) -> None:
        """Store how much was sent. The offset itself has no meaning."""
        place = kafka.TopicPartition(self._topic, 0, 0, progress.to_note())
        with self._translate_errors():
            store_offset(self._config, self._group_id, place)

    def send(self, letters: Iterable[DeadLetter]) -> int:
        """Send all letters and return their number, confirmed. If it raises, some may be there."""
        errors: list[str] = []
        count = 0

        def delivered(error: kafka.KafkaError | None, _: kafka.Message) -> None:
            if error is not None:
                errors.append(error.str())

        self._producer = self._producer or new_producer({**self._config, **_PRODUCER})
        try:
            for letter in letters:
                self._produce(letter, delivered)
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
            raise self._error("; ".join(sorted(set(errors))))
        return count

    def close(self) -> None:
        """Close, and drop what was not confirmed: it will be sent again."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(_LOOK_S)

    def _produce(self, letter: DeadLetter, delivered: Callable[..., None]) -> None:
        assert self._producer is not None
        message = {"key": letter.key, "value": letter.value, "headers": list(letter.headers)}
        self._producer.poll(0)
        try:
            self._producer.produce(self._topic, **message, on_delivery=delivered)
        except BufferError:
            self._flush()
            self._producer.produce(self._topic, **message, on_delivery=delivered)

    def _flush(self) -> None:
        """Wait until everything is confirmed or given up; the delivery time-out limits it."""
        assert self._producer is not None
        while self._producer.flush(_LOOK_S):
            if self._is_ending():
                raise self._error("the coordinator ends")

    def _require_topic(self) -> None:
        """Fail for a misspelt topic: the broker would create it when something is sent to it."""
        named = kafka.TopicCollection([self._topic])
        with self._translate_errors():
            self._admin.describe_topics(named, request_timeout=_REQUEST_S)[self._topic].result()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except kafka.KafkaException as error:
            raise self._error(error.args[0].str()) from error

    def _error(self, reason: str) -> Unreachable:
        return Unreachable(
            f"dead-letter topic {self._topic}: {reason}",
            "what is in the quarantine is sent when it can be",
        )


def _on_client_error(error: kafka.KafkaError) -> None:
    """Ignore the error: what matters comes with the call that fails."""
    _log.debug("dead-letter topic: %s", error.str())
