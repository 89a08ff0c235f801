"""Lineage and signals of a real sink: said of what is in the table, whatever happens to receivers
and to whoever tells (REPORT-1 to REPORT-3)."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.sink.test_transforms import questions
from support.report_server import ReportServer

from headgate.operations.access.tables import open_tables_for_reading
from headgate.operations.audit.audit import audit
from headgate.runtime.reports.completeness_signal import Signals
from headgate.runtime.reports.lineage import Lineage
from headgate.runtime.telemetry import metric_catalog as names

pytestmark = pytest.mark.integration

NEEDLE = "erika.mustermann@example.org"
TOKEN = "a-token-that-nobody-shows"


def produce(sink: Deployment, *times: str, **values: Any) -> None:
    """A record at each of these times of one day, in partition 0."""
    producer = Producer({"bootstrap.servers": sink.bootstrap})
    for time in times:
        moment = datetime.fromisoformat(f"2026-01-31T{time}:00+00:00")
        value = json.dumps({"id": sink.produced, "zone": "a", **values}).encode()
        stamp = int(moment.timestamp() * 1000)
        producer.produce(sink.topics[0], value, partition=0, timestamp=stamp)
        sink.produced += 1
    assert producer.flush(30) == 0


def records_of(bootstrap: str, topic: str) -> list[Any]:
    """All that the topic holds, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader"})
    at = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(at, timeout=30)
    consumer.assign([at])
    found: list[Any] = []
    while len(found) < end:
        found += [json.loads(each.value()) for each in consumer.consume(100, timeout=0.2)]
    consumer.close()
    return found


def spans(signals: Sequence[Mapping[str, Any]]) -> list[tuple[str | None, str]]:
    """From when to when each was about, as times of the day."""
    return [
        (s["complete_since"] and s["complete_since"][11:16], s["complete_through"][11:16])
        for s in signals
    ]


def through(time: str) -> Callable[[Any], bool]:
    return lambda said: bool(said["complete_through"][11:16] == time)


def valid_through(sink: Deployment) -> str:
    record = sink.record()
    assert record is not None
    assert record.valid_through_ms is not None
    return f"{datetime.fromtimestamp(record.valid_through_ms / 1000, UTC):%H:%M}"


@pytest.mark.wide
def test_report_3_a_hook_is_told_of_every_hour_in_order_though_it_fails_and_tellers_die(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_TOKEN", TOKEN)
    with ReportServer() as server:
        hook = {"url": f"{server.address}/services/SECRET", "token": "${env:HOOK_TOKEN}"}
        sink = deploy({"signal": hook}, partitions=1)
        (first,) = sink.start()
        produce(sink, "00:30", "00:59")
        sink.wait_until_lag_zero()
        assert valid_through(sink) == "00:59"
        produce(sink, "01:10")
        sink.wait_until(lambda: bool(server.accepted_bodies(through("01:00"))), "signal of 01:00")
        assert server.got[0].path == "/services/SECRET"
        assert server.got[0].headers["Authorization"] == f"Bearer {TOKEN}"
        server.status = 500
        produce(sink, "02:20")
        sink.wait_until(lambda: any(each.answer == 500 for each in server.got), "a failure")
        sink.kill(first)
        server.status = 0  # it hangs
        (second,) = sink.start()
        produce(sink, "02:40")
        sink.wait_until(lambda: server.got[-1].answer == 0, "a try of the successor")
        produce(sink, "03:30", "05:10")
        sink.wait_until_lag_zero()  # commits wait for nobody
        server.status, server.delay_s = 200, 1.0
        sink.wait_until(lambda: bool(server.accepted_bodies(through("05:00"))), "signal of 05:00")
        signals = server.accepted_bodies()
    produce(sink, "06:10")
    sink.wait_until_lag_zero()  # it is gone
    with ReportServer(port=server.port) as again:
        sink.wait_until(lambda: bool(again.accepted_bodies(through("06:00"))), "signal of 06:00")
        sink.kill(second)
        (third,) = sink.start()
        produce(sink, "07:10")
        sink.wait_until(lambda: bool(again.accepted_bodies(through("07:00"))), "signal of 07:00")
        signals += again.accepted_bodies()
    sink.stop()
    said = spans(signals)
    assert said[0] == (None, "00:00")
    assert sorted(said, key=lambda each: each[1]) == said
    ends = [end for _, end in dict.fromkeys(said)]
    assert ends[:2] == ["00:00", "01:00"]
    assert ends[-3:] == ["05:00", "06:00", "07:00"]
    for before, (since, _) in itertools.pairwise(said):
        assert since in (before[0], before[1])  # again, or on from there: no hour is left out
    last = signals[-1]
    assert (last["sink"], last["table"], last["every"]) == ("sink", "db.rows", "hour")
    assert last["suspended"] == []
    logs = "".join(path.read_text() for path in sink.sink_file.parent.glob("*.log"))
    assert "HG-296" in logs
    assert TOKEN not in logs
    assert "SECRET" not in logs
    assert third.running is False
    sink.judge()


def test_report_3_a_coordinator_that_was_paused_leaves_no_hour_out_and_says_none_early(
    deploy: Deploy, topic_factory: Callable[..., str]
) -> None:
    hours = topic_factory(1)
    sink = deploy({"signal": {"topic": hours}}, partitions=1)

    def told() -> list[str]:
        return [end for _, end in spans(records_of(sink.bootstrap, hours))]

    (first,) = sink.start()
    produce(sink, "00:30", "01:10")
    sink.wait_until(lambda: "01:00" in told(), "signal of 01:00")
    first.pause()
    sink.start()
    produce(sink, "02:10", "02:20")
    sink.wait_until(lambda: "02:00" in told(), "signal of 02:00")
    first.resume()
    produce(sink, "03:59")
    sink.wait_until(lambda: "03:00" in told(), "signal of 03:00")
    assert "04:00" not in told()
    sink.wait_until_lag_zero()
    sink.stop()
    said = spans(records_of(sink.bootstrap, hours))
    firsts = list(dict.fromkeys(end for _, end in said))
    assert firsts == sorted(firsts)
    assert firsts[-3:] == ["01:00", "02:00", "03:00"]
    ends = {None, *firsts}
    assert {since for since, _ in said} <= ends
    sink.judge()


def runs_of(events: Sequence[Any]) -> dict[str, list[Any]]:
    runs: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        runs[event["run"]["runId"]].append(event)
    return runs


def rows_of(events: Sequence[Any]) -> int:
    facets = [output.get("outputFacets", {}) for e in events for output in e["outputs"]]
    return sum(each["outputStatistics"]["rowCount"] for each in facets if each)


@pytest.mark.wide
def test_report_2_runs_of_epochs_are_told_as_the_table_has_them_and_without_a_needle(
    deploy: Deploy,
    topic_factory: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    lineage, hours = topic_factory(1), topic_factory(1)
    monkeypatch.setenv("HASH_KEY", "a key of tests that nobody else has, ever")
    columns = {"id": "long", "zone": "string", "email": "string"}
    sink = deploy(
        {
            "table.columns": {"columns": columns},
            "shape": {
                "where": f"email != '{NEEDLE}-out'",
                "hash": ["email"],
                "hash_key": "${env:HASH_KEY}",
            },
            "lineage": {"topic": lineage, "every_ms": 1_000, "namespace": "city"},
            "signal": {"topic": hours, "every": "day"},
        },
        partitions=1,
    )
    asked = questions(sink)
    assert asked["lineage"]["detail"] == f"{lineage} may be written"
    assert asked["signal"]["detail"] == f"{hours} may be written"
    (first,) = sink.start()
    produce(sink, "00:10", "00:20", email=NEEDLE)
    produce(sink, "00:30", email=f"{NEEDLE}-out")
    sink.wait_until_lag_zero()
    told = lambda kind: [  # noqa: E731 - asked again and again
        e for e in records_of(sink.bootstrap, lineage) if e["eventType"] == kind
    ]
    sink.wait_until(lambda: rows_of(told("RUNNING")) == 2, "an event of its rows")
    sink.kill(first)
    sink.start()
    sink.wait_until(lambda: bool(told("ABORT")), "the end of the killed one's run")
    produce(sink, "00:40", email=NEEDLE)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.start()
    produce(sink, "00:50", id=NEEDLE, email=NEEDLE)  # which stops it
    sink.stopped_by_itself("HG-207")
    events = records_of(sink.bootstrap, lineage)
    killed, orderly, failed = runs_of(events).values()
    kinds = [[event["eventType"] for event in run] for run in (killed, orderly, failed)]
    assert kinds[0] == ["START", *["RUNNING"] * (len(killed) - 2), "ABORT"]
    assert kinds[1][0] == "START"
    assert kinds[1][-1] == "COMPLETE"
    assert kinds[1].count("COMPLETE") == 1
    assert kinds[2][0] == "START"
    assert kinds[2][-1] == "FAIL"
    assert (rows_of(killed), rows_of(orderly), rows_of(failed)) == (2, 1, 0)
    message = failed[-1]["run"]["facets"]["errorMessage"]["message"]
    assert message == "HG-207"
    history = sink.history()
    assert history is not None
    versions = {
        output["facets"]["version"]["datasetVersion"]
        for event in events
        for output in event["outputs"]
        if "version" in output["facets"]
    }
    assert versions <= {str(commit.snapshot_id) for commit in history.commits}
    source = killed[1]
    assert [each["name"] for each in source["inputs"]] == list(sink.topics)
    fields = source["outputs"][0]["facets"]["columnLineage"]["fields"]
    masked = fields["email"]["inputFields"][0]["transformations"][0]["masking"]
    assert masked is True
    signals = records_of(sink.bootstrap, hours)
    assert {each["complete_through"] for each in signals} == {"2026-01-31T00:00:00Z"}
    shown = json.dumps([events, signals])
    assert "erika" not in shown
    assert "where" not in shown
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*.log"))
    assert b"erika" not in everything
    assert audit(sink.settings).findings == ()


def test_report_2_what_no_receiver_took_is_counted_and_told_by_the_next_event(
    deploy: Deploy,
) -> None:
    """Tellers of a coordinator that died, in this process: they read the table alone."""
    sink = deploy(partitions=1)
    (only,) = sink.start()
    produce(sink, "00:10", "01:20")
    sink.wait_until_lag_zero()
    sink.kill(only)
    record, counted = sink.record(), Counter[str]()
    assert record is not None

    def count(name: str, amount: float, labels: Mapping[str, str]) -> None:
        counted[name] += int(amount)

    with ReportServer(status=500) as server, open_tables_for_reading(sink.settings) as tables:
        view = tables.reader.view()
        url = f"{server.address}/api"
        sink.change({"lineage": {"url": url}, "signal": {"url": url}})
        lineage = Lineage(sink.settings, record.coordinator, count)
        signals = Signals(sink.settings, count)
        lineage.on_landed(view)
        sink.wait_until(
            lambda: bool(counted[names.LINEAGE_DROPPED] and counted[names.SIGNAL_FAILURES]),
            "failures",
        )
        server.status = 200
        sink.wait_until(
            lambda: bool(
                rows_of(server.accepted_bodies(lambda each: "run" in each))
                and server.accepted_bodies(lambda each: "complete_through" in each)
            ),
            "an event and a signal",
        )
        lineage.close()
        signals.close()
        events = server.accepted_bodies(lambda each: "run" in each)
        assert [each["eventType"] for each in events] == ["START", "RUNNING", "COMPLETE"]
        assert rows_of(events) == 2
        assert spans(server.accepted_bodies(lambda each: "complete_through" in each)) == [
            (None, "01:00")
        ]
        again = Signals(sink.settings, count)  # it finds the note, and says nothing
        sink.wait_until(lambda: again._known_ms > 0, "a look at the note")
        again.close()
    assert counted[names.LINEAGE_EVENTS] == 3
    assert counted[names.SIGNALS] == 1
