"""What dropped work leaves behind is found by the table's own clean-up, and nothing else is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.faults.stuck_catalog import kill_in_commit
from integration.readers import IcebergSpark

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.wide]

DAYS = 4 * 86_400
"""Above the age below which Iceberg's clean-up leaves every file alone (three days)."""


def test_hc42_f75_clean_up_by_others_takes_the_orphans_and_leaves_the_table(
    deploy: Deploy, iceberg_spark: IcebergSpark
) -> None:
    sink = deploy()
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        kill_in_commit(sink)
        sink.start()
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    live = set(live_files(sink))
    orphans = set(files(sink)) - live
    assert orphans, "the killed coordinator's transaction was announced and never committed"
    clean_up = "prefix_mismatch_mode => 'IGNORE'"
    sink.call(iceberg_spark, "remove_orphan_files", clean_up)
    assert set(files(sink)) == live | orphans, "what is young may still be committed"
    for file in files(sink):
        os.utime(file, (time.time() - DAYS, time.time() - DAYS))
    sink.call(iceberg_spark, "remove_orphan_files", clean_up)
    assert set(files(sink)) == live
    sink.judge()


def files(sink: Deployment) -> list[Path]:
    return list((sink.warehouse / "db" / "rows" / "data").rglob("*.parquet"))


def live_files(sink: Deployment) -> list[Path]:
    with sink.table() as table:
        paths = [task.file.file_path for task in table.scan().plan_files()]
    return [Path(path.removeprefix("file://")) for path in paths]
