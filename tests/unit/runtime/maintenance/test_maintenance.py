"""Maintenance as people meet it: the thread beside the commits, and ``headgate maintain``."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.local_catalog import local_catalog
from support.maintained import Maintained, settings, text

from headgate.control_protocol.table_format import Use
from headgate.operations.cli.main import main
from headgate.runtime.maintenance.scheduler import Maintenance
from headgate.runtime.maintenance.table_maintenance import Done
from headgate.runtime.sink_tables import SinkTables
from headgate.tables.iceberg.commit_mutex import CommitLock
from headgate.tables.iceberg.table_format import IcebergFormat

WITHIN_S = 120


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Maintained]:
    local = local_catalog(tmp_path)
    made = settings(tmp_path, "compact = true\norphans = true\ninterval_ms = 1000\n")
    yield Maintained(local.catalog, made)
    local.catalog.close()


def test_beside_a_stream_files_stay_few_and_nothing_is_lost(sink: Maintained) -> None:
    tables = SinkTables.from_open_catalog(sink.settings, sink.catalog)
    assert isinstance(tables.primary_format, IcebergFormat)
    gates = tables.primary_format.commit_locks
    sink.sink.close()
    sink.sink = tables.open_table("db.trips", Use.SECONDARY)
    rounds = list[tuple[Done, bool]]()
    maintenance = Maintenance(sink.settings, sink.catalog, gates, lambda *told: rounds.append(told))
    until_s = time.monotonic() + WITHIN_S
    try:
        sink.commits(24)
        while "replace" not in sink.snapshots():  # whoever commits without a pause wins each race
            time.sleep(0.05)
            assert time.monotonic() < until_s, "no compaction landed"
        while not any(done.compacted_files for done, _ in rounds):
            time.sleep(0.05)
            assert time.monotonic() < until_s, "no round that compacted has ended"
        sink.commits(3)
    finally:
        maintenance.close()
        sink.sink.close()

    small = [path for path in sink.live() if "compacted" not in path.parts]
    assert len(small) < sink.number
    assert {(done.table, failed) for done, failed in rounds} == {("db.trips", False)}
    sink.view = sink.sink.read()
    sink.assert_whole()


def test_a_gate_opens_behind_a_commit_or_when_patience_is_over() -> None:
    gate = CommitLock()
    gate.wait_for_commit_unless_recent(0.01)
    opened = threading.Event()

    def wait() -> None:
        gate.wait_for_commit_unless_recent(WITHIN_S)
        opened.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not opened.wait(0.01):
        gate.note_landing()
    thread.join()


def test_headgate_maintain_does_all_three_and_tells(sink: Maintained, tmp_path: Path) -> None:
    for path in map(Path, (file.path.removeprefix("file://") for file in sink.write_files(5))):
        os.utime(path, (1, 1))
    sink.next_offset = 0
    sink.commits(5)
    sink_file = tmp_path / "trips.toml"
    sink_file.write_text(text(tmp_path))

    said = CliRunner().invoke(main, ["maintain", str(sink_file), "--dry-run"])
    assert said.exit_code == 0, said.output
    assert "db.trips: would: 5 small files into about 1, 0 snapshots expired, 1 orphan" in (
        said.output
    )
    assert (len(sink.stored_files()), len(sink.live())) == (6, 5)

    done = CliRunner().invoke(main, ["maintain", str(sink_file), "--json"])
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.output)
    assert (told["compacted_files"], told["into_files"], told["orphans"]) == (5, 1, 1)
    assert len(sink.stored_files()) == 5 + 1
    sink.assert_whole()


def test_only_what_was_asked_for(sink: Maintained, tmp_path: Path) -> None:
    sink.commits(5)
    sink_file = tmp_path / "trips.toml"
    sink_file.write_text(text(tmp_path))
    asked = ["maintain", str(sink_file), "--only", "orphans", "--table", "db.trips"]

    assert CliRunner().invoke(main, asked).exit_code == 0
    assert len(sink.live()) == 5

    wrong = CliRunner().invoke(main, ["maintain", str(sink_file), "--table", "db.other"])
    assert wrong.exit_code == 2
    assert "HG-147" in wrong.output
