"""Queries of Spark Connect on a real broker: server and client are killed (QUERY-27)."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from integration.readers import read_with_duckdb
from spark_query.connect_server import Server, connect_server, in_worker, with_patient_start
from spark_query.spark_programs import PATIENCE_S, Programs, dies, locate_table, running_below
from spark_query.test_real_query import (
    PARTITIONS,
    RECORDS,
    end_of,
    headgate,
    in_records_mode,
    judge,
    produce,
)

from headgate.config.load import load
from headgate.operations.audit.audit import audit
from headgate.operations.status.status import read_status

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

WORKER = "foreach_batch_worker"
ENDS = "query.processAllAvailable()\nquery.stop()"
TELLS = """
try:
    query.awaitTermination()
except Exception:
    print("told:", query.exception())
"""


class Connected(Programs):
    """The page's example as a client of a server."""

    def __init__(self, folder: Path, bootstrap: str, topic: str, server: Server) -> None:
        super().__init__(folder, bootstrap, topic)
        self.bootstrap, self.topic = bootstrap, topic
        self.server, self.remote = server.running, server.address
        self.query = with_patient_start(self.query)

    def staying(self) -> str:
        """The query as a client that waits for its end, which does not come."""
        assert ENDS in self.query
        return self.query.replace(ENDS, "query.awaitTermination()")

    def wait_for_rows(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.rows() < count:
            assert time.monotonic() < deadline, f"{self.rows()} rows"
            time.sleep(0.5)

    def rows(self) -> int:
        """How many the table has; none while nothing is committed."""
        location = locate_table(self.folder, "db.trips")
        if not location:
            return 0
        metadata = json.loads(Path(location.removeprefix("file://")).read_text())
        return read_with_duckdb(location).num_rows if metadata.get("snapshots") else 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with connect_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def programs(
    bootstrap: str, topic_factory: Callable[..., str], tmp_path: Path, server: Server
) -> Connected:
    topic = topic_factory(PARTITIONS)
    produce(bootstrap, topic, 0)
    return Connected(tmp_path, bootstrap, topic, server)


def wait_for_no_worker(programs: Connected) -> None:
    deadline = time.monotonic() + 60
    while left := running_below(programs.server.process.pid, WORKER):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


@pytest.mark.wide
def test_query_27_the_example_of_the_page_fills_the_table_once_through_connect(
    programs: Connected,
) -> None:
    end_of(programs)
    judge(programs)
    settings = load(programs.sink_file)
    report = audit(settings)
    assert (report.findings, report.unproven) == ((), ()), report
    assert read_status(settings).total_lag == 0
    wait_for_no_worker(programs)


@pytest.mark.wide
def test_query_27_a_query_goes_on_without_its_client_and_a_new_one_takes_over(
    programs: Connected,
) -> None:
    with programs.start(query=programs.staying()) as client:
        programs.wait_for_rows(500)
        client.kill()
    produce(programs.bootstrap, programs.topic, RECORDS)
    programs.wait_for_rows(2 * RECORDS)
    (worker,) = running_below(programs.server.process.pid, WORKER)
    produce(programs.bootstrap, programs.topic, 2 * RECORDS)
    end_of(programs)  # Spark ends the run that goes on
    psutil.wait_procs([worker], 30)
    assert not worker.is_running()
    judge(programs, 3 * RECORDS)
    assert audit(load(programs.sink_file)).findings == ()


@pytest.mark.wide
def test_query_27_a_client_reads_what_failed_on_the_server(programs: Connected) -> None:
    hidden = programs.sink_file.with_suffix(".hidden")
    moved = f"import shutil\nshutil.move({str(programs.sink_file)!r}, {str(hidden)!r})\n"
    query = f"{programs.query.partition(ENDS)[0]}{TELLS}"
    ended = programs.run(in_worker(moved), query)
    told = ended.stdout.partition("told: ")[2]
    assert "HG-100 on the Spark Connect server" in told, ended.stdout[-6000:]
    assert "have the sink file there at the same path" in told
    hidden.rename(programs.sink_file)
    select = programs.query.replace('.select("trip.*", ', '.selectExpr("trip.city as id", ')
    assert select != programs.query
    ended = programs.run(query=f"{select.partition(ENDS)[0]}{TELLS}")
    told = ended.stdout.partition("told: ")[2]
    assert "HG-275 " in told, ended.stdout[-6000:]
    assert "id" in told


@pytest.mark.wide
def test_query_26_records_are_handed_over_through_connect_once(programs: Connected) -> None:
    """The server's Python process is killed after a commit, and the checkpoint is lost."""
    programs.query = in_records_mode(programs.query)
    killed = programs.run(in_worker(dies("after the commit", 1)))
    assert killed.returncode == 1, killed.stdout[-4000:]
    assert programs.rows() == 1_000
    shutil.rmtree(programs.checkpoint)
    end_of(programs)
    judge(programs)
    report = audit(load(programs.sink_file))
    assert (report.findings, report.unproven) == ((), ()), report


@pytest.mark.soak
def test_query_14_a_paused_query_of_connect_can_be_stopped(programs: Connected) -> None:
    end_of(programs)
    headgate("pause", programs.sink_file)
    produce(programs.bootstrap, programs.topic, RECORDS)
    stops = programs.query.replace(
        "query.processAllAvailable()", "query.awaitTermination(10)\nprint(query.isActive)"
    )
    ended = programs.run(query=f"{stops}\nprint('stopped')")
    assert "True" in ended.stdout, ended.stdout[-4000:]
    wait_for_no_worker(programs)
    judge(programs)
    headgate("resume", programs.sink_file)
    end_of(programs)
    judge(programs, 2 * RECORDS)


@pytest.mark.soak
def test_query_27_a_server_that_is_killed_neither_loses_nor_doubles(
    bootstrap: str, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    topic = topic_factory(PARTITIONS)
    produce(bootstrap, topic, 0)
    dying = in_worker(dies("after the commit", 1, "os.getppid(), os.getpid()"))
    with connect_server(tmp_path) as server:
        programs = Connected(tmp_path, bootstrap, topic, server)
        with programs.start(dying) as client:
            ended = server.running.process.wait(PATIENCE_S)
            assert ended == -signal.SIGKILL, client.output[-4000:]
    with connect_server(tmp_path) as server:
        programs = Connected(tmp_path, bootstrap, topic, server)
        assert programs.rows() == 1_000
        end_of(programs)
    judge(programs)
    assert audit(load(programs.sink_file)).findings == ()
