"""``headgate offsets SINK set``: what a person moves by hand, and what happens to the rows."""

from __future__ import annotations

from collections import Counter

import confluent_kafka as kafka
import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient
from integration.conftest import Deploy
from integration.deployment import Deployment
from support.topics import delete_topics

from headgate.control_protocol.errors import RetryLater
from headgate.kafka.group_offsets import commit_offset_with_metadata
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import Verdict
from headgate.operations.cli.main import main
from headgate.operations.control.set_offsets import carry_out_offset_plan, plan_offset_moves
from headgate.operations.demo.producer import ensure_topic

pytestmark = pytest.mark.integration


def offsets(sink: Deployment, *arguments: str, answer: str | None = None) -> Result:
    command = ["offsets", str(sink.sink_file), *arguments]
    return CliRunner().invoke(main, command, input=answer)


def stopped(sink: Deployment) -> None:
    """Its last word has to be heard, or its last sign of life to grow old."""
    sink.stop()
    sink.wait_until(lambda: not sink.shares(), "silence")


@pytest.fixture
def sink(deploy: Deploy) -> Deployment:
    """Stopped, with a hundred rows of each of two partitions."""
    sink = deploy()
    sink.start()
    sink.produce(200)
    sink.wait_until_lag_zero()
    stopped(sink)
    return sink


def test_rows_come_again_or_not_at_all_and_the_audit_knows_why(sink: Deployment) -> None:
    sink.produce(100)
    zero, one = (f"{sink.topics[0]}/{number}" for number in (0, 1))
    result = offsets(sink, "set", f"{zero}=70", f"{one}=120", answer="y\n")
    assert result.exit_code == 0, result.output
    assert f"{zero}: from 100 to 70: up to 30 records are read again" in result.output
    assert f"{one}: from 100 to 120: up to 20 records are skipped" in result.output
    report = audit(sink.settings)
    assert report.verdict is Verdict.NOT_PROVEN
    assert not any("beyond" in text or "offsets never" in text for text in report.proven)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.verdict is Verdict.NOT_PROVEN
    assert report.surplus == {"offsets set": 30}
    assert not any("twice" in text for text in report.proven)
    assert sum("headgate offsets set moved" in text for text in report.unproven) == 2
    assert "30 rows came again because offsets were set back" in report.unproven
    assert sink.rows().num_rows == 300 + 30 - 20
    assert len(set(zip(*(c.to_pylist() for c in sink.rows().columns), strict=True))) == 300 - 20


def test_without_a_yes_what_cannot_be_meant_and_without_brokers_nothing_is_set(
    sink: Deployment,
) -> None:
    before = sink.record()
    topic = sink.topics[0]
    wanted = f"{topic}/0=earliest"
    assert offsets(sink, "set", wanted, answer="n\n").exit_code == 1
    assert offsets(sink, "set", wanted).exit_code == 1  # nobody there to ask
    assert sink.record() == before
    assert offsets(sink, "set", f"{topic}/0=latest", "--yes").exit_code == 0
    assert sink.record() == before  # it is there already
    meant = {
        f"{topic}/0=301": "is not in the log",
        f"{topic}/7=0": "is not in the source",
        "other/0=0": "is not in the source",
        f"{topic}=0": "is not an offset of a partition",
        f"{topic}/0=newest": "is not an offset of a partition",
    }
    for what, said in meant.items():
        result = offsets(sink, "set", what, "--yes")
        assert (result.exit_code, said in result.stderr) == (2, True), (what, result.stderr)
    sink.change({"kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    result = offsets(sink, "set", f"{topic}/0=10", "--yes")
    assert (result.exit_code, "no broker answers" in result.stderr) == (3, True), result.stderr
    assert sink.record() == before


@pytest.mark.wide
def test_a_sink_that_runs_keeps_its_offsets(deploy: Deploy) -> None:
    sink = deploy()
    sink.start()
    sink.produce(200)
    sink.wait_until_lag_zero()
    result = offsets(sink, "set", f"{sink.topics[0]}/0=0", "--yes")
    assert result.exit_code == 2
    assert "is running" in result.stderr
    sink.stop()
    sink.judge()


@pytest.mark.wide
def test_table_3_a_plan_is_void_once_somebody_else_has_committed(sink: Deployment) -> None:
    plan = plan_offset_moves(sink.settings, [f"{sink.topics[0]}/0=10"])
    sink.start()
    sink.produce(10)
    sink.wait_until_lag_zero()
    sink.stop()
    with pytest.raises(RetryLater, match="were not moved"):
        carry_out_offset_plan(sink.settings, plan)
    sink.judge()


def read_by_a_group(sink: Deployment, group: str, topic: str, *ends: int) -> None:
    """As a consumer does that stores where it is."""
    for number, end in enumerate(ends):
        commit_offset_with_metadata(
            sink.settings.kafka, group, kafka.TopicPartition(topic, number, end)
        )


def test_a_sink_that_never_ran_begins_where_another_group_is(deploy: Deploy) -> None:
    """TAKEOVER-12."""
    sink = deploy()
    sink.produce(100)
    group = f"{sink.settings.source.group_id}-before"
    read_by_a_group(sink, group, sink.topics[0], 30, 45)
    result = offsets(sink, "set", "--from-group", group, "--yes")
    assert result.exit_code == 0, result.output
    assert f"{sink.topics[0]}/1: begins at 45" in result.output
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    report = audit(sink.settings)
    assert report.findings == ()
    found = Counter(sink.rows()["kafka_partition"].to_pylist())
    assert found == {0: 20, 1: 5}


def test_a_group_of_another_topic_is_mapped(deploy: Deploy) -> None:
    sink = deploy(topics=2)
    old, new = sink.topics
    sink.produce(100, new)
    group = f"{sink.settings.source.group_id}-before"
    read_by_a_group(sink, group, old, 10)
    result = offsets(sink, "set", "--from-group", group, "--map", f"{old}/0={new}/1", answer="n\n")
    assert f"{new}/1: begins at 10" in result.output
    assert "Aborted" in result.output


def test_a_topic_that_is_another_one_begins_where_the_group_says(
    sink: Deployment, admin: AdminClient
) -> None:
    """As on another cluster (TAKEOVER-12)."""
    (topic,) = sink.topics
    delete_topics(admin, topic)
    ensure_topic(sink.bootstrap, topic, partitions=2)
    sink.produce(60)
    group = f"{sink.settings.source.group_id}-before"
    read_by_a_group(sink, group, topic, 10)
    refused = offsets(sink, "set", f"{topic}/0=10", "--yes")
    assert refused.exit_code == 2
    assert "HG-206=earliest" in refused.output
    result = offsets(sink, "set", "--from-group", group, "--yes")
    assert result.exit_code == 0, result.output
    assert f"{topic}: not the topic that was read before" in result.output
    assert f"{topic}/0: begins at 10\n{topic}/1: begins at 0\n" in result.output
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    report = audit(sink.settings)
    assert (report.findings, report.verdict) == ((), Verdict.NOT_PROVEN)
    assert sink.rows().num_rows == 200 + 20 + 30


def test_a_group_without_offsets_or_with_members_is_refused(deploy: Deploy) -> None:
    sink = deploy()
    result = offsets(sink, "set", "--from-group", f"{sink.settings.source.group_id}-none")
    assert result.exit_code == 2
    assert "has no offsets" in result.output
