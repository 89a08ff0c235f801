"""An audit on an object store asks for each thing once, and for many at once: counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from contract.iceberg_table_world import ROWS_PER_FILE, IcebergWorld
from contract.test_sink_table import own_table
from support.counting_proxy import CountingProxy, kinds
from support.object_store import BUCKET, ObjectStore

from headgate.control_protocol.identifiers import Epoch, SinkName
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.operations.audit.files import check_files_of_commits, check_live_files
from headgate.tables.iceberg.pending_manifests import find_undecided_manifests
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.storage import s3_file_io
from headgate.tables.storage.s3_file_io import KeptFiles

pytestmark = pytest.mark.integration

COMMITS = 6
TESTS = Path(__file__).parents[2]


@pytest.fixture
def world(
    tmp_path: Path,
    object_store: ObjectStore,
    proxy: CountingProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[IcebergWorld]:
    """A table of some commits, seen by a process that has read nothing of it."""
    world = IcebergWorld(tmp_path, object_store.s3(proxy.uri), table=own_table())
    table = world.open()
    view = claim_table(table)
    for number in range(1, COMMITS + 1):
        view = require_landed(
            commit(table, view, record(1, number, ROWS_PER_FILE), world.write_file(number))
        )
    monkeypatch.setattr(s3_file_io, "KEPT", KeptFiles())
    proxy.forget()
    yield world
    world.close()


def test_each_commit_and_file_is_asked_for_once(world: IcebergWorld, proxy: CountingProxy) -> None:
    reader = IcebergReader(world.table(), SinkName("sink"), "main")
    history, files = reader.history(), reader.live_files()
    assert check_files_of_commits(reader, history, lambda *_: None) == []
    assert check_live_files(reader, files, lambda *_: None) == ([], frozenset())
    assert len(files) == COMMITS
    # The metadata is not asked for: this process has written it.
    assert kinds(proxy.exchanges) == {
        "GET list": COMMITS,
        "GET manifest": COMMITS,
        "GET data": COMMITS,
    }


def test_damage_is_found_by_the_one_request(world: IcebergWorld, object_store: ObjectStore) -> None:
    table = world.table()
    reader = IcebergReader(table, SinkName("sink"), "main")
    files = reader.live_files()
    gone, cut, spoilt, empty, *_ = files
    table.io.delete(gone.path)
    for file, data in ((cut, b"short"), (spoilt, b"x" * spoilt.size_bytes), (empty, b"")):
        with table.io.new_output(file.path).create() as stream:
            stream.write(data)
    findings, damaged = check_live_files(reader, files, lambda *_: None)
    assert damaged == {gone.path, cut.path, spoilt.path, empty.path}
    assert {finding.what for finding in findings} == {
        "file-missing",
        "file-size",
        "file-unreadable",
    }


@pytest.mark.wide
@pytest.mark.parametrize(
    ("files", "mb"),
    [(5_000, 40), pytest.param(100_000, 200, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_a_table_of_many_files_is_audited_in_little_memory(
    tmp_path: Path, files: int, mb: int
) -> None:
    """A plan of the whole table alone would take more than three kilobytes for each, and so would
    a manifest that is decoded at once."""
    command = [sys.executable, "-m", "integration.operations.many_files", tmp_path, str(files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    print(seen)
    assert (seen["files"], seen["findings"], seen["again"]) == (files, 0, files - 1)
    assert seen["peak_mb"] - seen["before_mb"] <= mb, seen


def test_orphans_are_looked_for_below_their_own_folder_only(
    world: IcebergWorld, proxy: CountingProxy
) -> None:
    table = world.table()
    root = f"{table.metadata.location}/metadata/headgate/sink/{table.metadata.table_uuid}"
    proxy.forget()
    assert find_undecided_manifests(table, SinkName("sink"), Epoch(9), frozenset()) == []
    listed = [unquote(request.path) for request in proxy.seen if "list-type" in request.path]
    (path,) = listed
    assert f"prefix={root.removeprefix(f's3://{BUCKET}/')}/" in path
