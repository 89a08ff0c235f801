"""A sink whose topic moves to another cluster, mirrored by Kafka's real MirrorMaker 2.

The commands are those of ``docs/guides/moving-clusters.md``. TAKEOVER-12.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as kafka
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, OffsetSpec
from integration.deployment import Deployment
from repository.tree import ROOT
from support.mirror_maker import MirrorMaker

from headgate.control_protocol.identifiers import TopicPartition
from headgate.kafka.group_offsets import read_group_offsets
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import Verdict
from headgate.operations.cli.main import main
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

pytestmark = [pytest.mark.integration, pytest.mark.wide]

PARTITIONS = 2
GONE = 50
"""So many of each partition are not mirrored: the same record has another offset there."""


@pytest.fixture
def new_kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path / "new-kafka", ensure_broker_jars()) as broker:
        yield broker


def ends(bootstrap: str) -> list[int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = {kafka.TopicPartition("rows", n): OffsetSpec.latest() for n in range(PARTITIONS)}
    try:
        return [answer.result().offset for answer in admin.list_offsets(asked).values()]
    except kafka.KafkaException:  # the topic is not there yet
        return []


def group_offsets(bootstrap: str) -> list[int]:
    places = [TopicPartition("rows", n) for n in range(PARTITIONS)]
    found = read_group_offsets({"bootstrap.servers": bootstrap}, "rows", places, 10)
    return [found.get(at, -1) for at in places]


def forget_first(bootstrap: str) -> None:
    places = [kafka.TopicPartition("rows", n, GONE) for n in range(PARTITIONS)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records(places).values():
        done.result()


def told(sink: Deployment, start: str) -> str:
    """Give the command of the page that begins so, without being asked."""
    page = (ROOT / "docs/guides/moving-clusters.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith(start))
    line = line.replace("shop.toml", str(sink.sink_file)).replace("headgate-shop", "rows")
    command = shlex.split(line)[1:] + ["--yes"] * ("offsets" in start)
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    "way", ["group", *(pytest.param(way, marks=pytest.mark.soak) for way in ("latest", "behind"))]
)
def test_a_sink_goes_on_at_a_cluster_that_its_topic_was_mirrored_to(
    own_kafka: EmbeddedKafka, new_kafka: EmbeddedKafka, tmp_path: Path, way: str
) -> None:
    """``behind``: there the group's offset is translated from a mark somewhere before it."""
    old, new = own_kafka.bootstrap, new_kafka.bootstrap
    ensure_topic(old, "rows", partitions=PARTITIONS)
    with Deployment(tmp_path, old, ["rows"], group="rows") as sink:
        sink.start()
        sink.produce(400)
        sink.wait_until_lag_zero()
        sink.stop()
        forget_first(old)
        if way == "behind":
            sink.produce(200)
        marks_every = 100 if way == "behind" else 0
        with MirrorMaker(tmp_path, old, new, "rows", "rows", marks_every=marks_every):
            sink.wait_until(
                lambda: ends(new) == [end - GONE for end in ends(old)], "the topic there"
            )
            exact = [offset - GONE for offset in group_offsets(old)]
            if way == "group":
                sink.wait_until(lambda: group_offsets(new) == exact, "the group there")
            elif way == "behind":
                sink.wait_until(lambda: min(group_offsets(new)) >= 0, "the group there")
            there = group_offsets(new)
        sink.wait_until(lambda: not sink.shares(), "silence")
        sink.change({"kafka": {"bootstrap.servers": new}})
        if way == "latest":
            told(sink, "headgate resume")
        else:
            plan = told(sink, "headgate offsets")
            assert "rows: not the topic that was read before" in plan
            assert all(f"rows/{n}: begins at {at}\n" in plan for n, at in enumerate(there))
        sink.bootstrap = new
        sink.start()
        sink.produce(100)
        sink.wait_until_lag_zero()
        sink.stop()
        found = Counter(sink.rows()["id"].to_pylist())
        report = audit(sink.settings)
        assert report.findings == ()
        assert report.verdict is Verdict.NOT_PROVEN
    assert found.keys() == set(range(sink.produced))
    twice = sum(found.values()) - len(found)
    if way == "behind":
        assert twice == sum(exact) - sum(there) > 0
    else:
        assert twice == 0
