"""Too much, too slow, too long: what a sink takes without falling behind or growing."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from confluent_kafka import Producer
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.faults.stuck_catalog import StuckCatalog

from headgate.control_protocol.events import EndCommit, WriteStatus
from headgate.operations.access.kafka_connection import read_control_tail
from headgate.operations.control.pause import pause_sink, resume_sink

pytestmark = pytest.mark.integration

BACKLOG = 300_000
BACKLOG_BYTES_MAX = 20 * 1024**2
"""Below what the backlog's values alone would take, let alone as Python objects."""


def said(sink: Deployment, kind: type) -> int:
    """How many events of a kind the control topic holds."""
    return sum(isinstance(e.event, kind) for e in read_control_tail(sink.settings, 100_000))


@pytest.mark.wide
def test_f15_a_slow_catalog_makes_no_backlog_of_statuses(deploy: Deploy) -> None:
    """Who restarts has nothing to catch up with, however long the catalog took."""
    sink = deploy()
    sink.start(2)
    with sink.load(2_000):
        sink.wait_until(lambda: sink.shares() == [1, 1], "partitions with both")
        sink.wait_for_commits(2)
        with StuckCatalog(sink) as catalog:
            catalog.await_commit()
            before = said(sink, WriteStatus)
            sink.wait_until(lambda: sink.lag() > 10_000, "lag")
            assert said(sink, WriteStatus) - before <= 2  # each has answered the next END at most
            sink.kill(sink.participants[0])
        sink.start()
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


@pytest.mark.wide
def test_hc45_a_sink_that_is_paused_keeps_nothing_in_memory(deploy: Deploy) -> None:
    sink = deploy()
    (participant,) = sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    pause_sink(sink.settings)
    process = psutil.Process(participant.pid)
    before = process.memory_info().rss
    sink.produce(BACKLOG)
    transactions = said(sink, EndCommit)
    sink.wait_until(lambda: said(sink, EndCommit) > transactions + 10, "ten transactions")
    assert sink.lag() == BACKLOG
    assert process.memory_info().rss - before < BACKLOG_BYTES_MAX
    resume_sink(sink.settings)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


def test_f29_x25_messages_of_a_next_version_are_passed_over(deploy: Deploy) -> None:
    """During a rolling upgrade the new ones may speak of what the old ones do not know."""
    sink = deploy()
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        producer = Producer({"bootstrap.servers": sink.bootstrap})
        for message in of_a_next_version():
            producer.produce(sink.settings.control.topic, message, partition=0)
        assert producer.flush(30) == 0
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    assert sink.judge().epochs[-1] <= 2


def of_a_next_version() -> Iterator[bytes]:
    """Avro's single-object marker with a schema that nobody here knows; and what is no Avro."""
    for number in range(200):
        yield b"\xc3\x01" + number.to_bytes(8, "little") + bytes(range(number))
        yield b"headgate/2 " + bytes([number])
