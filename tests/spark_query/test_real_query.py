"""Real queries on a real broker: the driver is killed, its checkpoint lost and restored."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from integration.readers import read_with_duckdb
from spark_query.spark_programs import Programs, dies, waits_for

from headgate.config.load import load
from headgate.operations.audit.audit import audit
from headgate.operations.status.status import read_status

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

PARTITIONS = 2
RECORDS = 2_000
SOURCE_ENDS = "KafkaMicroBatchStream.metrics"
"""Spark's Kafka source 4.1 ends a query after it has repeated a batch that was not committed."""


@pytest.fixture
def programs(
    request: pytest.FixtureRequest,
    bootstrap: str,
    topic_factory: Callable[..., str],
    tmp_path: Path,
) -> Programs:
    """On Spark 4.1, or on the version that a test names."""
    topic = topic_factory(PARTITIONS)
    produce(bootstrap, topic, 0)
    return Programs(tmp_path, bootstrap, topic, spark=getattr(request, "param", "4.1"))


def produce(bootstrap: str, topic: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + RECORDS):
        value = json.dumps({"id": number, "city": f"c{number % 7}"})
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def end_of(programs: Programs, **named: str) -> None:
    """Run the query until it has read everything; once more where Spark's own source ends it."""
    for _ in range(3):
        ended = programs.run(**named)
        if ended.returncode == 0:
            return
        assert SOURCE_ENDS in ended.stdout, ended.stdout[-4000:]
    raise AssertionError(ended.stdout[-4000:])


def judge(programs: Programs, records: int = RECORDS) -> None:
    """By a reader that is not ours: each record is there once."""
    with sqlite3.connect(programs.folder / "catalog.db") as catalog:
        ((location,),) = catalog.execute("select metadata_location from iceberg_tables")
    table = read_with_duckdb(str(location))
    columns = (table.column(name).to_pylist() for name in ("id", "kafka_partition", "kafka_offset"))
    rows = list(zip(*columns, strict=True))
    found = Counter(rows)
    assert [row for row, times in found.items() if times > 1] == []
    assert {row[0] for row in found} == set(range(records))
    assert len(found) == records


@pytest.mark.wide
def test_the_example_of_the_page_fills_the_table_once_and_commands_say_so(
    programs: Programs,
) -> None:
    end_of(programs)
    judge(programs)
    settings = load(programs.sink_file)
    report = audit(settings)
    assert (report.findings, report.unproven) == ((), ()), report
    found = read_status(settings)
    assert found.total_lag == 0, found


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("before the write", marks=pytest.mark.soak),
        pytest.param("before the commit", marks=pytest.mark.wide),
        "after the commit",
    ],
)
def test_query_12_a_driver_that_is_killed_neither_loses_nor_doubles(
    programs: Programs, where: str
) -> None:
    killed = programs.run(dies(where, 1))
    assert killed.returncode == -signal.SIGKILL, killed.stdout[-4000:]
    end_of(programs)
    judge(programs)


def in_records_mode(query: str) -> str:
    """Return the page's query without its columns: the sink file makes the rows."""
    before, columns, after = query.partition("trips = records.select(")
    written = re.search(r"\n\w+ = headgate.*", after, re.DOTALL)
    assert columns and written, query
    given = written.group().replace("write(trips, ", "write(records, ")
    assert "CHECKPOINT)" in given, given
    return before + given.replace("CHECKPOINT)", "CHECKPOINT, records=True)", 1)


@pytest.mark.wide
@pytest.mark.parametrize(
    "programs", ["4.1", pytest.param("3.5", marks=pytest.mark.soak)], indirect=True
)
def test_query_26_a_driver_that_is_killed_in_records_mode_neither_loses_nor_doubles(
    programs: Programs,
) -> None:
    query = in_records_mode(programs.query)
    killed = programs.run(dies("after the commit", 1), query)
    assert killed.returncode == -signal.SIGKILL, killed.stdout[-4000:]
    shutil.rmtree(programs.checkpoint)
    programs.query = query.replace("500", "700")
    end_of(programs)
    judge(programs)
    report = audit(load(programs.sink_file))
    assert (report.findings, report.unproven) == ((), ()), report


@pytest.mark.wide
@pytest.mark.parametrize("programs", ["3.5"], indirect=True)
def test_query_11_the_checkpoint_of_an_older_spark_is_read(programs: Programs) -> None:
    tells = "import pyspark\nprint(pyspark.__version__)"
    killed = programs.run(f"{tells}\n{dies('after the commit', 1)}")
    assert killed.returncode == -signal.SIGKILL, killed.stdout[-4000:]
    assert killed.stdout.startswith("3.5."), killed.stdout
    end_of(programs)
    judge(programs)


@pytest.mark.wide
def test_query_6_a_checkpoint_that_is_lost_or_restored_neither_loses_nor_doubles(
    programs: Programs,
) -> None:
    killed = programs.run(dies("after the commit", 1))
    assert killed.returncode == -signal.SIGKILL, killed.stdout[-4000:]
    older = programs.folder / "older"
    shutil.move(programs.checkpoint, older)
    early = programs.query.replace(
        f'headgate.spark.starting_offsets("{programs.sink_file}")', '"earliest"'
    ).replace("500", "700")
    ended = programs.run(query=early)
    assert ended.returncode == 0, ended.stdout[-4000:]
    judge(programs)
    shutil.rmtree(programs.checkpoint)
    shutil.move(older, programs.checkpoint)
    end_of(programs)
    judge(programs)


@pytest.mark.wide
@pytest.mark.parametrize(
    "checkpoint", ["copied", pytest.param("of its own", marks=pytest.mark.soak)]
)
def test_query_13_of_two_queries_at_once_one_ends_by_name_and_nothing_is_lost_or_doubled(
    programs: Programs, tmp_path: Path, checkpoint: str
) -> None:
    other = programs.checkpoint.with_name("other")
    second = programs.query.replace(str(programs.checkpoint), str(other))
    # The first one waits within its second batch until the other one has read everything.
    done, waits = tmp_path / "done", tmp_path / "waits"
    with programs.start(waits_for(done, waits, 1)) as first:
        while not waits.exists():
            assert first.process.poll() is None, first.output[-4000:]
            time.sleep(0.1)
        if checkpoint == "copied":
            shutil.copytree(programs.checkpoint, other)
        end_of(programs, query=second, name="second.py")
        judge(programs)
        done.touch()
        first.process.wait(240)
        late = first.output
    assert "HG-272" in late, late[-4000:]
    judge(programs)
    end_of(programs)
    judge(programs)
    assert audit(load(programs.sink_file)).findings == ()


def headgate(*arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from headgate.operations.cli.main import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.wide
def test_query_13_headgate_run_takes_over_and_gives_back(
    programs: Programs, bootstrap: str
) -> None:
    killed = programs.run(dies("after the commit", 1))
    assert killed.returncode == -signal.SIGKILL, killed.stdout[-4000:]
    run = programs.folder / "run.toml"
    run.write_text(programs.sink_file.read_text() + '\n[spark]\nwriter = "in-process"\n')
    headgate("run", run, "--until-latest")
    judge(programs)
    topic = load(run).source.topics[0]
    produce(bootstrap, topic, RECORDS)
    end_of(programs)  # with the checkpoint of before
    judge(programs, 2 * RECORDS)


@pytest.mark.wide
def test_query_14_a_query_that_is_paused_waits_and_goes_on_when_it_is_resumed(
    programs: Programs, bootstrap: str
) -> None:
    end_of(programs)
    headgate("pause", programs.sink_file)
    assert read_status(load(programs.sink_file)).paused
    produce(bootstrap, load(programs.sink_file).source.topics[0], RECORDS)
    waits = programs.query.replace("processAllAvailable()", "awaitTermination(20)")
    programs.run(query=waits)
    judge(programs)
    headgate("resume", programs.sink_file)
    end_of(programs)
    judge(programs, 2 * RECORDS)
