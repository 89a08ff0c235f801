"""Another package's kind of table is filled, stopped, started and audited like ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import folder_kind
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.deployment import Deployment
from served_page import assert_served_without_rollback

from headgate.operations.cli import main
from headgate.operations.stop import start, stop
from headgate.sink.process import run

pytestmark = pytest.mark.integration


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


def test_point_1_a_table_of_another_package_is_filled_and_judged(
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
        stop(sink.settings)
        sink.produce()
        assert sink.lag() == 1_000
        start(sink.settings)
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
