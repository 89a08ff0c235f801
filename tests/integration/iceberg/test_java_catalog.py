"""Catalogs that Java speaks to: races on Hive's swap, what is refused, what tasks are given."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_sink_table import own_table
from hive_metastore import java_with_iceberg
from integration.iceberg.races import Committer, a_sleeper_undoes_nothing, of_two_one_lands
from pyiceberg.table.update import SetPropertiesUpdate

from headgate.control_protocol.errors import HiveCannotSwap
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.testing.contract.world import claimed, commit, record
from headgate.tables.iceberg.catalog import load_catalog, refuse_swapless
from headgate.tables.iceberg.hive_swap import UNLOCKED
from headgate.tables.iceberg.java_catalog import JavaCatalog
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.stores.object_stores import for_files

pytestmark = pytest.mark.integration

GATE_S = 60.0


class Gated:
    """A JVM whose table metadata is only applied, after it was checked, when the gate opens."""

    def __init__(self, catalog: JavaCatalog, wait: Any) -> None:
        checked = catalog._committed

        def committed(*arguments: Any) -> Any:
            real = catalog._operations

            def held(names: Any) -> Any:
                operations = real(names)
                wait()
                return operations

            catalog._operations = held  # type: ignore[method-assign]
            try:
                return checked(*arguments)
            finally:
                catalog._operations = real  # type: ignore[method-assign]

        catalog._committed = committed  # type: ignore[method-assign]


@pytest.fixture
def hive(hive_uri: str, tmp_path: Path) -> Iterator[IcebergWorld]:
    properties = {"type": "hive", "uri": hive_uri}
    world = IcebergWorld(tmp_path, properties, table=own_table(), jvm=java_with_iceberg())
    yield world
    world.close()


@pytest.fixture
def committer(hive: IcebergWorld) -> Committer:
    """Made anew for each committer, and slow to give up."""

    def opened(wait: Callable[[], object]) -> tuple[JavaCatalog, IcebergTable]:
        properties = dict(hive.catalog.properties)
        catalog = load_catalog("other", properties, jvm=java_with_iceberg())
        assert isinstance(catalog, JavaCatalog)
        catalog.refuse_swapless(hive.name)  # so that the gate holds the commit, not the question
        catalog._timeout_s = 120.0
        Gated(catalog, wait)
        return catalog, IcebergTable(catalog, hive.name, SinkName("sink"))

    return opened


def test_point_7_of_two_that_read_the_same_table_in_java_one_lands(
    hive: IcebergWorld, committer: Committer
) -> None:
    of_two_one_lands(hive, committer, lambda gate: gate.wait(GATE_S))


def test_point_7_a_committer_that_slept_in_java_undoes_nothing(
    hive: IcebergWorld, committer: Committer
) -> None:
    a_sleeper_undoes_nothing(hive, committer)


def test_point_7_a_call_that_hangs_in_java_ends_as_unknown_and_may_land_later(
    hive: IcebergWorld, committer: Committer
) -> None:
    view = claimed(hive.open())
    awake = threading.Event()
    catalog, table = committer(lambda: awake.wait(60))
    assert isinstance(catalog, JavaCatalog)
    catalog._timeout_s = 5.0
    outcome = commit(table, view, record(1, 1, 3), hive.file(1))
    assert "no answer within 5 s" in str(outcome)
    awake.set()
    catalog.close()


def test_point_7_a_table_whose_committers_lock_is_refused(hive: IcebergWorld) -> None:
    view = claimed(hive.open())
    refuse_swapless(hive.catalog, hive.name)
    (lock,) = UNLOCKED
    hive._update(SetPropertiesUpdate(updates={lock: "true"}))
    with pytest.raises(HiveCannotSwap, match="ALTER TABLE"):
        refuse_swapless(hive.catalog, hive.name)
    with pytest.raises(HiveCannotSwap):
        commit(hive.open(), view, record(1, 1), hive.file(1))


def test_point_7_a_metastore_that_ignores_expectations_is_refused_and_left_as_it_was(
    hive: IcebergWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the expectation this one answers as Hive 3.1 does."""
    monkeypatch.setattr("headgate.tables.iceberg.hive_swap._EXPECTING", {})
    before = hive.table().metadata
    with pytest.raises(HiveCannotSwap, match="does not compare and set"):
        refuse_swapless(hive.catalog, hive.name)
    assert hive.table().metadata == before
    other = own_table()
    with pytest.raises(HiveCannotSwap):
        hive.catalog.create_namespace(other.partition(".")[0])
        hive.catalog.create_table(other, hive.table().schema())
    assert not hive.catalog.table_exists(other)


def test_point_7_what_tasks_are_given_knows_nothing_of_the_catalog(
    hive_uri: str, tmp_path: Path
) -> None:
    secret = {"s3.endpoint": "http://127.0.0.1:1", "token": "my-secret", "uri": hive_uri}
    properties = {"type": "hive", "warehouse": f"file://{tmp_path}/w", **secret}
    with load_catalog("lake", properties, jvm=java_with_iceberg()) as catalog:
        files = catalog._load_file_io({}, f"file://{tmp_path}/w")
        sent = pickle.dumps(for_files(files.properties))
    assert b"my-secret" not in sent
    assert b"thrift" not in sent
