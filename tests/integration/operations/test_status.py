"""What ``headgate status`` says in each failure, with its exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.faults.stuck_catalog import StuckCatalog
from integration.sink_file import bad_record
from unit.operations.filled_table import FilledTable

from headgate.operations.cli.main import main

pytestmark = pytest.mark.integration


def asked(sink_file: Path) -> tuple[str, int, dict[str, Any] | None]:
    """The condition, the exit code, and the last error."""
    result = CliRunner().invoke(main, ["status", str(sink_file), "--json"])
    document = json.loads(result.stdout)
    return document["condition"], result.exit_code, document["last_error"]


def wait_for(sink: Deployment, condition: str, exit_code: int) -> dict[str, Any] | None:
    seen: list[tuple[str, int, dict[str, Any] | None]] = []

    def reached() -> bool:
        seen.append(asked(sink.sink_file))
        return seen[-1][:2] == (condition, exit_code)

    sink.wait_until(reached, f"status says {condition!r}")
    return seen[-1][2]


def test_from_the_first_start_to_a_death(deploy: Deploy) -> None:
    sink = deploy()
    assert asked(sink.sink_file) == ("never started", 0, None)
    sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    assert wait_for(sink, "idle", 0) is None
    sink.stop()
    assert asked(sink.sink_file) == ("stopped", 0, None)
    (again,) = sink.start()
    wait_for(sink, "idle", 0)
    sink.kill(again)
    wait_for(sink, "not running", 1)


@pytest.mark.wide
def test_a_record_that_ends_the_sink(deploy: Deploy) -> None:
    sink = deploy()
    sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    produce_bad(sink)
    sink.stopped_by_itself("HG-207")
    condition, exit_code, error = asked(sink.sink_file)
    assert (condition, exit_code) == ("failed", 1)
    assert error is not None
    assert error["code"] == "HG-207"
    assert "offset" in error["text"]
    shown = CliRunner().invoke(main, ["status", str(sink.sink_file)])
    assert "last error        HG-207" in shown.stdout


def produce_bad(sink: Deployment) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": sink.settings.kafka["bootstrap.servers"]})
    producer.produce(sink.settings.source.topics[0], bad_record(1), partition=0)
    assert producer.flush(10) == 0


@pytest.mark.wide
def test_batches_that_fail_and_work_again(deploy: Deploy) -> None:
    sink = deploy()
    sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    with sink.table() as table:
        folder = Path(table.location().removeprefix("file://")) / "data"
    shutil.rmtree(folder)
    folder.write_text("a file where the data files' folder should be")
    sink.produce()
    error = wait_for(sink, "failing", 1)
    assert error is not None
    assert error["code"] == "HG-403"
    folder.unlink()
    sink.wait_until_lag_zero()
    error = wait_for(sink, "idle", 0)
    assert error is not None
    assert error["past"]


@pytest.mark.wide
def test_a_table_that_was_rolled_back(deploy: Deploy) -> None:
    sink = deploy()
    sink.start()
    for _ in range(2):
        sink.produce()
        sink.wait_until_lag_zero()
    sink.stop()
    history = sink.history()
    assert history is not None
    with sink.table() as table:
        table.manage_snapshots().rollback_to_snapshot(history.commits[-2].snapshot_id).commit()
    condition, exit_code, error = asked(sink.sink_file)
    assert (condition, exit_code) == ("failed", 1)
    assert error is not None
    assert error["code"] == "HG-201"


def test_a_missing_topic(filled: FilledTable, sink_file: Path) -> None:
    filled.good_start()
    sink_file.write_text(sink_file.read_text().replace(filled.topic, f"{filled.topic}-absent"))
    condition, exit_code, error = asked(sink_file)
    assert (condition, exit_code) == ("failed", 1)
    assert error is not None
    assert "does not exist" in error["text"]


@pytest.mark.wide
def test_a_catalog_that_takes_no_commits(deploy: Deploy) -> None:
    sink = deploy()
    uri = sink.settings.catalog.properties["uri"]
    sink.change({"catalog.properties": {"uri": f"{uri}?timeout=3"}})  # seconds for SQLite's lock
    sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    with StuckCatalog(sink):
        sink.produce()
        error = wait_for(sink, "failing", 1)
    assert error is not None
    assert error["code"].startswith("HG-4")
    assert "locked" in error["text"]
    sink.wait_until_lag_zero()
    past = wait_for(sink, "idle", 0)
    assert past is not None
    assert past["past"]
    sink.stop()
    sink.judge()
