"""What commands say of a sink that a query fills. Spark is played; broker and table are real."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from spark_query.histories import SINK, PlayedCheckpoint, PlayedFrame

from headgate.config.load import load
from headgate.control_protocol.errors import BatchGap
from headgate.operations.audit.audit import audit
from headgate.operations.control.pause import pause_sink, resume_sink
from headgate.operations.control.rollback import carry_out_rollback, plan_rollback
from headgate.operations.control.stop import start_sink, stop_sink
from headgate.operations.status.status import read_offsets, read_status
from headgate.runtime.health import Condition
from headgate.spark import batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 3


class ChosenRows(PlayedFrame):
    """A batch whose query made these rows, as (partition, offset)."""

    def __init__(self, rows: Sequence[tuple[int, int]]) -> None:
        super().__init__({}, 1)
        self._chosen = list(rows)

    def collect(self) -> list[dict[str, Any]]:
        return [
            {"outcome": value.as_py()}
            for out in self._writer(iter([self._rows(self._chosen)]))
            for value in out.column(0)
        ]


class Filled:
    """A query on a topic of a broker, played: each batch takes the next five offsets of each."""

    def __init__(
        self, folder: Path, bootstrap: str, topic: str, *, stateful: bool, keyed: bool
    ) -> None:
        self._topic, self._bootstrap = topic, bootstrap
        sink = folder / "orders.toml"
        text = SINK.format(folder=folder).replace('"127.0.0.1:1"', f'"{bootstrap}"')
        text = text.replace('topics = ["t"]', f'topics = ["{topic}"]').replace(
            "[table.record_columns]", '[table.record_columns]\ntopic = "kafka_topic"'
        )
        if keyed:
            text = text.replace("create = true", 'create = true\nkey = ["id"]')
        column = '{ name = "kafka_topic", type = "string", from_record = true },\n]'
        places = "\n[table.record_columns]"
        sink.write_text(text.replace(f"]{places}", column + places))
        self.settings = load(sink)
        self._checkpoint = PlayedCheckpoint(folder / "c", dict.fromkeys(range(PARTITIONS), 0))
        self._rewrite("sources/0/0")
        self.query = batches.Batches(sink, str(self._checkpoint.root), stateful=stateful)
        self._number, self._begin, self._sink = 0, 0, sink

    def _rewrite(self, name: str) -> None:
        path = self._checkpoint.root / name
        path.write_text(path.read_text().replace('{"t"', "{" + json.dumps(self._topic)))

    def produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for partition in range(PARTITIONS):
            for _ in range(5):
                producer.produce(self._topic, b"{}", partition=partition)
        assert producer.flush(60) == 0

    def start_anew(self) -> batches.Batches:
        """Begin a query with an empty checkpoint folder, where the table is."""
        found = json.loads(batches.starting_offsets(self._sink))[self._topic]
        self.query.close()
        self._number = 0
        root = self._checkpoint.root.with_name("anew")
        self._begin = int(found["0"])
        assert set(found.values()) == {self._begin}
        self._checkpoint = PlayedCheckpoint(root, dict.fromkeys(range(PARTITIONS), self._begin))
        self._rewrite("sources/0/0")
        self.query = batches.Batches(self._sink, str(root))
        return self.query

    def batch(self, takes: Callable[[int], Sequence[int]]) -> None:
        """Write the next batch, with the rows that the query makes of an offset."""
        begin = self._begin + 5 * self._number
        name = f"offsets/{self._number}"
        self._checkpoint.plan(self._number, dict.fromkeys(range(PARTITIONS), begin + 5))
        self._rewrite(name)
        rows = [
            (partition, made)
            for partition in range(PARTITIONS)
            for offset in range(begin, begin + 5)
            for made in takes(offset)
        ]
        self.query(TopicRows(self._topic, rows), self._number)
        self._checkpoint.commit(self._number)
        self._number += 1


class TopicRows(ChosenRows):
    columns = ("id", "kafka_topic", "kafka_partition", "kafka_offset")

    def __init__(self, topic: str, rows: Sequence[tuple[int, int]]) -> None:
        super().__init__(rows)
        self._topic = topic

    def _rows(self, places: list[tuple[int, int]]) -> pa.RecordBatch:
        made = super()._rows(places)
        return made.append_column("kafka_topic", pa.array([self._topic] * made.num_rows))


@pytest.fixture
def filled(bootstrap: str, topic_factory: Callable[..., str], tmp_path: Path) -> Any:
    def make(*, stateful: bool = False, keyed: bool = False) -> Filled:
        topic = topic_factory(PARTITIONS)
        made = Filled(tmp_path, bootstrap, topic, stateful=stateful, keyed=keyed)
        made.produce()
        return made

    return make


def test_query_15_an_audit_finds_nothing_wrong_with_a_query_that_filters(filled: Any) -> None:
    sink = filled()
    with closing(sink.query):
        sink.batch(lambda offset: [offset] if offset % 2 else [])
    report = audit(sink.settings)
    assert report.findings == (), report
    assert any("a Spark query" in text for text in report.unproven), report


def test_query_15_an_audit_does_not_take_rows_of_a_stateful_query_for_records(filled: Any) -> None:
    sink = filled(stateful=True)
    sink.produce()
    with closing(sink.query):
        sink.batch(lambda offset: [])
        sink.batch(lambda offset: [offset, offset - 5, offset])
    report = audit(sink.settings)
    assert report.findings == (), report
    assert any("stateful" in text for text in report.unproven), report


def test_query_15_an_audit_does_not_replay_a_keyed_table_that_a_query_fills(filled: Any) -> None:
    sink = filled(keyed=True)
    sink.produce()
    with closing(sink.query):
        sink.batch(lambda offset: [offset])
        sink.batch(lambda offset: [offset] if offset % 2 else [])
    report = audit(sink.settings)
    assert report.findings == (), report
    assert any("not compared with the source" in text for text in report.unproven), report
    assert any("has a key of its own" in text for text in report.proven), report
    assert read_status(sink.settings).total_lag == 0


def test_query_22_the_table_says_how_a_sink_is_that_a_query_fills(filled: Any) -> None:
    sink = filled()
    with closing(sink.query):
        sink.batch(lambda offset: [offset])
    found = read_status(sink.settings)
    assert (found.condition, found.exit_code, found.total_lag) == (Condition.IDLE, 0, 0), found
    assert any("a Spark query" in text for text in found.notes), found
    sink.produce()
    found = read_status(sink.settings)
    assert (found.condition, found.exit_code, found.total_lag) == (Condition.RUNNING, 0, 15), found
    soon = replace(sink.settings.coordinator, commit_interval_ms=100, commit_timeout_ms=100)
    impatient = replace(sink.settings, coordinator=soon)
    while (found := read_status(impatient, with_age=True)).condition != Condition.STALLED:
        assert found.condition == Condition.RUNNING, found
    assert found.exit_code == 1
    assert found.lag_seconds.keys() == set(sink.settings.source.topics)
    pause_sink(sink.settings)
    assert read_status(sink.settings).condition == Condition.PAUSED
    resume_sink(sink.settings)
    stop_sink(sink.settings)
    assert read_status(sink.settings).condition == Condition.STOPPED
    start_sink(sink.settings)
    assert read_status(sink.settings).condition == Condition.RUNNING


def test_query_2_offsets_name_the_query_apart_from_its_source(filled: Any) -> None:
    sink = filled()
    with closing(sink.query):
        sink.batch(lambda offset: [offset])
    found = {(each.topic, each.partition): each for each in read_offsets(sink.settings).partitions}
    assert found.pop(("spark-query", 0)).next_offset == 1
    assert [(each.next_offset, each.lag) for each in found.values()] == [(5, 0)] * PARTITIONS


def test_query_7_after_a_rollback_the_checkpoint_is_refused_and_a_new_one_goes_on(
    filled: Any,
) -> None:
    sink = filled()
    sink.produce()
    sink.produce()
    with closing(sink.query):
        sink.batch(lambda offset: [offset])
        sink.batch(lambda offset: [offset])
    newest, before = read_status(sink.settings, 2).transactions
    assert (newest.records, before.records) == (15, 15)
    carry_out_rollback(sink.settings, plan_rollback(sink.settings, before.transaction))
    with closing(sink.query), pytest.raises(BatchGap):
        sink.batch(lambda offset: [offset])
    with closing(sink.start_anew()):
        sink.batch(lambda offset: [offset])
        sink.batch(lambda offset: [offset])
    report = audit(sink.settings)
    assert report.findings == (), report
    assert report.unproven == ()
    assert (report.rows, report.distinct) == (45, 45)
