"""Point 5: what participants tell of lag while they are killed, beside what Kafka itself says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.error import URLError

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from integration.conftest import Deploy
from integration.deployment import Deployment, Participant
from integration.operations.test_face import asked, series

from headgate.sink.telemetry import instruments as names

pytestmark = [pytest.mark.integration, pytest.mark.soak]

KILLS = 20
RATE = 200
LOOK_S = 1.0
APART_S = 10.0
"""How long ago the lag may have been what a participant tells: it looks once a second, hears of a
commit when it is settled, and shares two cores with two others."""


class Kafkas:
    """The lag of a group, by Kafka's own tool for it; none of the product's code is asked."""

    def __init__(self, sink: Deployment) -> None:
        self._admin = AdminClient({"bootstrap.servers": sink.bootstrap})
        self._group = sink.settings.source.group_id
        self._at = [TopicPartition(sink.topics[0], number) for number in range(sink.partitions)]

    def lag(self) -> int:
        of_group = ConsumerGroupTopicPartitions(self._group, self._at)
        (stored,) = self._admin.list_consumer_group_offsets([of_group]).values()
        ends = self._admin.list_offsets({at: OffsetSpec.latest() for at in self._at})
        known = {(p.topic, p.partition): max(0, p.offset) for p in stored.result().topic_partitions}
        return sum(
            end.result().offset - known.get((at.topic, at.partition), 0) for at, end in ends.items()
        )


@dataclass
class Course:
    """What was seen, by time: Kafka's lag, and each participant's."""

    kafkas: list[tuple[float, int]] = field(default_factory=list)
    told: list[tuple[float, float]] = field(default_factory=list)
    twice: int = 0
    wrong: list[str] = field(default_factory=list)

    def contradictions(self) -> list[str]:
        """Each told lag that Kafka's was at no time about then."""
        found = []
        for at_s, lag in self.told:
            about = [of for since_s, of in self.kafkas if abs(since_s - at_s) <= APART_S]
            slack = RATE * 2 * LOOK_S
            if about and not min(about) - slack <= lag <= max(about) + slack:
                found.append(
                    f"{lag} was told at {at_s:.0f}, Kafka's was {min(about)}..{max(about)}"
                )
        return found


def scrape(sink: Deployment, course: Course, kafkas: Kafkas) -> None:
    """One round; a participant that was killed meanwhile answers nothing."""
    course.kafkas.append((time.monotonic(), kafkas.lag()))
    telling = 0
    for participant in list(sink.participants):
        found = scraped(participant)
        if found and (lag := found.get((names.LAG_RECORDS, sink.topics[0]))) is not None:
            course.told.append((time.monotonic(), lag))
            telling += 1
    course.twice += telling > 1


def scraped(participant: Participant) -> dict[tuple[str, str], float]:
    if "serves its state at" not in participant.log_text():
        return {}
    try:
        return series(participant)
    except (URLError, ConnectionError):
        assert not participant.running, "who runs answers"
        return {}


@contextmanager
def scraping(sink: Deployment) -> Iterator[Course]:
    course, kafkas, ending = Course(), Kafkas(sink), threading.Event()

    def run() -> None:
        while not ending.wait(LOOK_S):
            try:
                scrape(sink, course, kafkas)
            except Exception as error:  # noqa: BLE001 - a thread's failure is the test's
                course.wrong.append(repr(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield course
    finally:
        ending.set()
        thread.join()
    assert course.wrong == []


def test_point_5_lag_as_told_is_lag_as_kafka_knows_it_through_kills(deploy: Deploy) -> None:
    http: dict[str, Any] = {"listen": "127.0.0.1:0"}
    sink = deploy(change={"http": http, "telemetry": {"interval_ms": 1_000}})
    sink.start(3)
    sink.produce()
    sink.wait_until_lag_zero()
    with scraping(sink) as course:
        with sink.load(RATE):
            for _ in range(KILLS):
                before = len(course.told)
                sink.kill(sink.leader())
                sink.start()
                sink.wait_until(lambda seen=before: len(course.told) > seen + 3, "lag is told")
                sink.wait_for_commits(2)
        sink.wait_until_lag_zero()
        sink.wait_until(lambda: course.told[-1][1] == 0, "and it is told")
    assert Kafkas(sink).lag() == 0
    assert len(course.told) > 5 * KILLS
    contradictions = course.contradictions()
    print(
        f"\n{len(course.told)} scrapes that told lag, {KILLS} kills, most lag "
        f"{max(lag for _, lag in course.kafkas)}; {course.twice} rounds with two tellers; "
        f"{len(contradictions)} contradict Kafka's"
    )
    assert contradictions == []
    assert asked(sink.leader(), "/readyz")[0] == 200
    sink.stop()
    sink.judge()
