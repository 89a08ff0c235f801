"""Peak resident memory of a participant without Spark, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration.data_plane.filling import produce
from integration.data_plane.peak_memory import record

pytestmark = pytest.mark.integration

MB = 1024 * 1024
TESTS = Path(__file__).parents[2]


def measured(**task: Any) -> dict[str, int]:
    command = [sys.executable, "-m", "integration.data_plane.peak_memory", json.dumps(task)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    print(f"{task}: peak {found['peak'] // MB} MB, {found['files']} files")
    return found


@pytest.mark.soak
@pytest.mark.parametrize("in_order", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_x22_four_thousand_table_partitions_in_one_batch(tmp_path: Path, in_order: bool) -> None:
    task = {"records": 400_000, "table_partitions": 4000, "sorted": in_order}
    found = measured(folder=str(tmp_path), **task)
    assert found["records"] == 400_000
    assert 4000 <= found["files"] < 3 * 4000
    assert found["peak"] < 1024 * MB


@pytest.mark.soak
@pytest.mark.parametrize("in_order", [False, True])
def test_two_million_records_in_one_batch(
    tmp_path: Path, bootstrap: str, topic_factory: Callable[..., str], in_order: bool
) -> None:
    topic = topic_factory(1)
    produce(bootstrap, topic, (record(number, 1) for number in range(2_000_000)))
    more = {"bootstrap": bootstrap, "topic": topic, "sorted": in_order}
    found = measured(folder=str(tmp_path), records=2_000_000, table_partitions=1, **more)
    assert found["records"] == 2_000_000
    assert found["peak"] < 1024 * MB
