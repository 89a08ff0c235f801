"""Iceberg's real Kafka Connect sink, ended where it hurts, and a sink that goes on there.

Each record has its own partition and number in it; in the end DuckDB counts each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from integration.operations.connector_scene import PARTITIONS, Scene
from support.connect_worker import RELEASES

from headgate.config.load import load
from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main

pytestmark = [pytest.mark.integration, pytest.mark.wide]

NEWEST = pytest.mark.parametrize("scene", RELEASES[-1:], indirect=True)


@pytest.fixture(params=RELEASES)
def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    bootstrap: str,
    admin: AdminClient,
    topic_factory: Callable[..., str],
) -> Iterator[Scene]:
    made = Scene(
        tmp_path, bootstrap, topic_factory(PARTITIONS), topic_factory(2), str(request.param)
    )
    yield made
    made.worker.kill()


@pytest.mark.parametrize(
    ("scene", "way"),
    [*((release, "reread") for release in RELEASES), (RELEASES[-1], "adopt")],
    indirect=["scene"],
)
def test_a_connector_that_is_killed_in_a_commit_leaves_each_record_once(
    scene: Scene, way: str
) -> None:
    """TAKEOVER-1, TAKEOVER-8 and TAKEOVER-10."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.kill)
    before = scene.tables()
    options = ["--adopt"] if way == "adopt" else []
    shown = scene.take_over(*options)
    assert shown.exit_code == 0, shown.output
    assert "nothing was changed" in shown.output
    assert scene.tables() == before
    done = scene.take_over(*options, "--yes")
    assert done.exit_code == 0, done.output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()
    assert audit(load(scene.sink)).findings == ()


def test_a_connector_that_wakes_in_a_commit_is_fenced_by_its_own_mark(scene: Scene) -> None:
    """TAKEOVER-11."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.pause_process)
    done = scene.take_over("--yes")
    assert done.exit_code == 0, done.output
    before = len(scene.worker.said())
    scene.worker.wake_process()
    scene.wait_until(lambda: "stale offsets" in scene.worker.said()[before:], "its refusal")
    scene.worker.kill()
    scene.run_to_the_end()
    scene.require_each_once()


@NEWEST
def test_the_connector_goes_on_where_the_sink_stopped(scene: Scene) -> None:
    """TAKEOVER-13."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.kill)
    assert scene.take_over("--yes").exit_code == 0
    scene.produce(90)
    scene.run_to_the_end()
    back = scene.take_over("--back", "--yes")
    assert back.exit_code == 0, back.output
    scene.produce(90)
    scene.worker.start()
    scene.wait_until(lambda: scene.rows() >= sum(scene.sent), "its rows")
    scene.worker.kill()
    scene.require_each_once()


@NEWEST
def test_a_connector_that_was_stopped_in_order_leaves_nothing_to_do(scene: Scene) -> None:
    scene.fill()
    scene.worker.stop_connector()
    done = scene.take_over("--yes")
    assert done.exit_code == 0, done.output
    assert "outstanding: 0 rows" in done.output
    again = scene.take_over("--yes")
    assert "HG-289" in again.output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()


@NEWEST
def test_a_connector_at_work_is_refused(scene: Scene) -> None:
    """TAKEOVER-2."""
    scene.fill()
    sink = scene.import_sink()
    result = CliRunner().invoke(
        main, ["takeover", str(sink), "--from", str(scene.connector_file), "--yes"]
    )
    assert result.exit_code == 2
    assert "HG-286" in result.output
