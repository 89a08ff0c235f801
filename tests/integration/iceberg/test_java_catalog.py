"""Catalogs that Java speaks to: races on Hive's swap, what is refused, what tasks are given."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_sink_table import own_table
from hive_metastore import java_with_iceberg
from pyiceberg.table.update import SetPropertiesUpdate

from headgate.control_protocol.errors import HiveCannotSwap
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitOutcome, Landed
from headgate.control_protocol.testing.contract.world import claimed, commit, landed, record
from headgate.tables.iceberg.catalog import load_catalog, refuse_swapless
from headgate.tables.iceberg.hive_swap import UNLOCKED
from headgate.tables.iceberg.java_catalog import JavaCatalog
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.stores.object_stores import for_files

pytestmark = pytest.mark.integration

ROUNDS = 4
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


def committer(world: IcebergWorld, wait: Any) -> tuple[JavaCatalog, IcebergTable]:
    properties = dict(world.catalog.properties)
    catalog = load_catalog("other", properties, jvm=java_with_iceberg())
    assert isinstance(catalog, JavaCatalog)
    catalog.refuse_swapless(world.name)  # so that the gate holds the commit, not the question
    Gated(catalog, wait)
    return catalog, IcebergTable(catalog, world.name, SinkName("sink"))


def test_point_7_of_two_that_read_the_same_table_in_java_one_lands(hive: IcebergWorld) -> None:
    claimed(hive.open())
    expected: list[int] = []
    for number in range(1, ROUNDS + 1):
        gate = Barrier(2)
        view = hive.open().read()
        numbers = [number * 10, number * 10 + 1]
        files = [hive.file(each) for each in numbers]
        racers = [committer(hive, lambda: gate.wait(GATE_S)) for _ in files]  # noqa: B023 - of this round

        def race(racer: int) -> CommitOutcome:
            return commit(racers[racer][1], view, record(1, number, number), files[racer])  # noqa: B023 - of this round

        with ThreadPoolExecutor(2) as threads:
            outcomes = list(threads.map(race, range(2)))
        assert Counter(isinstance(o, Landed) for o in outcomes) == {True: 1, False: 1}, outcomes
        expected += [n for n, o in zip(numbers, outcomes, strict=True) if isinstance(o, Landed)]
        for catalog, _ in racers:
            catalog.close()
    assert hive.numbers() == expected


def test_point_7_a_committer_that_slept_in_java_undoes_nothing(hive: IcebergWorld) -> None:
    """As ``hms_pause`` of pyiceberg's Hive, where the sleeper overwrote what had landed."""
    view = claimed(hive.open())
    asleep, awake = threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        assert awake.wait(60)

    catalog, zombie = committer(hive, sleep)
    catalog._timeout_s = 120.0
    heir = hive.open()
    files = [hive.file(1), hive.file(2), hive.file(3)]
    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(commit, zombie, view, record(1, 1, 3), files[0])
        assert asleep.wait(60)
        view = landed(commit(heir, heir.read(), record(2, 0)))
        view = landed(commit(heir, view, record(2, 1, 3), files[1]))
        awake.set()
        assert not isinstance(outcome.result(60), Landed)
    landed(commit(heir, view, record(2, 2, 6), files[2]))
    assert hive.numbers() == [2, 3]
    catalog.close()


def test_point_7_a_call_that_hangs_in_java_ends_as_unknown_and_may_land_later(
    hive: IcebergWorld,
) -> None:
    view = claimed(hive.open())
    awake = threading.Event()
    catalog, table = committer(hive, lambda: awake.wait(60))
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
