"""Bad records in the dead-letter topic: once in the ordinary course, never lost by a crash."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from integration.conftest import Deploy
from support.local_catalog import LocalCatalog
from support.quarantine_rows import QuarantineRows

from headgate.control_protocol.errors import Unreachable
from headgate.coordinator.dead_letter_message import Progress
from headgate.kafka.dead_letter_topic import DeadLetterTopic
from headgate.kafka.record_sender import Redelivery
from headgate.runtime.dead_letter_forwarder import Forwarder, send_unsent_rows

pytestmark = pytest.mark.integration

Headers = dict[str, bytes]
Topics = Callable[..., str]


def letters(bootstrap: str, topic: str) -> list[tuple[kafka.Message, Headers]]:
    """All that the topic, of one partition, holds now."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False}
    consumer = kafka.Consumer(settings)
    try:
        place = kafka.TopicPartition(topic, 0, kafka.OFFSET_BEGINNING)
        end = consumer.get_watermark_offsets(place, timeout=10)[1]
        consumer.assign([place])
        found: list[kafka.Message] = []
        while len(found) < end:
            found += [m for m in consumer.consume(end - len(found), 10) if not m.error()]
        return [(message, dict(message.headers() or [])) for message in found]
    finally:
        consumer.close()


def offsets(bootstrap: str, topic: str) -> Counter[int]:
    """How often each record of the source's partition 0 is there."""
    found = letters(bootstrap, topic)
    return Counter(int(headers["__connect.errors.offset"]) for _, headers in found)


def test_bad_records_are_sent_once_and_those_of_a_dead_coordinator_by_the_next(
    deploy: Deploy, bootstrap: str, topic_factory: Topics
) -> None:
    topic = topic_factory(1)
    kept = {"policy": "quarantine", "per_thousand_max": 1_000}
    sink = deploy({"quarantine": {**kept, "dead_letter_topic": f"{topic}-absent"}}, partitions=1)
    sink.bad_every = 7
    sink.produce(100)
    (dead,) = sink.start()  # commits all the same, and dies before anything is sent
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: dead.said(f"dead-letter topic {topic}-absent"), "warning")
    sink.kill(dead)

    sink.change({"quarantine": {"dead_letter_topic": topic}})
    sink.start()
    expected = Counter(range(0, 100, 7))
    sink.wait_until(lambda: offsets(bootstrap, topic) >= expected, "dead letters")
    sink.produce(200)
    expected = Counter(range(0, 300, 7))
    sink.wait_until(lambda: offsets(bootstrap, topic) >= expected, "more dead letters")
    sink.stop()
    assert offsets(bootstrap, topic) == expected
    sink.judge()


def new_topic(bootstrap: str, topic: str) -> DeadLetterTopic:
    settings = {"bootstrap.servers": bootstrap}
    return DeadLetterTopic(settings, topic, f"{topic}-dead-letters", lambda: False)


class Dying(DeadLetterTopic):
    """Its process ends between sending and saying so."""

    def store_progress(self, progress: Progress) -> None:
        raise Unreachable(f"killed before {progress}")


def test_who_dies_before_progress_is_stored_sends_again_what_headers_tell_apart(
    bootstrap: str, sqlite_catalog: LocalCatalog, topic_factory: Topics
) -> None:
    quarantine, topic = QuarantineRows(sqlite_catalog), topic_factory(1)
    quarantine.claim(1)
    quarantine.commit(1, 1, *range(300))
    dying = Dying({"bootstrap.servers": bootstrap}, topic, f"{topic}-dead-letters", lambda: False)
    with pytest.raises(Unreachable):
        send_unsent_rows(quarantine.unsent(), dying, Redelivery())
    dying.close()
    for _ in range(2):  # the second one finds nothing to do
        next_one = new_topic(bootstrap, topic)
        send_unsent_rows(quarantine.unsent(), next_one, Redelivery())
        next_one.close()

    found = letters(bootstrap, topic)
    names = ("headgate.topic.id", "__connect.errors.partition", "__connect.errors.offset")
    times = Counter(tuple(headers[name] for name in names) for _, headers in found)
    assert len(times) == 300
    assert set(times.values()) == {2}
    message, headers = found[17]
    assert (message.key(), message.value()) == (b"key", b"{broken 17")
    assert headers["h"] == b"\xff"
    assert headers["headgate.transaction"] == b"1.1"


def test_a_letter_that_the_topic_refuses_holds_up_those_after_it_and_no_other_is_sent_twice(
    bootstrap: str, sqlite_catalog: LocalCatalog, topic_factory: Topics, admin: AdminClient
) -> None:
    """Nobody removes it; a batch of letters is refused for one, and for its own size."""
    quarantine, topic = QuarantineRows(sqlite_catalog), topic_factory(1, limit_bytes(10_000))
    quarantine.claim(1)
    quarantine.commit(1, 1, 0)
    forwarder = Forwarder(quarantine.unsent(), lambda _: new_topic(bootstrap, topic))
    try:
        assert any(forwarder._try_send_new_rows() for _ in range(500)), "a new broker finds itself"
        quarantine.commit(1, 2, *range(1, 300), large=150)
        quarantine.commit(1, 3, 300)
        for _ in range(3):
            assert not forwarder._try_send_new_rows()
        assert offsets(bootstrap, topic) == Counter(set(range(300)) - {150})
        altered = ConfigResource(
            ConfigResource.Type.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in limit_bytes(100_000).items()
            ],
        )
        admin.incremental_alter_configs([altered])[altered].result()
        assert any(forwarder._try_send_new_rows() for _ in range(500)), "the limit is heard of"
        assert offsets(bootstrap, topic) == Counter(range(301))
    finally:
        forwarder.close()


def limit_bytes(size: int) -> dict[str, str]:
    return {"max.message.bytes": str(size)}


class Told(logging.Handler):
    """Hears the first warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
        self.heard.set()


def test_a_missing_topic_is_told_of_and_not_made(
    bootstrap: str, sqlite_catalog: LocalCatalog, admin: AdminClient, unique_name: str
) -> None:
    quarantine, told = QuarantineRows(sqlite_catalog), Told()
    quarantine.claim(1)
    quarantine.commit(1, 1, 10)
    logger = logging.getLogger("headgate.coordinator")
    logger.addHandler(told)
    kafka_settings = {"bootstrap.servers": bootstrap}
    forwarder = Forwarder(
        quarantine.unsent(),
        lambda ending: DeadLetterTopic(kafka_settings, unique_name, "group", ending),
    )
    try:
        forwarder.wake()
        assert told.heard.wait(60)
    finally:
        forwarder.close()
        logger.removeHandler(told)
    assert f"dead-letter topic {unique_name}" in told.text
    assert "headgate-dead-letters" not in {thread.name for thread in threading.enumerate()}
    assert unique_name not in admin.list_topics(timeout=10).topics
