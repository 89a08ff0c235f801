"""What participants tell while they are killed, beside what Kafka and the table say.

For ten minutes, or as many as ``HEADGATE_SCRAPE_MINUTES`` says.
"""

from __future__ import annotations

import os
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
from integration.operations.test_served_sinks import asked, series

from headgate.control_protocol.commit_record_codec import decode_record
from headgate.runtime.telemetry import metric_catalog as names
from headgate.tables.iceberg.tag_lineage import summary_properties_of

MINUTES = float(os.environ.get("HEADGATE_SCRAPE_MINUTES", "10"))

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    pytest.mark.timeout(MINUTES * 60 + 900),
]

RATE = 200
LOOK_S = 1.0
APART_S = 10.0
"""How long ago it may have been what a participant tells: it looks once a second, hears of a
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
class Beside:
    """One number by time: as it is, and as participants tell it."""

    slack: float
    true: list[tuple[float, float]] = field(default_factory=list)
    told: list[tuple[float, float]] = field(default_factory=list)

    def contradictions(self) -> list[str]:
        """Each number that was told and was at no time about then."""
        found = []
        for at_s, value in self.told:
            about = [of for since_s, of in self.true if abs(since_s - at_s) <= APART_S]
            if about and not min(about) - self.slack <= value <= max(about) + self.slack:
                found.append(f"{value} was told at {at_s:.0f}, it was {min(about)}..{max(about)}")
        return found


@dataclass
class Course:
    """What was seen: lag by Kafka; freshness and time of the last rows by the table.

    The table's times are to the millisecond; a commit's is that of another clock call.
    """

    lag: Beside = field(default_factory=lambda: Beside(RATE * 2 * LOOK_S))
    fresh: Beside = field(default_factory=lambda: Beside(0.001))
    commit: Beside = field(default_factory=lambda: Beside(APART_S))
    twice: int = 0
    wrong: list[str] = field(default_factory=list)

    def contradictions(self) -> list[str]:
        return [
            f"{what}: {each}"
            for what in ("lag", "fresh", "commit")
            for each in getattr(self, what).contradictions()
        ]


def scrape(sink: Deployment, course: Course, kafkas: Kafkas) -> None:
    """One round; a participant that was killed meanwhile answers nothing."""
    course.lag.true.append((time.monotonic(), kafkas.lag()))
    see_table(sink, course)
    telling = 0
    for participant in list(sink.participants):
        found, now_s = scraped(participant), time.monotonic()
        telling += (names.LAG_RECORDS, sink.topics[0]) in found
        for name, beside in (
            ((names.LAG_RECORDS, sink.topics[0]), course.lag),
            ((names.VALID_THROUGH, ""), course.fresh),
            ((names.LAST_COMMIT, ""), course.commit),
        ):
            if name in found:
                beside.told.append((now_s, found[name]))
    course.twice += telling > 1


def see_table(sink: Deployment, course: Course) -> None:
    """Read the table itself: its newest record's freshness, and its newest snapshot with rows."""
    with sink.table() as table:
        snapshots = sorted(table.metadata.snapshots, key=lambda each: -(each.sequence_number or 0))
    now_s = time.monotonic()
    for snapshot in snapshots:
        record = decode_record(sink.settings.name, summary_properties_of(snapshot))
        if record and record.valid_through_ms is not None:
            course.fresh.true.append((now_s, record.valid_through_ms / 1000))
            break
    rows = [each for each in snapshots if int(summary_properties_of(each).get("added-records", 0))]
    if rows:
        course.commit.true.append((now_s, rows[0].timestamp_ms / 1000))


def scraped(participant: Participant) -> dict[tuple[str, str], float]:
    if "serves its state at" not in participant.log_text():
        return {}
    try:
        return series(participant)
    except (URLError, ConnectionError):
        time.sleep(1)  # who was just killed may not be gone yet
        return series(participant) if participant.running else {}


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


def test_lag_and_freshness_as_told_are_kafkas_and_the_tables(deploy: Deploy) -> None:
    http: dict[str, Any] = {"listen": "127.0.0.1:0"}
    sink = deploy(change={"http": http, "telemetry": {"interval_ms": 1_000}})
    sink.start(3)
    sink.produce()
    sink.wait_until_lag_zero()
    kills, ends_s = 0, time.monotonic() + 60 * MINUTES
    with scraping(sink) as course:
        with sink.load(RATE):
            while time.monotonic() < ends_s:
                before = len(course.lag.told)
                sink.kill(sink.leader())
                kills += 1
                sink.start()
                sink.wait_until(lambda seen=before: len(course.lag.told) > seen + 3, "lag is told")
                sink.wait_for_commits(2)
        sink.wait_until_lag_zero()
        sink.wait_until(lambda: course.lag.told[-1][1] == 0, "and it is told")
    assert Kafkas(sink).lag() == 0
    contradictions = course.contradictions()
    print(
        f"\n{MINUTES:g} minutes, {kills} kills, {len(course.lag.told)} scrapes that told lag, most "
        f"{max(lag for _, lag in course.lag.true)}, {len(course.fresh.told)} freshness; "
        f"{course.twice} rounds with two tellers; {len(contradictions)} contradictions"
    )
    assert min(len(course.lag.told), len(course.fresh.told), len(course.commit.told)) > kills
    assert contradictions == []
    sink.wait_until(lambda: asked(sink.leader(), "/readyz")[0] == 200, "the leader is ready")
    sink.stop()
    sink.judge()
