"""Upkeep in its own thread: a commit takes no longer, and what is due goes all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_sink_table import own_table
from pyiceberg.table.update import SetPropertiesUpdate
from support.counting_proxy import CountingProxy, kinds
from support.object_store import ObjectStore

from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.iceberg.maintenance import snapshot_expiry
from headgate.tables.iceberg.table import IcebergTable

pytestmark = pytest.mark.integration

KEEP, DUE = 2, 3
ASKED = {
    "history.expire.max-snapshot-age-ms": "1",
    "history.expire.min-snapshots-to-keep": str(KEEP),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "2",
}
OF_A_COMMIT = {"PUT list": 1, "PUT metadata": 1}


@pytest.fixture
def world(
    tmp_path: Path,
    object_store: ObjectStore,
    proxy: CountingProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[IcebergWorld]:
    monkeypatch.setattr(snapshot_expiry, "DUE_MIN", DUE)
    world = IcebergWorld(tmp_path, object_store.s3(proxy.uri), table=own_table())
    update = SetPropertiesUpdate(updates=ASKED)
    world.catalog.commit_table(world.table(), (), (update,))
    yield world
    world.close()


def the_thread(table: Any) -> threading.Thread | None:
    thread: threading.Thread | None = table._upkeep._thread
    return thread


def rested(table: Any) -> None:
    """Wait until nothing is under way."""
    while (thread := the_thread(table)) is not None:
        thread.join(60)


def test_a_commit_does_not_wait_for_what_is_cleared_away(
    world: IcebergWorld, proxy: CountingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    really = snapshot_expiry.SnapshotExpiry._maintain_table

    def held(self: snapshot_expiry.SnapshotExpiry, table: Any) -> None:
        assert may_go_on.wait(120)
        really(self, table)

    monkeypatch.setattr(snapshot_expiry.SnapshotExpiry, "_maintain_table", held)
    table: Any = world.open()
    view = claim_table(table)
    for number in range(1, 12):
        proxy.forget()
        view = require_landed(commit(table, view, record(1, number, number)))
        assert kinds(proxy.exchanges) == OF_A_COMMIT  # though nothing is cleared away yet
    assert len(world.table().metadata.snapshots) == 12
    proxy.forget()
    may_go_on.set()
    rested(table)
    assert len(world.table().metadata.snapshots) == KEEP
    deletes = [kind for kind in proxy_kinds(proxy) if kind.startswith("DELETE")]
    assert "DELETE many" in deletes
    assert len(deletes) <= 5  # of a dozen manifest lists and as many metadata files


def test_what_was_judged_is_judged_again_when_commits_overtook_it(
    world: IcebergWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    table: Any = world.open()
    rival = IcebergTable(world.catalog, world.name, table._sink, threads=False)
    really, overtaken = snapshot_expiry.find_files_only_reachable_from, []

    def meanwhile(*arguments: Any) -> Any:
        files = really(*arguments)
        if not overtaken:  # the sink's next commit lands while files are being looked up
            overtaken.append(require_landed(commit(rival, rival.read(), record(1, 90, 90))))
        return files

    monkeypatch.setattr(snapshot_expiry, "find_files_only_reachable_from", meanwhile)
    rival._upkeep._closing = True  # it only commits
    view = claim_table(table)
    for number in range(1, KEEP + DUE):
        view = require_landed(commit(table, view, record(1, number, number)))
    rested(table)
    assert overtaken
    metadata = world.table().metadata
    assert len(metadata.snapshots) == KEEP + 1
    for snapshot in metadata.snapshots:
        assert world.table().io.new_input(snapshot.manifest_list).exists()


def test_closing_waits_for_what_is_under_way(world: IcebergWorld) -> None:
    table: Any = world.open()
    view = claim_table(table)
    for number in range(1, KEEP + DUE):
        view = require_landed(commit(table, view, record(1, number, number)))
    thread = the_thread(table)
    table.close()
    assert thread is None or not thread.is_alive()


def proxy_kinds(proxy: CountingProxy) -> list[str]:
    return [exchange.kind for exchange in proxy.exchanges]
