"""Catalogs through Java: races on Hive's swap, what is refused, what tasks are given."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_sink_table import own_table
from integration.iceberg.held_swaps import HeldSwaps
from integration.iceberg.races import (
    Committer,
    a_sleeper_undoes_nothing,
    of_two_one_lands,
    slept_through_an_heirs_commit,
)
from pyiceberg.table.update import SetPropertiesUpdate
from support.hive_metastore import HIVE_2, HIVE_3, HIVE_4, Metastores, java_for, java_with_iceberg

from headgate.control_protocol.errors import HiveCannotSwap, HiveClientUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Landed
from headgate.control_protocol.testing.contract.world import claim_table, commit, record
from headgate.operations.check.table import check_create_rights
from headgate.tables.iceberg.catalog import load_catalog, require_atomic_swap
from headgate.tables.iceberg.java_catalog import UNLOCKED, JavaCatalog
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing
from headgate.tables.storage.object_stores import file_io_properties

pytestmark = pytest.mark.integration

GATE_S = 60.0
SLOW_S = 120.0


class Gated:
    """A JVM whose table metadata is only applied, after it was checked, when the gate opens."""

    def __init__(self, catalog: JavaCatalog, wait: Any) -> None:
        checked = catalog._commit_in_java

        def committed(*arguments: Any) -> Any:
            real = catalog._table_operations

            def held(names: Any) -> Any:
                operations = real(names)
                wait()
                return operations

            catalog._table_operations = held  # type: ignore[method-assign]
            try:
                return checked(*arguments)
            finally:
                catalog._table_operations = real  # type: ignore[method-assign]

        catalog._commit_in_java = committed  # type: ignore[method-assign]


class Hive(IcebergWorld):
    """A table in a Hive metastore of some release."""

    def __init__(self, metastores: Metastores, release: str, folder: Path) -> None:
        self.jvm = java_for(release)
        self.uri = metastores.uri(release)
        properties = {"type": "hive", "uri": self.uri}
        super().__init__(folder, properties, table=own_table(), jvm=self.jvm, timeout_s=SLOW_S)


@pytest.fixture(params=[HIVE_2, pytest.param(HIVE_4, marks=pytest.mark.soak)])
def hive(request: pytest.FixtureRequest, metastores: Metastores, tmp_path: Path) -> Iterator[Hive]:
    world = Hive(metastores, request.param, tmp_path)
    yield world
    world.close()


@pytest.fixture
def committer(hive: Hive) -> Committer:
    """Held before Java checks what is required."""

    def opened(wait: Callable[[], object]) -> tuple[JavaCatalog, IcebergTable]:
        catalog = another_catalog(hive)
        Gated(catalog, wait)
        return catalog, IcebergTable(catalog, hive.name, SinkName("sink"))

    return opened


def held_on_its_way(hive: Hive, swaps: HeldSwaps) -> Committer:
    """Held behind all that Java checks: between it and the metastore."""

    def opened(wait: Callable[[], object]) -> tuple[JavaCatalog, IcebergTable]:
        catalog = another_catalog(hive, uri=swaps.uri)
        swaps.hold = wait
        return catalog, IcebergTable(catalog, hive.name, SinkName("sink"))

    return opened


def another_catalog(hive: Hive, **own: str) -> JavaCatalog:
    """Done with asking what the metastore can do: a commit comes next."""
    properties = {**hive.catalog.properties, **own}
    catalog = load_catalog("other", properties, SLOW_S, hive.jvm)
    assert isinstance(catalog, JavaCatalog)
    catalog.require_atomic_swap(hive.name)
    return catalog


@pytest.mark.wide
def test_of_two_that_read_the_same_table_in_java_one_lands(
    hive: Hive, committer: Committer
) -> None:
    of_two_one_lands(hive, committer, lambda gate: gate.wait(GATE_S))


@pytest.mark.wide
def test_a_committer_held_on_its_way_to_the_metastore_undoes_nothing(hive: Hive) -> None:
    with HeldSwaps(hive.uri) as swaps:
        a_sleeper_undoes_nothing(hive, held_on_its_way(hive, swaps))


@pytest.mark.wide
def test_a_call_that_hangs_in_java_ends_as_unknown_and_may_land_later(
    hive: Hive, committer: Committer
) -> None:
    view = claim_table(hive.open())
    awake = threading.Event()
    catalog, table = committer(lambda: awake.wait(60))
    assert isinstance(catalog, JavaCatalog)
    catalog._timeout_s = 5.0
    outcome = commit(table, view, record(1, 1, 3), hive.write_file(1))
    assert "no answer within 5 s" in str(outcome)
    awake.set()
    catalog.close()


@pytest.mark.wide
def test_a_table_whose_committers_lock_is_refused(hive: Hive) -> None:
    view = claim_table(hive.open())
    require_atomic_swap(hive.catalog, hive.name)
    (lock,) = UNLOCKED
    hive._update(SetPropertiesUpdate(updates={lock: "true"}))
    with pytest.raises(HiveCannotSwap, match="ALTER TABLE"):
        require_atomic_swap(hive.catalog, hive.name)
    with pytest.raises(HiveCannotSwap):
        commit(hive.open(), view, record(1, 1), hive.write_file(1))


@pytest.mark.wide
def test_a_metastore_that_ignores_expectations_is_refused_and_left_as_it_was(
    hive: Hive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the expectation this one answers as Hive 3.1 does."""
    monkeypatch.setattr("headgate.tables.iceberg.java_catalog._EXPECTING", {})
    before = hive.table().metadata
    with pytest.raises(HiveCannotSwap, match="does not compare and set"):
        require_atomic_swap(hive.catalog, hive.name)
    assert hive.table().metadata == before
    other = own_table()
    with pytest.raises(HiveCannotSwap):
        hive.catalog.create_namespace(other.partition(".")[0])
        hive.catalog.create_table(other, hive.table().schema())
    assert not hive.catalog.table_exists(other)


@pytest.mark.wide
def test_check_asks_a_metastore_before_there_is_a_table_and_leaves_nothing_behind(
    hive: Hive, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(hive.catalog, JavaCatalog)
    names = own_table(), f"{hive.name}_2"  # of a database that there is not, and of one
    assert all("compares and sets" in check_create_rights(hive.catalog, name) for name in names)
    monkeypatch.setattr("headgate.tables.iceberg.java_catalog._EXPECTING", {})
    for name in names:
        with pytest.raises(HiveCannotSwap, match="does not compare and set"):
            check_create_rights(hive.catalog, name)
    assert views_of(hive) == []


def views_of(hive: Hive) -> list[str]:
    """What ``check`` made, and did not remove."""
    java = hive.jvm.gateway.jvm.org.apache.hadoop.hive
    conf = hive.catalog._java.getConf()  # type: ignore[attr-defined]
    client = java.metastore.HiveMetaStoreClient(java.conf.HiveConf(conf, conf.getClass()))
    found = [
        str(name)
        for database in client.getAllDatabases()
        for name in client.getAllTables(database)
        if "headgate_check" in str(name)
    ]
    client.close()
    return found


@pytest.mark.soak
def test_hive_3_1_is_refused_before_there_is_a_table(
    metastores: Metastores, tmp_path: Path
) -> None:
    properties = {
        "type": "hive",
        "uri": metastores.uri(HIVE_3),
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    with (
        load_catalog("lake", properties, SLOW_S, java_with_iceberg()) as catalog,
        pytest.raises(HiveCannotSwap, match="does not compare and set"),
    ):
        check_create_rights(catalog, own_table())


@pytest.mark.soak
def test_hive_3_1_is_refused_and_nothing_is_left_behind(
    metastores: Metastores, tmp_path: Path
) -> None:
    properties = {
        "type": "hive",
        "uri": metastores.uri(HIVE_3),
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    with load_catalog("lake", properties, SLOW_S, java_with_iceberg()) as catalog:
        name = own_table()
        with pytest.raises(HiveCannotSwap, match="does not compare and set"):
            create_table_if_missing(catalog, name, TableDeclaration({"number": "long"}))
        assert not catalog.table_exists(name)


@pytest.mark.soak
def test_hive_3_1_would_lose_a_landed_commit(
    metastores: Metastores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why it is refused: the sleeper's swap goes through, and its heir's rows are gone."""
    monkeypatch.setattr(
        "headgate.tables.iceberg.java_catalog.require_compare_and_set", lambda *_: None
    )
    hive = Hive(metastores, HIVE_3, tmp_path)
    with HeldSwaps(hive.uri) as swaps:
        outcome = slept_through_an_heirs_commit(hive, held_on_its_way(hive, swaps))
    assert isinstance(outcome, Landed)
    assert hive.visible_file_numbers() == [1]
    hive.close()


@pytest.mark.soak
def test_hive_4_is_refused_by_name_without_a_client_of_its_own(
    metastores: Metastores, tmp_path: Path
) -> None:
    properties = {
        "type": "hive",
        "uri": metastores.uri(HIVE_4),
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    with load_catalog("lake", properties, SLOW_S, java_with_iceberg()) as catalog:
        with pytest.raises(HiveClientUnfit, match="Invalid method name: 'get_table'"):
            create_table_if_missing(catalog, own_table(), TableDeclaration({"number": "long"}))
        with pytest.raises(HiveClientUnfit, match=r"spark\.driver\.extraClassPath"):
            require_atomic_swap(catalog, own_table())


def test_what_tasks_are_given_knows_nothing_of_the_catalog(hive_uri: str, tmp_path: Path) -> None:
    secret = {"s3.endpoint": "http://127.0.0.1:1", "token": "my-secret", "uri": hive_uri}
    properties = {"type": "hive", "warehouse": f"file://{tmp_path}/w", **secret}
    with load_catalog("lake", properties, jvm=java_with_iceberg()) as catalog:
        files = catalog._load_file_io({}, f"file://{tmp_path}/w")
        sent = pickle.dumps(file_io_properties(files.properties))
    assert b"my-secret" not in sent
    assert b"thrift" not in sent
