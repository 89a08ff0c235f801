"""What the catalog itself refuses: others move the table after the committer's last look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from integration.iceberg.interrupted import InterruptedCatalog
from integration.iceberg.rest_server import LyingProxy
from integration.iceberg.sink_commits import SINK, SinkOnTable, record
from integration.readers import read_with_duckdb
from pyiceberg.catalog import Catalog
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetSnapshotRefUpdate
from support.local_catalog import LocalCatalog

from headgate.control_protocol.identifiers import tag_name
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Refused,
    Unknown,
)
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable

pytestmark = pytest.mark.integration


@pytest.fixture(params=["sql", "rest"])
def catalog(request: pytest.FixtureRequest) -> Iterator[Catalog]:
    if request.param == "sql":
        local: LocalCatalog = request.getfixturevalue("sqlite_catalog")
        yield local.catalog
    else:
        proxy: LyingProxy = request.getfixturevalue("lying_proxy")
        with load_catalog("rest", {"type": "rest", "uri": proxy.uri}) as catalog:
            yield catalog


class Duel:
    """A committer that is interrupted between look and call, and its rival on the same table."""

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self.rival = SinkOnTable.claimed(catalog, {"id": "long"}, identifier=identifier)
        self.catalog = InterruptedCatalog(catalog)
        self.table = IcebergTable(self.catalog.as_catalog(), identifier, SINK)

    def commit(self, *ids: int, meanwhile: Callable[[], object] | None = None) -> CommitOutcome:
        files = self.rival.attempt(rows(*ids)).files
        attempt = CommitAttempt(self.table.read(), record(1, 9), files)
        self.catalog.before, sent = meanwhile, self.catalog.calls
        outcome = self.table.commit(attempt)
        assert self.catalog.calls == sent + 1  # it was sent, once, and the catalog decided
        for file in attempt.files:
            assert Path(file.path.removeprefix("file://")).exists()
        return outcome

    def ids(self) -> list[int]:
        location = self.rival.load().metadata_location
        return sorted(read_with_duckdb(location)["id"].to_pylist())


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture
def duel(catalog: Catalog, unique_name: str) -> Duel:
    return Duel(catalog, f"{unique_name.replace('-', '_')}.trips")


def test_a_rivals_commit_refuses_ours_and_our_manifests_go(duel: Duel) -> None:
    files: set[str] = set()

    def meanwhile() -> None:
        ours = duel.rival.files_of_metadata() - before
        duel.rival.commit(rows(1))
        files.update(duel.rival.files_of_metadata() - ours)

    before = duel.rival.files_of_metadata()
    assert isinstance(duel.commit(5, meanwhile=meanwhile), Refused)
    assert duel.rival.files_of_metadata() == files
    assert duel.ids() == [1]


def test_a_foreign_append_refuses_ours(duel: Duel) -> None:
    outcome = duel.commit(5, meanwhile=lambda: duel.rival.load().append(rows(7)))
    assert isinstance(outcome, Refused)
    assert duel.ids() == [7]


def test_a_commit_to_another_branch_takes_our_sequence_number(duel: Duel) -> None:
    table = duel.rival.load()
    table.manage_snapshots().create_branch(duel.rival.view.head, "audit").commit()
    outcome = duel.commit(5, meanwhile=lambda: duel.rival.load().append(rows(7), branch="audit"))
    assert isinstance(outcome, Refused)
    assert duel.ids() == []


def test_a_tag_that_an_operator_moved_refuses_ours(duel: Duel) -> None:
    first = duel.rival.view
    duel.rival.commit(rows(1))
    move = SetSnapshotRefUpdate(
        ref_name=tag_name(SINK),
        type="tag",
        snapshot_id=first.head,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    commit = duel.rival.catalog.commit_table
    outcome = duel.commit(5, meanwhile=lambda: commit(duel.rival.load(), (), (move,)))
    assert isinstance(outcome, Refused)
    assert duel.ids() == [1]


def test_a_tag_that_an_operator_deleted_refuses_ours(duel: Duel) -> None:
    remove = RemoveSnapshotRefUpdate(ref_name=tag_name(SINK))
    commit = duel.rival.catalog.commit_table
    outcome = duel.commit(5, meanwhile=lambda: commit(duel.rival.load(), (), (remove,)))
    assert isinstance(outcome, Refused)


def test_a_recreated_table_refuses_ours(duel: Duel) -> None:
    def meanwhile() -> None:
        duel.rival.catalog.drop_table(duel.rival.identifier)
        SinkOnTable.claimed(duel.rival.catalog, {"id": "long"}, identifier=duel.rival.identifier)

    assert isinstance(duel.commit(5, meanwhile=meanwhile), Refused)
    assert duel.ids() == []


def test_a_dropped_table_is_no_landing(duel: Duel) -> None:
    drop = duel.rival.catalog.drop_table
    assert isinstance(duel.commit(5, meanwhile=lambda: drop(duel.rival.identifier)), Unknown)


def test_a_changed_property_does_not_stop_ours_for_good(duel: Duel) -> None:
    def meanwhile() -> None:
        with duel.rival.load().transaction() as transaction:
            transaction.set_properties({"owner": "somebody"})

    outcome = duel.commit(
        5, meanwhile=meanwhile
    )  # the REST server takes it; a SQL catalog does not
    if not isinstance(outcome, Landed):
        assert isinstance(duel.commit(5), Landed)
    assert duel.ids() == [5]
    assert duel.rival.load().properties["owner"] == "somebody"
