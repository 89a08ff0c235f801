"""The entry for ``spark-submit``: local, on a cluster, through Connect."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import psutil
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment, produce
from integration.spark.cluster import standalone_cluster
from integration.spark.connect_port import connect_port
from repository.tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

JOB = [ROOT / "runtime/spark_submit.py", "--config"]
SPARK_SUBMIT = [
    "env",
    f"PATH={Path(sys.executable).parent}:/usr/bin:/bin",
    Path(sys.executable).with_name("spark-submit"),
]
START_S = 240
Submitted = AbstractContextManager[list[str | Path]]
"""What to submit, while the masters for it are there."""

ROWS = 120_000  # enough for a batch to be cut into shares, so that every worker gets one


@contextmanager
def locally(_: Path) -> Iterator[list[str | Path]]:
    with nullcontext():
        yield [*SPARK_SUBMIT, "--master", "local[2]", *JOB]


@contextmanager
def on_a_cluster(folder: Path) -> Iterator[list[str | Path]]:
    with standalone_cluster(folder, workers=2) as master:
        yield [*SPARK_SUBMIT, "--master", master, *JOB]


@pytest.mark.soak
@pytest.mark.parametrize("submitted", [locally, on_a_cluster])
def test_the_job_fills_the_table_and_ends_when_told(
    deploy: Deploy, tmp_path: Path, submitted: Callable[[Path], Submitted]
) -> None:
    sink = deploy({"spark": {"writer": "spark"}})
    sink.produce(ROWS)
    with submitted(tmp_path) as command:
        sink.start(command=command)
        sink.wait_until_lag_zero(START_S)
        sink.produce(1_000)
        sink.wait_until_lag_zero()
        end(sink)
    sink.judge()


@pytest.mark.wide
def test_the_job_runs_through_spark_connect(deploy: Deploy) -> None:
    """Without spark-submit, which knows no Connect server of its own: plain Python will do."""
    sink = deploy({"spark": {"writer": "spark", "remote": "local[2]"}})
    sink.produce(ROWS)
    with connect_port():
        sink.start(command=[sys.executable, *JOB])
        sink.wait_until_lag_zero(START_S)
        sink.stop()
    sink.judge()


@pytest.mark.wide
def test_ctrl_c_ends_a_run_with_spark_in_order(deploy: Deploy) -> None:
    sink = deploy({"spark": {"writer": "spark", "master": "local[2]"}})
    sink.produce(1_000)
    (participant,) = sink.start()
    sink.wait_until_lag_zero(START_S)
    os.kill(participant.pid, signal.SIGINT)
    assert participant.ended() == 0, str(participant)
    assert "Aborted" not in participant.log_text()
    sink.participants.remove(participant)
    sink.judge()


def end(sink: Deployment) -> None:
    """``spark-submit`` dies of the signal; the participant under it must leave as well."""
    (submitted,) = sink.participants
    (driver,) = filter(_runs_the_job, psutil.Process(submitted.pid).children(recursive=True))
    submitted.ask_to_stop()
    assert submitted.ended() in (0, 128 + signal.SIGTERM), str(submitted)
    sink.participants.remove(submitted)
    driver.wait(60)


def _runs_the_job(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # Spark's short-lived helpers end while they are asked
        return any(word.endswith("spark_submit.py") for word in process.cmdline())
    return False


@pytest.mark.wide
def test_a_record_that_stops_the_sink_takes_no_record_before_it_along(deploy: Deploy) -> None:
    """BATCH-2 with the writer in Spark: what lies before the record is committed, then it stops."""
    sink = deploy({"spark": {"writer": "spark", "master": "local[2]"}}, partitions=1)
    sink.produce(ROWS)
    produce(sink.bootstrap, sink.topics[0], [b"{broken"], partitions=1)
    sink.produce(1_000)
    sink.start()
    line = sink.stopped_by_itself("HG-207", START_S)
    assert f"offset {ROWS}" in line
    assert sink.committed() == ROWS
    with sink.table() as table:
        offsets = table.scan(selected_fields=("kafka_offset",)).to_arrow()["kafka_offset"]
    assert sorted(offsets.to_pylist()) == list(range(ROWS))
