"""Reads and writes the control topic: one partition, explicit offsets, no group.

``control_topic.py`` creates and checks the topic itself.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient

from headgate.control_protocol.errors import (
    AppendUnconfirmed,
    ClockDiffers,
    ConfigurationError,
    ControlTopicUnfit,
    HeadgateError,
    LogDiscontinuity,
    MissingRights,
    Unreachable,
)
from headgate.control_protocol.events import Envelope, LogRecord
from headgate.control_protocol.identifiers import ControlOffset, TopicId
from headgate.control_protocol.message_encoding import (
    MESSAGE_BYTES_MAX,
    REFUSED,
    REPORTED,
    Skipped,
    SkipReason,
    Wire,
)
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.authentication import token_trouble_suffix
from headgate.kafka.client_settings import (
    settings_error,
    settings_for_offset_queries,
    without_consumer_settings,
)
from headgate.kafka.clients import new_admin, new_consumer, new_producer
from headgate.kafka.error_codes import NO_RIGHTS, NO_TOPIC, translate_topic_error

log = redacted_logger(__name__)

MESSAGES_PER_READ_MAX = 1000
_PARTITION = 0

# Each attempt to connect would be logged, ten times a second while a broker is down.
_QUIET = {"log_level": 2}

_CONSUMER = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # a lost position must be reported, not silently moved
    # An open transaction of a foreign producer must not hold back everything after it.
    "isolation.level": "read_uncommitted",
    # An event ends the wait at once; shorter waits are most of what an idle sink costs its brokers.
    # Only a seek waits for the fetch before it, and a log rarely breaks off.
    "fetch.wait.max.ms": 1_000,
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 16 * 1024,
}

PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 0,
    "compression.type": "lz4",  # a status is mostly repeated numbers
    "message.max.bytes": 1_000_000,
    # How long an unknown topic counts as one that brokers will still learn of. Otherwise a deleted
    # topic would be waited for until the delivery time-out, and its loss noticed only then.
    "topic.metadata.propagation.max.ms": 2_000,
}

_REFUSED_FOR_THEIR_TIME = {
    kafka.KafkaError.INVALID_TIMESTAMP,
    # So do brokers call it by themselves: our records have nothing else that they would validate.
    kafka.KafkaError.INVALID_RECORD,
}
_OUT_OF_RANGE = {
    kafka.KafkaError.OFFSET_OUT_OF_RANGE,
    kafka.KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
    kafka.KafkaError._LOG_TRUNCATION,  # noqa: SLF001
}
_WITH_EVERY_ATTEMPT = {
    kafka.KafkaError._TRANSPORT,  # noqa: SLF001
    kafka.KafkaError._RESOLVE,  # noqa: SLF001
}


@dataclass(frozen=True, slots=True)
class KafkaLogTimes:
    """``delivery_ms`` limits an append, ``request_ms`` a question to the brokers.

    A re-created topic is noticed within ``identity_ms``, or at once if its log is shorter.
    """

    delivery_ms: int = 10_000
    request_ms: int = 10_000
    identity_ms: int = 10_000


class LogClients:
    """The clients that all control logs of one sink and process share: an admin and a producer.

    They have one principal and one cluster. Any thread may use them: a log that gives up its
    unconfirmed events takes the others' with them, whose appends are then unconfirmed as well, and
    repeated (LOG-1).
    """

    def __init__(self, kafka_config: Mapping[str, Any], times: KafkaLogTimes | None = None) -> None:
        config = {**_QUIET, **kafka_config, "error_cb": _on_client_error}
        self._producer_config = {
            **without_consumer_settings(config),
            **PRODUCER,
            "delivery.timeout.ms": (times or KafkaLogTimes()).delivery_ms,
        }
        self._lock = Lock()
        try:
            self.admin = new_admin(settings_for_offset_queries(config))
            self._producer: kafka.Producer | None = new_producer(self._producer_config)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise settings_error(error, config) from error

    def get_or_open_producer(self) -> kafka.Producer:
        """Return the producer; a new one, if the former was discarded."""
        with self._lock:
            if self._producer is None:
                self._producer = new_producer(self._producer_config)
            return self._producer

    def discard_producer(self, producer: kafka.Producer, timeout_s: float) -> None:
        """Drop what was not confirmed: it must not be sent after what is appended later."""
        with self._lock:
            if self._producer is producer:
                self._producer = None
        with suppress(kafka.KafkaException, SystemError):  # of a client known to be broken
            producer.purge()
            producer.flush(timeout_s)


class KafkaLog:
    """Implements ``ControlLog`` on an existing topic. Reads from its beginning until ``seek``.

    ``kafka_config`` uses librdkafka's names; what this class relies on cannot be overridden. No
    group is joined, but brokers are asked for the coordinator of ``group.id`` all the same: the
    principal must be allowed to describe it. ``wire`` says whose events are read and how they are
    signed. ``skipped`` counts skipped messages by reason. Without ``clients`` it has its own. Use
    from one thread.
    """

    def __init__(
        self,
        kafka_config: Mapping[str, str],
        topic: str,
        times: KafkaLogTimes | None = None,
        wire: Wire | None = None,
        *,
        clients: LogClients | None = None,
    ) -> None:
        self._topic = topic
        self._wire = wire or Wire()
        self._times = times or KafkaLogTimes()
        self._config: dict[str, Any] = {**_QUIET, **kafka_config, "error_cb": _on_client_error}
        group_id = self._config.pop("group.id", "")
        if not group_id:
            raise ConfigurationError("a control log needs group.id", "give it the sink's own group")
        self._clients = clients or LogClients(self._config, self._times)
        self._identity = _Identity(self._clients.admin, topic, self._times)
        try:
            self._consumer_config = self._config | _CONSUMER | {"group.id": group_id}
            self._consumer = new_consumer(self._consumer_config)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise settings_error(error, self._config) from error
        self._placed = False
        self._lost: str | None = None
        self.skipped: Counter[SkipReason] = Counter()

    def append(self, envelopes: Sequence[Envelope]) -> None:
        topic_id = self._identity.ensure_topic_id() if self._wire.keys else TopicId("")
        messages = [
            self._wire.encode_and_sign_if_keyed(envelope, topic_id) for envelope in envelopes
        ]
        answers: list[kafka.KafkaError | None] = []

        def on_delivered(error: kafka.KafkaError | None, _: kafka.Message) -> None:
            answers.append(error)

        producer = self._clients.get_or_open_producer()
        answer_s = self._times.request_ms / 1000
        try:
            for message in messages:
                producer.produce(
                    self._topic, message, partition=_PARTITION, on_delivery=on_delivered
                )
            producer.flush(self._times.delivery_ms / 1000 + answer_s)
        # After a fatal error (no right to write) the client raises inside its own callbacks, which
        # Python reports as a SystemError.
        except (kafka.KafkaException, BufferError, SystemError) as error:
            self._clients.discard_producer(producer, answer_s)
            if fatal := _find_rights_error(error):
                raise self._failed_append_error([fatal], 0) from error
            raise AppendUnconfirmed(f"control topic {self._topic}: {error}") from error
        errors = [error for error in answers if error is not None]
        missing = len(messages) - len(answers)
        if errors or missing:
            # Before the caller learns of it, and appends again: what is still in the queue would be
            # sent behind that, and out of order.
            self._clients.discard_producer(producer, answer_s)
            raise self._failed_append_error(errors, missing)

    def read(self, timeout_ms: int) -> list[LogRecord]:
        # Before anything is taken from the client: the records of a re-created topic, at offsets
        # that happen to fit, would be heard as the former one's.
        if self._lost is None:
            self._lost = self._identity.poll_topic_identity_loss()
        if self._lost is not None:
            raise LogDiscontinuity(
                f"control topic {self._topic}: {self._lost}",
                "a new epoch begins by itself; the table holds everything that counts",
            )
        if not self._placed:
            self._assign_from(kafka.OFFSET_BEGINNING)
        # consume() alone would wait for a full batch until the time is over.
        first = self._consumer.poll(timeout_ms / 1000)
        if first is None:
            return []
        more = self._consumer.consume(MESSAGES_PER_READ_MAX - 1, timeout=0)
        return [
            record for message in (first, *more) if (record := self._to_record_or_none(message))
        ]

    def seek(self, offset: ControlOffset) -> None:
        """Raises ``Unreachable``, also if the topic is gone."""
        self._assign_from(offset)

    def end_offset(self) -> ControlOffset:
        """Raises ``Unreachable``, also if the topic is gone."""
        partition = kafka.TopicPartition(self._topic, _PARTITION)
        try:
            watermarks = self._consumer.get_watermark_offsets(
                partition, timeout=self._times.request_ms / 1000, cached=False
            )
        except kafka.KafkaException as error:
            raise _translate_topic_error(self._topic, error) from error
        if watermarks is None:
            raise Unreachable(f"control topic {self._topic}: no end offset in time")
        return ControlOffset(watermarks[1])

    def topic_id(self) -> TopicId | None:
        """The id of the topic that it reads now; ``None`` before it has a position."""
        return self._identity.adopted_topic_id or None

    def refused_event_count(self) -> int:
        """How many events of this sink were skipped because of their signatures."""
        return sum(self.skipped[reason] for reason in REFUSED)

    def close(self) -> None:
        """Close the consumer; ``append`` has left nothing to send."""
        self._consumer.close()

    def _failed_append_error(self, errors: list[kafka.KafkaError], missing: int) -> HeadgateError:
        codes = {error.code() for error in errors}
        if codes & NO_RIGHTS:
            return MissingRights(
                f"control topic {self._topic}: the cluster refuses this client to write",
                "allow the principal to write to it (and, with brokers before 2.8, idempotently)",
            )
        if kafka.KafkaError.MSG_SIZE_TOO_LARGE in codes:
            return ControlTopicUnfit(
                f"control topic {self._topic} does not take a message of headgate's size",
                f"set its max.message.bytes above {MESSAGE_BYTES_MAX}",
            )
        if codes & _REFUSED_FOR_THEIR_TIME:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            return ClockDiffers(
                f"control topic {self._topic}: the brokers refuse events for their time: this "
                f"machine's clock says {now}",
                "correct the clock of this machine, or of the brokers (headgate check compares "
                "them); message.timestamp.type=LogAppendTime on the topic takes any",
            )
        reasons = sorted({error.str() for error in errors}) or [f"{missing} without an answer"]
        told = "; ".join(reasons) + token_trouble_suffix(self._config)
        return AppendUnconfirmed(f"control topic {self._topic}: {told}")

    def _assign_from(self, offset: int) -> None:
        # The id before the position: a topic that is re-created in between is another one than was
        # adopted, and noticed. The other way round its id would be taken for that of the position.
        found = self._identity.ask_topic_id()
        if self._identity.adopted_topic_id not in ("", found):
            # A client compares leader epochs. A new topic's epochs restart at 0, so it would take
            # them for old news about the former topic, and never read from the new one.
            former, self._consumer = self._consumer, new_consumer(self._consumer_config)
            former.close()
        # Adopted last: if there is no new client now, the next try must replace it as well.
        self._identity.adopt(found)
        self._consumer.assign([kafka.TopicPartition(self._topic, _PARTITION, offset)])
        self._placed = True
        self._lost = None

    def _to_record_or_none(self, message: kafka.Message) -> LogRecord | None:
        if message.error() is not None:
            self._on_error(message.error())
            return None
        envelope = self._wire.verify_and_decode(
            message.value() or b"", self._identity.adopted_topic_id
        )
        if isinstance(envelope, Skipped):
            self.skipped[envelope.reason] += 1
            # No version of ours writes what no version can read: somebody is not heard.
            alarming = (
                envelope.reason in (SkipReason.UNDECODABLE, *REPORTED)
                and self.skipped[envelope.reason] == 1
            )
            level = logging.WARNING if alarming else logging.DEBUG
            log.log(level, "%s@%s skipped: %s", self._topic, message.offset(), envelope)
            if alarming and envelope.reason is SkipReason.OTHER_VERSION:
                log.warning(
                    "another version of headgate wrote this event of the sink; participants of two "
                    "versions do not hear each other: stop all of them before an upgrade"
                )
            return None
        return LogRecord(ControlOffset(message.offset()), envelope)

    def _on_error(self, error: kafka.KafkaError) -> None:
        """Let the next read raise a lost position: what was read before it counts."""
        if error.code() in _OUT_OF_RANGE:
            self._lost = f"the place to read is no longer there: {error.str()}"
        elif error.code() in NO_TOPIC:
            self._identity.ask_topic_id_soon()
        elif error.code() in NO_RIGHTS:
            raise _translate_topic_error(self._topic, kafka.KafkaException(error))
        else:
            log.warning("control topic %s: %s", self._topic, error.str())


class _Identity:
    """Tells whether the topic is still the one whose offsets are read: a new one has another id."""

    def __init__(self, admin: AdminClient, topic: str, times: KafkaLogTimes) -> None:
        self._admin = admin
        self._topic = topic
        self._times = times
        self._id = ""
        self._asked: Future[Any] | None = None
        self._due_s = 0.0

    def ask_topic_id(self) -> str:
        """Return the id of the topic that has the name now. Raises ``Unreachable`` without one."""
        try:
            return str(self._describe_topic().result().topic_id)
        except kafka.KafkaException as error:
            raise _translate_topic_error(self._topic, error) from error

    def adopt(self, topic_id: str) -> None:
        """Tell from now on whether the topic is still this one."""
        self._id = topic_id
        self._asked = None
        self._due_s = time.monotonic() + self._times.identity_ms / 1000

    @property
    def adopted_topic_id(self) -> TopicId:
        return TopicId(self._id)

    def ensure_topic_id(self) -> TopicId:
        """The adopted topic's id; before any was adopted, that of the topic with the name now."""
        if not self._id:
            self.adopt(self.ask_topic_id())
        return self.adopted_topic_id

    def ask_topic_id_soon(self) -> None:
        """Ask at the next opportunity."""
        self._due_s = 0.0

    def poll_topic_identity_loss(self) -> str | None:
        """Return what happened to the adopted topic, if anything; asks sometimes, never waits."""
        if self._asked is None:
            if self._id and time.monotonic() >= self._due_s:
                self._asked = self._describe_topic()
            return None
        if not self._asked.done():
            return None
        answer, self._asked = self._asked, None
        self._due_s = time.monotonic() + self._times.identity_ms / 1000
        try:
            found = str(answer.result().topic_id)
        except kafka.KafkaException as error:
            return "it was deleted" if error.args[0].code() in NO_TOPIC else None
        return None if found == self._id else f"it was re-created, as {found}"

    def _describe_topic(self) -> Future[Any]:
        topics = kafka.TopicCollection([self._topic])
        timeout_s = self._times.request_ms / 1000
        answer: Future[Any] = self._admin.describe_topics(topics, request_timeout=timeout_s)[
            self._topic
        ]
        return answer


def _find_rights_error(error: BaseException | None) -> kafka.KafkaError | None:
    """Return the refusal behind what the client raised, if retrying cannot fix it."""
    while error is not None:
        cause = error.args[0] if error.args else None
        if isinstance(cause, kafka.KafkaError) and cause.code() in NO_RIGHTS:
            return cause
        error = error.__cause__ or error.__context__
    return None


def _translate_topic_error(topic: str, error: kafka.KafkaException) -> HeadgateError:
    missing = Unreachable(
        f"control topic {topic} does not exist now",
        "it is created when the sink starts, where that is allowed",
    )
    return translate_topic_error(f"control topic {topic}", error, missing)


def _on_client_error(error: kafka.KafkaError) -> None:
    repeats = error.code() in _WITH_EVERY_ATTEMPT
    log.log(logging.DEBUG if repeats else logging.WARNING, "control topic: %s", error.str())
