"""Commits through Iceberg's REST catalog, and through a proxy that loses and repeats answers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from integration.iceberg.rest_server import LyingProxy
from integration.iceberg.sink_commits import SinkOnTable, record
from integration.readers import read_with_duckdb
from pyiceberg.catalog import Catalog

from headgate.control_protocol.errors import TableMissing, Unreachable
from headgate.control_protocol.ports import CommitAttempt, Landed, Refused, Unknown
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_format import IcebergFormat

pytestmark = pytest.mark.integration

COLUMNS = {"id": "long", "zone": "string"}


@pytest.fixture
def catalog(lying_proxy: LyingProxy) -> Iterator[Catalog]:
    properties = {"type": "rest", "uri": lying_proxy.uri}
    # Long enough for a server beside a full machine; one test waits for its end.
    with load_catalog("rest", properties, timeout_s=20) as catalog:
        yield catalog


@pytest.fixture
def sink(catalog: Catalog, unique_name: str) -> SinkOnTable:
    identifier = f"{unique_name.replace('-', '_')}.trips"
    return SinkOnTable.claimed(catalog, COLUMNS, ["zone"], identifier=identifier)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "zone": ["a"] * len(ids)})


def ids(sink: SinkOnTable) -> list[int]:
    return sorted(read_with_duckdb(sink.load().metadata_location)["id"].to_pylist())


def test_commits_land_and_are_read_elsewhere(sink: SinkOnTable) -> None:
    sink.commit(rows(1, 2))
    sink.commit(rows(3))
    assert ids(sink) == [1, 2, 3]
    assert sink.table.read() == sink.view


def test_namespaces_are_listed_level_by_level(catalog: Catalog, unique_name: str) -> None:
    root = unique_name.replace("-", "_")
    for namespace in (root, f"{root}.eu", f"{root}.eu.raw", f"{root}.us"):
        catalog.create_namespace(namespace)
    found = IcebergFormat(catalog)
    assert root in found.short_namespace_names_in("")
    assert set(found.short_namespace_names_in(root)) == {"eu", "us"}
    assert list(found.short_namespace_names_in(f"{root}.eu")) == ["raw"]
    assert list(found.short_namespace_names_in(f"{root}.us")) == []
    assert list(found.short_namespace_names_in(f"{root}.missing")) == []


def test_a_foreign_append_is_followed_by_a_landed_repetition(sink: SinkOnTable) -> None:
    sink.load().append(rows(7))
    attempt = sink.attempt(rows(1))
    assert isinstance(sink.table.commit(attempt), Refused)
    repeated = CommitAttempt(sink.table.read(), attempt.record, attempt.files)
    sink.land(sink.table.commit(repeated))
    assert ids(sink) == [1, 7]


@pytest.mark.parametrize(
    ("lie", "did_land"),
    [
        ("drop-before", False),
        ("drop-after", True),
        ("502-before", False),
        ("503-after", True),
        ("429-before", False),
        ("hang-after", True),
    ],
)
def test_a_lost_answer_is_unknown_whichever_way_it_went(
    sink: SinkOnTable, lying_proxy: LyingProxy, lie: str, did_land: bool
) -> None:
    attempt = sink.attempt(rows(1))
    lying_proxy.lie = lie
    assert isinstance(sink.table.commit(attempt), Unknown)
    view = sink.table.read()
    assert attempt.record.is_same_commit(view.record) is did_land
    if not did_land:
        again = CommitAttempt(view, attempt.record, attempt.files)
        view = sink.land(sink.table.commit(again))
    sink.view = view
    sink.commit(rows(2))
    assert ids(sink) == [1, 2]


def test_a_commit_that_a_proxy_sent_twice_has_landed_and_keeps_its_manifests(
    sink: SinkOnTable, lying_proxy: LyingProxy
) -> None:
    lying_proxy.lie = "twice"
    attempt = sink.attempt(rows(1, 2))
    outcome = sink.table.commit(attempt)  # the second answer says that the tag has moved
    assert isinstance(outcome, Landed)
    assert outcome.view.record == attempt.record
    assert ids(sink) == [1, 2]


def test_a_server_that_is_gone_is_unreachable_and_a_missing_table_is_named(
    catalog: Catalog, lying_proxy: LyingProxy
) -> None:
    with pytest.raises(TableMissing):
        IcebergTable(catalog, "no.table", record(1, 0).sink).read()
    with pytest.raises(Unreachable):
        load_catalog("rest", {"type": "rest", "uri": "http://127.0.0.1:1"})
