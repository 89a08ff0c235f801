"""An audit on an object store asks once for each thing, and for many at once: counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.iceberg_table_world import ROWS_PER_FILE, IcebergWorld
from contract.test_sink_table import claimed, commit, landed, own_table, record
from counting_proxy import CountingProxy, kinds
from object_store import ObjectStore

from headgate.control_protocol.identifiers import SinkName
from headgate.operations.audit_files import examine_commits, examine_live, live_files
from headgate.operations.history import read_history
from headgate.tables.stores import s3_files
from headgate.tables.stores.s3_files import KeptFiles

pytestmark = pytest.mark.integration

COMMITS = 6


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[CountingProxy]:
    with CountingProxy(object_store.port) as proxy:
        yield proxy


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
    view = claimed(table)
    for number in range(1, COMMITS + 1):
        view = landed(commit(table, view, record(1, number, ROWS_PER_FILE), world.file(number)))
    monkeypatch.setattr(s3_files, "KEPT", KeptFiles())
    proxy.forget()
    yield world
    world.close()


def test_point_8_each_commit_and_file_is_asked_for_once(
    world: IcebergWorld, proxy: CountingProxy
) -> None:
    table = world.table()
    history = read_history(table, SinkName("sink"), "main")
    files = live_files(table, history.head)
    assert examine_commits(table, history, lambda *_: None) == []
    assert examine_live(table.io, files, lambda *_: None) == ([], frozenset())
    assert len(files) == COMMITS
    assert kinds(proxy.exchanges) == {
        "GET metadata": 1,
        "GET list": COMMITS,
        "GET manifest": COMMITS,
        "GET data": COMMITS,
    }


def test_point_8_damage_is_found_by_the_one_request(
    world: IcebergWorld, object_store: ObjectStore
) -> None:
    table = world.table()
    files = live_files(table, table.metadata.refs["main"].snapshot_id)
    gone, cut, spoilt, *_ = files
    table.io.delete(gone.path)
    for file, data in ((cut, b"short"), (spoilt, b"x" * spoilt.size_bytes)):
        with table.io.new_output(file.path).create() as stream:
            stream.write(data)
    findings, damaged = examine_live(table.io, files, lambda *_: None)
    assert damaged == {gone.path, cut.path, spoilt.path}
    assert {finding.what for finding in findings} == {
        "file-missing",
        "file-size",
        "file-unreadable",
    }
