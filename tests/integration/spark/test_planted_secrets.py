"""Secrets of a sink file, and what it hides of records, searched for wherever others can look
while the sink runs and after (SHAPE-3)."""

from __future__ import annotations

import os
import random
import re
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from integration.conftest import Deploy
from integration.deployment import HEADGATE, Deployment
from integration.sink_file import COLUMNS, Sections
from integration.spark.cluster import standalone_cluster
from integration.spark.connect_port import connect_port
from repository.tree import ROOT
from support.planted import TAG, needle, places, reference, variable

from headgate.operations.audit.audit import audit
from headgate.operations.demo.producer import produce

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

PLANTED = [place for place in places() if not place[0].startswith(("format", "quarantine"))]
"""All that a sink with JSON and one Iceberg table may have."""

TASKS = {needle(*place) for place in PLANTED if place[0] in ("kafka", "shape.hash_key")}
"""What tasks read records with."""
PERSONS = [
    *(b'{"id":%d,"zone":"person-%s"}' % (n, TAG.encode()) for n in range(20)),
    b'{"id":"%s","zone":"x"}' % TAG.encode(),
    b'{"id":20,"zone":"person-%s"' % TAG.encode(),
    b'{"id":-1,"zone":"person-%s"}' % TAG.encode(),
    b'{"id":77777,"zone":"person-%s"}' % TAG.encode(),
]
"""Twenty rows, two bad records, one that is filtered, and one that nobody expects."""
START_S = 240
RECORDER = """
import os
if os.environ.get("PAYLOADS_INTO"):
    from pyspark.serializers import CloudPickleSerializer
    packed = CloudPickleSerializer.dumps
    def dumps(self, thing):
        found = packed(self, thing)
        with open(os.environ["PAYLOADS_INTO"], "ab") as file:
            file.write(found)
        return found
    CloudPickleSerializer.dumps = dumps
"""

Way = Callable[[Path], AbstractContextManager[tuple[list[str | Path], dict[str, str]]]]


@contextmanager
def in_process(_: Path) -> Iterator[tuple[list[str | Path], dict[str, str]]]:
    yield [HEADGATE, "run"], {"writer": "in-process"}


@contextmanager
def spark_local(_: Path) -> Iterator[tuple[list[str | Path], dict[str, str]]]:
    yield [HEADGATE, "run"], {"writer": "spark", "master": "local[2]"}


@contextmanager
def spark_connect(_: Path) -> Iterator[tuple[list[str | Path], dict[str, str]]]:
    with connect_port():
        yield [HEADGATE, "run"], {"writer": "spark", "remote": "local[2]"}


@contextmanager
def on_a_cluster(folder: Path) -> Iterator[tuple[list[str | Path], dict[str, str]]]:
    with standalone_cluster(folder, workers=1) as master:
        yield [HEADGATE, "run"], {"writer": "spark", "master": master}


@contextmanager
def spark_submit(_: Path) -> Iterator[tuple[list[str | Path], dict[str, str]]]:
    submit = Path(sys.executable).with_name("spark-submit")
    path = f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"
    with nullcontext():
        command = ["env", path, submit, "--master", "local[2]"]
        yield [*command, ROOT / "runtime/spark_submit.py", "--config"], {"writer": "spark"}


@pytest.mark.parametrize(
    "way",
    [
        in_process,
        pytest.param(spark_local, marks=pytest.mark.wide),
        pytest.param(on_a_cluster, marks=pytest.mark.soak),
        pytest.param(spark_connect, marks=pytest.mark.soak),
        pytest.param(spark_submit, marks=pytest.mark.soak),
    ],
    ids=lambda w: w.__name__,
)
def test_no_secret_of_the_sink_file_is_where_others_look(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    payloads, ui = tmp_path / "payloads.bin", _free_port()
    events = tmp_path / "events"
    events.mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(RECORDER)
    with way(tmp_path) as (command, spark):  # a cluster's processes begin without the variables
        for place in PLANTED:
            monkeypatch.setenv(variable(*place), needle(*place))
        own = ["env", f"PYTHONPATH={tmp_path / 'site'}", f"PAYLOADS_INTO={payloads}"]
        # Not forked from the process that has another environment.
        full = [*own, *command] if command[0] == HEADGATE else command
        face = _free_port()
        sink = deploy(_planted(spark, ui, events, face))
        sink.produce(2_000)
        produce(sink.bootstrap, sink.topics[0], PERSONS, partitions=sink.partitions)
        with _watched() as seen:
            (participant,) = sink.start(command=full)
            sink.wait_until_lag_zero(START_S)
            pages = [_page(ui, path) for path in PAGES] if "spark" in spark.values() else []
            token = needle("http.viewer_token")
            pages += [_page(face, path, token) for path in ("/", "/metrics", "/status", "/readyz")]
            spark_s = _pages_of_the_cluster(tmp_path, payloads)
            started = {participant.pid, os.getpid()}
        _end(sink)
    assert [where for where in seen.arguments if not where.startswith("env ")] == []
    inherited = seen.environments - started
    assert not inherited or way is spark_submit, "there the JVM is our parent"
    searched = "\n".join([*pages, *spark_s]) + "".join(_control_topic(sink))
    searched += "".join(_files(tmp_path, without=payloads))
    assert TAG not in searched
    assert way is not on_a_cluster or sum("headgate" in page for page in spark_s) >= 2
    if way in (spark_local, on_a_cluster):
        assert any("own.opaque" in page for page in pages), "Spark's page was looked at"
        assert any("own.opaque" in text for text in _files(events, without=payloads))
    if spark["writer"] == "spark" and way is not spark_submit:
        sent = payloads.read_bytes()
        told = {needle(*place) for place in PLANTED if needle(*place).encode() in sent}
        assert told == TASKS
    with sink.table() as table:
        rows = table.scan().to_arrow().to_pylist()
        assert len(rows) == 2_020
        assert {len(row["zone"]) for row in rows} == {64}
        assert len({row["zone"] for row in rows}) == 4
        assert all(row["zone_hash"].hex() == row["zone"] for row in rows)
    with sink.catalog() as catalog:
        bad = catalog.load_table("db.rows_quarantine").scan().to_arrow().to_pylist()
        assert (len(bad), {row["value"] for row in bad}) == (3, {None})
        assert TAG not in repr(bad)
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.skipped_records == 1


PAGES = ("/environment/", "/jobs/", "/stages/", "/SQL/", "/executors/", "/api/v1/applications")


def _planted(spark: dict[str, str], ui: int, events: Path, face: int) -> Sections:
    sections: dict[str, dict[str, object]] = {}
    for section, name in PLANTED:
        at, key = (section, name) if name else section.rsplit(".", 1)
        sections.setdefault(at, {})[key] = reference(section, name)
    sections["http"]["listen"] = f"127.0.0.1:{face}"
    for reports in ("lineage", "signal"):  # nobody is there, which is logged
        sections[reports]["url"] = "http://127.0.0.1:1/hook"
    sections["spark"] = dict(spark)
    hashed = {"type": "fixed(32)", "from": "zone"}
    sections["table.columns"] = {"columns": {**COLUMNS, "zone_hash": hashed}}
    sections["shape"] |= {
        "where": "id >= 0",
        "hash": ["zone", "zone_hash"],
        "expect": [{"name": "small", "that": "id < 77777"}],
    }
    sections["quarantine"] = {"policy": "quarantine"}
    sections["spark.conf"] |= {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(ui),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }
    return sections  # type: ignore[return-value]


class _Seen:
    """What other users of the machine, and children, could see of processes."""

    def __init__(self) -> None:
        self.arguments: set[str] = set()
        self.environments: set[int] = set()
        self._before: set[int] = set()

    def look(self) -> None:
        """A child has its parent's environment until it becomes another program, a moment later:
        it counts if it is seen twice."""
        now: set[int] = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                words = " ".join(process.cmdline())
                if TAG in words:
                    self.arguments.add(words)
                if TAG.encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                    now.add(process.pid)
        self.environments |= now & self._before
        self._before = now


@contextmanager
def _watched() -> Iterator[_Seen]:
    seen, over = _Seen(), threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            seen.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _pages_of_the_cluster(folder: Path, payloads: Path) -> list[str]:
    """What master and workers show of the application, at the addresses that their logs name."""
    logs = "".join(_files(folder, without=payloads))
    ports = {int(port) for port in re.findall(r"WebUI .* started at http://[\w.]+:(\d+)", logs)}
    return [_page(port, path) for port in ports for path in ("/", "/json/")]


def _page(port: int, path: str, token: str = "") -> str:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token:
        asked.add_header("Authorization", f"Bearer {token}")
    with suppress(OSError), urllib.request.urlopen(asked, timeout=20) as answer:
        return str(answer.read().decode())
    return ""


def _control_topic(sink: Deployment) -> Iterator[str]:
    reader = Consumer({"bootstrap.servers": sink.bootstrap, "group.id": "searches"})
    at = TopicPartition(sink.settings.control.topic, 0, 0)
    end = reader.get_watermark_offsets(at, timeout=30)[1]
    assert end > 0
    reader.assign([at])
    while (message := reader.poll(30)) is not None and not message.error():
        yield f"{message.key()!r}{message.value()!r}{message.headers()!r}"
        if message.offset() >= end - 1:
            break
    reader.close()


def _files(folder: Path, without: Path) -> Iterator[str]:
    """Everything that the sink and Spark left there: logs, tables, metadata, event logs."""
    for path in folder.rglob("*"):
        if path.is_file() and path != without:
            yield path.read_bytes().decode(errors="replace")


def _end(sink: Deployment) -> None:
    (participant,) = sink.participants
    below = psutil.Process(participant.pid).children(recursive=True)
    participant.ask_to_stop()
    participant.ended()
    sink.participants.remove(participant)
    psutil.wait_procs(below, timeout=60)


def _free_port() -> int:
    """A port that no client of this machine is given meanwhile: those are higher."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(15_000, 30_000)))
            return int(probe.getsockname()[1])
