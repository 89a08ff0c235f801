"""``headgate run --dry-run``: what records would become, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headgate.operations.cli.main import main

pytestmark = pytest.mark.integration

HEADGATE = (sys.executable, "-c", "from headgate.operations.cli.main import main; main()")
COLUMNS = """
create = true
partition_by = ["zone"]
[[table.columns]]
name = "id"
type = "long"
required = true
[[table.columns]]
name = "zone"
type = "string"
[table.record_columns]
offset = "offset"
"""


def dry_run(sink: Path, *records: str) -> Result:
    return CliRunner().invoke(main, ["run", str(sink), "--dry-run", *records])


@pytest.fixture
def declared(sink_file: Path) -> Path:
    """A sink whose table is not there yet."""
    text = sink_file.read_text()
    begin, end = text.index("[table.record_columns]"), text.index("[spark]")
    sink_file.write_text(text[:begin] + COLUMNS.lstrip() + text[end:])
    return sink_file


def fill(producer: Producer, topic: str, rows: Iterable[object]) -> None:
    for number, row in enumerate(rows):
        value = None if row is None else json.dumps(row)
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(10) == 0


def topics_of(admin: AdminClient, topic: str) -> set[str]:
    """Those of this test: others work on the same broker."""
    own = topic.rpartition("-")[0]
    return {name for name in admin.list_topics(timeout=10).topics if name.startswith(own)}


def rows_shown(output: str) -> list[dict[str, object]]:
    lines = output.splitlines()
    return [json.loads(line.split(maxsplit=1)[1]) for line in lines if line.startswith("row ")]


def test_a_table_that_is_not_there_yet(
    declared: Path, tmp_path: Path, topic: str, producer: Producer, admin: AdminClient
) -> None:
    fill(producer, topic, [{"id": n, "zone": f"z{n % 4}"} for n in range(40)])
    before, topics = sorted(tmp_path.rglob("*")), topics_of(admin, topic)
    result = dry_run(declared)
    assert result.exit_code == 0, result.output
    assert "40 rows in 4 files" in result.stdout
    assert "which does not exist yet; nothing was written there" in result.stdout
    shown = rows_shown(result.stdout)
    assert {row["zone"] for row in shown} <= {"z0", "z1", "z2", "z3"}
    assert all(row["offset"] == row["id"] // 2 for row in shown)
    assert sorted(tmp_path.rglob("*")) == before
    assert topics_of(admin, topic) == topics


def test_only_the_newest_records_and_the_bad_ones_with_their_reasons(
    declared: Path, topic: str, producer: Producer
) -> None:
    fill(producer, topic, [{"id": n} for n in range(30)] + [{"id": "x"}, None])
    result = dry_run(declared, "3")
    assert result.exit_code == 1
    assert "4 rows in" in result.stdout
    bad = [line for line in result.stdout.splitlines() if line.startswith("bad ")]
    assert len(bad) == 2
    assert any("id" in line and "value" in line for line in bad)
    assert any("tombstone" in line for line in bad)


def test_a_table_that_is_there_stays_as_it_is(
    sink_file: Path, tmp_path: Path, topic: str, producer: Producer, filled: object
) -> None:
    fill(producer, topic, [{} for _ in range(10)])
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = dry_run(sink_file)
    assert result.exit_code == 0, result.output
    assert "10 rows in 1 file" in result.stdout
    assert [row["offset"] for row in rows_shown(result.stdout)] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == files


def test_an_empty_topic_and_a_missing_table(
    sink_file: Path, declared: Path, tmp_path: Path
) -> None:
    result = dry_run(declared)
    assert result.exit_code == 0
    assert "0 rows in 0 files" in result.stdout
    sink_file.write_text(declared.read_text().replace("create = true", "create = false"))
    result = dry_run(sink_file)
    assert result.exit_code == 2
    assert "HG-102" in result.stderr


@pytest.mark.wide
@pytest.mark.spark
def test_a_transform_is_rehearsed_in_spark(declared: Path, topic: str, producer: Producer) -> None:
    fill(producer, topic, [{"id": n, "zone": "a"} for n in range(20)])
    transform = '[transform]\nsql = "select id, upper(zone) as zone from records where id < 10"\n'
    text = declared.read_text().replace('"in-process"', '"spark"')
    declared.write_text(text + transform)
    result = subprocess.run(
        [*HEADGATE, "run", declared, "--dry-run"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "10 rows in 1 file" in result.stdout
    assert {row["zone"] for row in rows_shown(result.stdout)} == {"A"}
