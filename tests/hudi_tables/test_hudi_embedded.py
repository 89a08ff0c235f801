"""A user's own consumer loop with headgate inside fills a Hudi table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from hudi_tables.sinks import TOPIC, WAIT_S_MAX
from hudi_tables.test_hudi_sink import started

from headgate import ConsumerSteering, SinkTask, load, open_task, partitions_of, records_of
from headgate.operations.audit.audit import audit


def loop(file: Path, done: Callable[[SinkTask], bool]) -> None:
    """What a user writes."""
    settings = load(file)
    told = {
        **settings.kafka,
        "group.id": settings.source.group_id,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    until = time.monotonic() + WAIT_S_MAX
    with (
        closing(Consumer(told)) as consumer,
        open_task(settings, ConsumerSteering(consumer)) as task,
    ):
        consumer.subscribe(
            [TOPIC],
            on_assign=lambda _, got: task.open(partitions_of(got)),
            on_revoke=lambda _, gone: task.close(partitions_of(gone)),
        )
        while not done(task):
            assert time.monotonic() < until, "the rows do not come"
            task.put(records_of(consumer.consume(500, 0.05)))


def settled(task: SinkTask) -> int:
    return sum(task.pre_commit().values())


@pytest.mark.timeout(600)
def test_an_embedded_task_fills_a_hudi_table_exactly_once_over_restarts(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str]
) -> None:
    with started(tmp_path, bundle, lock) as sink:
        for count in (300, 600):
            sink.produce(300)
            loop(sink.file, lambda task, count=count: settled(task) >= count)  # type: ignore[misc]
        assert sink.ids() == Counter(range(600))
        assert spark.read.format("hudi").load(str(sink.location)).count() == 600
        assert audit(load(sink.file)).findings == ()
