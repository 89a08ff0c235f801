"""A record that kills the worker that reads it is found, or ends the sink by a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment

from headgate.operations.demo.producer import produce

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.wide,
]

START_S = 240
DEADLY = b'{"id":1,"zone":"deadly"}'


@pytest.fixture
def deadly(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    spark = {"writer": "spark", "master": "local[1]"}
    return deploy({"spark": spark, "spark.conf": {"spark.python.daemon.module": "deadly_daemon"}})


def send(sink: Deployment) -> None:
    """Ten good records, and the deadly one behind the fifth."""
    values = [f'{{"id":{number},"zone":"a"}}'.encode() for number in range(10)]
    produce(sink.bootstrap, sink.topics[0], [*values[:5], DEADLY, *values[5:]], partitions=1)


def test_a_record_that_kills_sparks_worker_is_quarantined(deadly: Deployment) -> None:
    deadly.change({"quarantine": {"policy": "quarantine", "sample_records_min": 100}})
    deadly.start()
    send(deadly)
    deadly.wait_until_lag_zero(START_S)
    deadly.stop()
    deadly.judge()
    (aside,) = deadly.quarantined()
    assert aside["kafka_offset"].to_pylist() == [5]


# what a policy makes of such a record: unit/data_plane/quarantine/test_poison_search.py
@pytest.mark.soak
def test_a_record_that_kills_sparks_worker_ends_the_sink_by_its_name(
    deadly: Deployment,
) -> None:
    deadly.start()
    send(deadly)
    assert "partition 0 offset 5" in deadly.stopped_by_itself("HG-207", START_S)
