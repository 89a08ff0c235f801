"""KEY-8: what is said of partitions that wait to be read, where the table alone is known."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.keyed_world import NAME, SINK, Event, KeyedWorld
from support.local_catalog import local_catalog
from unit.operations.audit.test_keyed_tables import SINK_FILE

from headgate.config.cdc_settings import OnPartitionsAdded
from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.testing import FakeSource, FakeTopics
from headgate.operations.http.sink_status_cache import gauges_of_report
from headgate.operations.render_command_results import show_status
from headgate.operations.status import status as module
from headgate.operations.status.held_partitions import HeldPartition, describe_held_partitions
from headgate.operations.status.report import StatusReport
from headgate.operations.status.status import read_status
from headgate.runtime.telemetry import metric_catalog as names

HELD = (HeldPartition("topic", 2, 3, 10, 7),)


@pytest.fixture
def settings(tmp_path: Path) -> SinkSettings:
    """A keyed table with records of one partition."""
    local = local_catalog(tmp_path)
    world = KeyedWorld.create(local.catalog, 2)
    world.commit([Event((n,), "a") for n in range(9)])
    local.catalog.close()
    properties = "\n".join(f'{name} = "{value}"' for name, value in local.properties.items())
    text = SINK_FILE.format(sink=SINK, catalog=local.name, properties=properties, table=NAME)
    return parse(f'{text}[changes]\non_partitions_added = "wait"\ngrowth_ms = 15_000\n')


@pytest.fixture
def report(settings: SinkSettings, monkeypatch: pytest.MonkeyPatch) -> StatusReport:
    """Two partitions were added, and one of them has records."""
    source = FakeSource()
    source.create_or_replace("topic", 3)
    source.produce(TopicPartition("topic", 0), 12)
    source.produce(TopicPartition("topic", 2), 7)
    topics = FakeTopics(source, ["topic"])
    monkeypatch.setattr(module, "open_reachable_source_topics", lambda _: nullcontext(topics))
    monkeypatch.setattr(module, "read_control_tail", lambda *_: [])
    return read_status(settings)


def test_key_8_status_counts_what_is_held_and_says_what_it_waits_for(report: StatusReport) -> None:
    assert [(each.partition, each.records) for each in report.held] == [(1, 0), (2, 7)]
    told = json.loads(json.dumps(report.as_json()))
    assert (told["held_records"], told["held"][1]["log_end"]) == (7, 7)
    read = sum(partition.lag or 0 for partition in report.partitions)
    assert report.total_lag == told["lag"] == read + 7
    (note,) = [note for note in report.notes if "topic/1 (0 records), topic/2 (7 records)" in note]
    assert "held for 15 s" in note
    assert "The table does not say since when (not before 20" in note
    assert "UTC, when the coordinator of epoch 1 claimed)" in note
    shown = io.StringIO()
    show_status(Console(file=shown, width=300), report)
    assert "of which held     7" in shown.getvalue()


def test_key_8_metrics_count_it_too(report: StatusReport) -> None:
    told = {gauge.name: gauge.value for gauge in gauges_of_report(report)}
    assert told[names.UNREAD_PARTITIONS] == 2
    assert told[names.UNREAD_RECORDS] == 7
    assert told[names.LAG_RECORDS] == report.total_lag


def test_key_8_what_would_stop_the_sink_is_not_called_held(settings: SinkSettings) -> None:
    fails = replace(
        settings, changes=replace(settings.changes, on_partitions_added=OnPartitionsAdded.FAIL)
    )
    (text,) = describe_held_partitions(fails.changes, HELD, [])
    assert "HG-242" in text
    assert "held" not in text


def test_key_8_a_topic_that_was_not_multiplied_is_never_read_and_the_note_says_so(
    settings: SinkSettings,
) -> None:
    held = (*HELD, HeldPartition("topic", 3, 0, 0, 0), HeldPartition("topic", 4, 0, 0, 0))
    (text,) = describe_held_partitions(settings.changes, held, [])
    assert "topic has grown from 2 to 5 partitions, which is no multiple" in text
    assert "HG-222" in text
    own = replace(
        settings, changes=replace(settings.changes, on_partitions_added=OnPartitionsAdded.WAIT_ANY)
    )
    (text,) = describe_held_partitions(own.changes, held, [])
    assert "HG-222" not in text


def test_key_8_no_time_is_named_where_no_claim_is_known(settings: SinkSettings) -> None:
    (text,) = describe_held_partitions(settings.changes, (*HELD, replace(HELD[0], partition=3)), [])
    assert "does not say since when; the coordinator's log does" in text
