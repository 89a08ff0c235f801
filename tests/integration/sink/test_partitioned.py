"""A table partitioned by day and by zone, filled by two participants."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from integration.conftest import Deploy

pytestmark = pytest.mark.integration


def test_hc40_a_table_partitioned_by_day_and_zone(deploy: Deploy) -> None:
    sink = deploy({"table": {"partition_by": ["day(happened_at)", "zone"]}})
    sink.start(2)
    for _ in range(2):
        sink.produce(600)
        sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
    with sink.table() as table:
        files = [task.file for task in table.scan().plan_files()]
    parts = {(str(file.partition[0]), file.partition[1]) for file in files}
    assert len({day for day, _ in parts}) == 12  # a day per hundred records
    assert {zone for _, zone in parts} == {"a", "b", "c"}
    assert all("/zone=" in PurePath(file.file_path).as_posix() for file in files)
