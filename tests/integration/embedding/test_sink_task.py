"""A user's own consumer loop with headgate inside: real broker, real group, real table."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import confluent_kafka as kafka
import pyarrow as pa
import pytest
from integration.oracle import assert_exactly_once, read_source
from integration.readers import read_with_duckdb
from support.local_catalog import LocalCatalog

from headgate import ConsumerSteering, SinkTask, open_task, partitions_of, records_of
from headgate.config.load import parse
from headgate.config.sink_sections import TransformSettings, WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import OtherConfiguration, PoisonRecord
from headgate.operations.audit.audit import audit

pytestmark = pytest.mark.integration

WITHIN_S = 120


@pytest.fixture
def settings(
    bootstrap: str,
    topic_factory: Callable[..., str],
    unique_name: str,
    sqlite_catalog: LocalCatalog,
) -> SinkSettings:
    topic = topic_factory(partitions=3)
    properties = "\n".join(f'{k} = "{v}"' for k, v in sqlite_catalog.properties.items())
    return parse(
        f"""
        name = "embedded"
        [source]
        topics = ["{topic}"]
        [kafka]
        "bootstrap.servers" = "{bootstrap}"
        [control]
        topic = "control-{unique_name}"
        [catalog]
        name = "{sqlite_catalog.name}"
        [catalog.properties]
        {properties}
        [table]
        identifier = "demo.embedded"
        create = true
        columns = [{{ name = "number", type = "long" }}]
        [table.record_columns]
        topic = "topic"
        partition = "partition"
        offset = "offset"
        [coordinator]
        commit_interval_ms = 500
        commit_timeout_ms = 10000
        """
    )


def produce(settings: SinkSettings, values: list[bytes]) -> None:
    producer = kafka.Producer(dict(settings.kafka))
    for number, value in enumerate(values):
        producer.produce(settings.election_topic, value, partition=number % 3)
    assert producer.flush(60) == 0


def loop(settings: SinkSettings, done: Callable[[SinkTask], bool]) -> None:
    """What a user writes."""
    consumer = kafka.Consumer(
        {
            **settings.kafka,
            "group.id": settings.source.group_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    until = time.monotonic() + WITHIN_S
    try:
        with open_task(settings, ConsumerSteering(consumer)) as task:
            consumer.subscribe(
                [settings.election_topic],
                on_assign=lambda _, got: task.open(partitions_of(got)),
                on_revoke=lambda _, gone: task.close(partitions_of(gone)),
            )
            while not done(task):
                assert time.monotonic() < until, "the rows do not come"
                task.put(records_of(consumer.consume(500, 0.05)))
    finally:
        consumer.close()


def settled(task: SinkTask) -> int:
    return sum(task.pre_commit().values())


def rows(catalog: LocalCatalog) -> pa.Table:
    return read_with_duckdb(catalog.catalog.load_table("demo.embedded").metadata_location)


def test_a_loop_that_puts_records_fills_the_table_exactly_once_over_restarts(
    settings: SinkSettings, sqlite_catalog: LocalCatalog, bootstrap: str
) -> None:
    values = [json.dumps({"number": n}).encode() for n in range(3_000)]
    produce(settings, values)
    loop(settings, lambda task: settled(task) >= 3_000)
    produce(settings, values)
    loop(settings, lambda task: settled(task) >= 6_000)
    table = rows(sqlite_catalog)
    assert table.num_rows == 6_000
    assert_exactly_once(table, read_source(bootstrap, settings.election_topic))


def test_shape_5_a_function_of_ones_own_decides_which_records_that_were_put_become_rows(
    settings: SinkSettings, sqlite_catalog: LocalCatalog, bootstrap: str
) -> None:
    function = TransformSettings(python="support.user_functions:odd")
    spark = replace(settings.spark, writer=WriterKind.IN_PROCESS)
    settings = replace(settings, transform=function, spark=spark)
    produce(settings, [json.dumps({"number": n}).encode() for n in range(3_000)])
    loop(settings, lambda task: settled(task) >= 3_000)
    found = sorted(rows(sqlite_catalog).to_pylist(), key=lambda row: row["number"])
    assert [row["number"] for row in found] == list(range(1, 3_000, 2))
    places = [(row["partition"], row["offset"]) for row in found]
    assert places == [(n % 3, n // 3) for n in range(1, 3_000, 2)]
    assert audit(settings).skipped_records == 1_500


def test_a_poison_record_ends_the_loop_with_its_place(
    settings: SinkSettings, sqlite_catalog: LocalCatalog
) -> None:
    """BATCH-2: and what lies before it in its partition is in the table."""
    produce(settings, [*[b'{"number": 1}'] * 4, b'{"number": "many"}'])
    with pytest.raises(PoisonRecord, match="partition 1 offset 1"):
        loop(settings, lambda _: False)
    assert rows(sqlite_catalog)["partition"].to_pylist().count(1) == 1


def test_an_embedded_loop_on_another_control_topic_ends_by_name(
    settings: SinkSettings,
) -> None:
    hurried = replace(settings.coordinator, election_timeout_ms=1_000, commit_timeout_ms=2_000)
    talkative = replace(settings.participant, presence_interval_ms=500)
    settings = replace(settings, coordinator=hurried, participant=talkative)
    other = replace(settings, control=replace(settings.control, topic=f"{settings.name}-other"))
    ended = threading.Event()
    errors: list[OtherConfiguration] = []

    def works_until_one_ends(settings: SinkSettings) -> None:
        def done(_: SinkTask) -> bool:
            produce(settings, [b'{"number": 1}'] * 3)
            return ended.is_set()

        try:
            loop(settings, done)
        except OtherConfiguration as error:
            errors.append(error)
            ended.set()

    threads = [threading.Thread(target=works_until_one_ends, args=[s]) for s in (settings, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (error,) = errors
    assert {settings.control.topic, other.control.topic} <= set(
        error.message.replace(",", " ").replace(":", " ").split()
    )
