"""Another package's kind of table is filled, stopped, started and audited like ours."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.sink_file import record
from support import able_folder, folder_kind
from support.served_page import assert_served_without_rollback

from headgate.operations.access.tables import open_tables_for_reading
from headgate.operations.cli.main import main
from headgate.operations.control.stop import start_sink, stop_sink
from headgate.operations.demo.producer import produce
from headgate.runtime.process import run

pytestmark = pytest.mark.integration

NEW = range(500, 1_000)


@contextmanager
def running(sink: Deployment) -> Iterator[None]:
    """A participant in a thread: a process of its own would not see the package."""
    ending, failures = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            run(sink.settings, stop=ending)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=work, name="participant")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    assert failures == []


def test_a_table_of_another_package_is_filled_and_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deploy: Deploy
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    folder_kind.install(package, monkeypatch)
    location = tmp_path / "table"
    sink = deploy(
        {
            "catalog.properties": {"type": None, "uri": None, "warehouse": None},
            "table": {"type": "folder", "location": str(location)},
        }
    )
    sink.rows = lambda: ds.dataset(location / "data").to_table()  # type: ignore[method-assign]
    with running(sink):
        sink.produce()
        sink.wait_until_lag_zero()
        stop_sink(sink.settings)
        sink.produce()
        assert sink.lag() == 1_000
        start_sink(sink.settings)
        sink.wait_until_lag_zero()
    with running(sink):
        sink.produce()
        sink.wait_until_lag_zero()
    assert sink.judge().rows == 3_000
    invoke = CliRunner().invoke
    for command in ("status", "audit", "check"):
        done = invoke(main, [command, str(sink.sink_file)])
        assert done.exit_code == 0, done.output
    assert_served_without_rollback(sink.settings, 3_000)


def test_a_kind_that_declares_branches_and_new_columns_is_asked_for_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deploy: Deploy
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    able_folder.install(package, monkeypatch)
    location = tmp_path / "table"
    sink = deploy(
        {
            "catalog.properties": {"type": None, "uri": None, "warehouse": None},
            "table": {"type": "folder", "location": str(location), "branch": "dev"},
            "table.schema": {"unknown_fields": "evolve"},
        }
    )
    with running(sink):
        sink.produce(500)
        sink.wait_until_lag_zero()
        tipped = (json.dumps({**json.loads(record(n)), "tip": n + 0.5}).encode() for n in NEW)
        produce(sink.bootstrap, sink.topics[0], tipped, partitions=sink.partitions)
        sink.wait_until_lag_zero()
    with open_tables_for_reading(sink.settings) as opened:
        reader = opened.reader
        assert reader.columns()[-1] == "tip"
        _, files = reader.scan(["id", "tip"])
        found = [row for file in files for rows in file.batches() for row in rows.to_pylist()]
    tips = {row["id"]: row["tip"] for row in found if "tip" in row}
    assert tips == {n: n + 0.5 for n in NEW}
    assert len(found) == 1_000
    assert not (location / "log").exists(), "main has nothing"
    invoke = CliRunner().invoke
    for command in ("status", "audit", "check"):
        done = invoke(main, [command, str(sink.sink_file)])
        assert done.exit_code == 0, done.output
        assert command != "status" or "(dev)" in done.output
