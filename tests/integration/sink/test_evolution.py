"""New fields while a sink runs: their first record has its value, whatever dies meanwhile."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import read_with_duckdb
from integration.sink_file import record

from headgate.operations.demo.producer import produce

pytestmark = pytest.mark.integration

EVOLVE = {"table.schema": {"unknown_fields": "evolve"}}
KILLED_BETWEEN = Path(__file__).with_name("killed_between.py")


def valued(number: int, **more: Any) -> bytes:
    return json.dumps({**json.loads(record(number)), **more}).encode()


def put(sink: Deployment, values: Iterable[bytes]) -> None:
    produce(sink.bootstrap, sink.topics[0], values, partitions=sink.partitions)


def rows(sink: Deployment) -> dict[int, dict[str, Any]]:
    """By id, as an independent reader sees them."""
    with sink.table() as table:
        found: pa.Table = read_with_duckdb(table.metadata_location)
    return {row["id"]: row for row in found.to_pylist()}


def test_the_first_record_of_a_new_field_has_its_value(deploy: Deploy) -> None:
    sink = deploy(EVOLVE)
    sink.start(2)
    sink.wait_until(lambda: sink.shares() == [1, 1], "a partition for each")
    put(sink, map(record, range(500)))
    sink.wait_until(lambda: sink.committed() >= 500, "the first records")
    put(sink, (valued(n, tip=n + 0.5) for n in range(500, 900)))
    put(sink, (valued(n, tip=n, user={"name": f"u{n}"}) for n in range(900, 1_300)))
    sink.wait_until(lambda: sink.committed() >= 1_300, "records with new fields")
    put(sink, (valued(n, user={"name": "x", "tags": ["a"]}) for n in range(1_300, 1_400)))
    sink.wait_until(lambda: sink.committed() >= 1_400, "records with a nested new field")
    sink.stop()
    sink.judge()
    found = rows(sink)
    assert all(found[n]["tip"] is None for n in range(500))
    assert all(found[n]["tip"] == n + 0.5 for n in range(500, 900))
    assert all(found[n]["tip"] == n for n in range(900, 1_300))
    assert all(found[n]["user"]["name"] == f"u{n}" for n in range(900, 1_300))
    assert all(found[n]["user"]["tags"] == ["a"] for n in range(1_300, 1_400))


@pytest.mark.wide
def test_a_coordinator_dies_between_the_update_and_tables(deploy: Deploy, tmp_path: Path) -> None:
    sink = deploy(EVOLVE)
    flag = tmp_path / "died"
    sink.start(2, [sys.executable, KILLED_BETWEEN, flag])
    sink.wait_until(lambda: sink.shares() == [1, 1], "a partition for each")
    put(sink, map(record, range(400)))
    sink.wait_until(lambda: sink.committed() >= 400, "the first records")
    leader = sink.leader()
    sink.participants.remove(leader)
    put(sink, (valued(n, who=f"w{n}") for n in range(400, 800)))
    assert leader.ended() == -signal.SIGKILL
    assert flag.exists()
    sink.wait_until(lambda: sink.committed() >= 800, "records with the new field")
    sink.stop()
    sink.judge()
    found = rows(sink)
    assert all(found[n]["who"] == f"w{n}" for n in range(400, 800))
    with sink.table() as table:
        assert list(table.schema().column_names).count("who") == 1


@pytest.mark.soak
def test_a_person_renames_drops_and_widens_while_the_sink_runs(deploy: Deploy) -> None:
    change = {"table.columns": {"columns": {"id": "long", "zone": "string", "pax": "int"}}}
    sink = deploy({**EVOLVE, **change})
    sink.start(1)
    put(sink, (json.dumps({"id": n, "zone": "a", "pax": n}).encode() for n in range(300)))
    sink.wait_until(lambda: sink.committed() >= 300, "the first records")
    with sink.table() as table, table.update_schema() as update:
        update.rename_column("pax", "passengers").delete_column("zone")
    put(
        sink,
        (json.dumps({"id": n, "zone": "b", "pax": n, "x": 1}).encode() for n in range(300, 600)),
    )
    sink.wait_until(lambda: sink.committed() >= 600, "records with old names")
    put(sink, (json.dumps({"id": n, "passengers": 2**40}).encode() for n in range(600, 700)))
    sink.wait_until(lambda: sink.committed() >= 700, "records with a wider number")
    sink.stop()
    sink.judge()
    found = rows(sink)
    assert all(found[n]["passengers"] == n for n in range(600))
    assert all(found[n]["passengers"] == 2**40 for n in range(600, 700))
    assert all(found[n]["x"] == 1 for n in range(300, 600))
    assert "zone" not in found[0]


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("mode", ["none", "hash"])
def test_a_new_field_by_way_of_spark(deploy: Deploy, mode: str) -> None:
    spark = {"writer": "spark", "master": "local[2]", "distribution": mode}
    sink = deploy({**EVOLVE, "spark": spark, "table": {"partition_by": ["zone"]}})
    sink.start(1)
    put(sink, map(record, range(200)))
    sink.wait_until(lambda: sink.committed() >= 200, "the first records")
    put(sink, (valued(n, tip=n + 0.5) for n in range(200, 400)))
    sink.wait_until(lambda: sink.committed() >= 400, "records with the new field")
    sink.stop()
    sink.judge()
    found = rows(sink)
    assert all(found[n]["tip"] == n + 0.5 for n in range(200, 400))
