"""Tables that records change, read by other readers: every row is the last of its key."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.readers import IcebergSpark, read_with_duckdb, read_with_pyiceberg
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import FileFormat
from pyiceberg.table import CommitTableResponse
from support.delete_files import delete_first_row
from support.keyed_world import COLUMNS, NAME, SINK, Event, KeyedWorld, Source, keyed_table, rows_of
from support.local_catalog import LocalCatalog, local_catalog

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import KeyChanged, KeyIndexFull
from headgate.control_protocol.events import FileKind
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Landed, Refused, Staging, Unknown
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing
from headgate.tables.iceberg.upsert import key_index, upsert_commit
from headgate.tables.iceberg.upsert.index_memory import IndexMemory
from headgate.tables.iceberg.upsert.key_runs import ROW_BYTES
from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("version", "partition_by", "key"),
    [
        (2, (), ("id",)),
        pytest.param(3, ("zone",), ("name",), marks=pytest.mark.wide),
        pytest.param(2, ("bucket(4, id)",), ("name", "id"), marks=pytest.mark.wide),
        (3, ("bucket(4, id)",), ("name", "id")),
    ],
)
@pytest.mark.parametrize("held", [pytest.param(None, marks=pytest.mark.wide), 20])
def test_key_1_after_every_commit_the_table_is_the_fold_of_its_source(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    partition_by: tuple[str, ...],
    key: tuple[str, ...],
    held: int | None,
) -> None:
    """Also where almost all keys are in files (KEY-7)."""
    if held is not None:
        monkeypatch.setattr(key_index, "HELD_ROWS_MAX", held)
        monkeypatch.setattr(key_index, "MERGED_RUNS", 3)
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, version, partition_by, key)
    chance = random.Random(f"{version}{partition_by}{key}")
    live = 0
    for number in range(12):
        events = [_event(chance, key) for _ in range(chance.randint(1, 60))]
        cut = chance.randint(0, len(events))
        counts = world.commit(events[:cut], events[cut:])
        live += counts.inserted - counts.deleted
        assert (live, counts.record_count) == (len(world.source.fold), len(events))
        _assert_one_delete_file_each(world)
        if number % 4 == 3:
            _check(world)
            world.restart(f"c{number}")


def test_key_6_a_table_that_was_upgraded_has_its_position_files_replaced_by_vectors(
    tmp_path: Path,
) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 2, ("zone",))
    world.commit([put(n) for n in range(20)])
    world.commit([put(n) for n in range(0, 20, 3)], [gone(1)])
    assert _formats(world) == {FileFormat.PARQUET}
    world.upgrade_to_3()
    world.commit([put(n) for n in range(0, 20, 2)], [gone(n) for n in (3, 5)])
    _assert_one_delete_file_each(world)
    assert FileFormat.PUFFIN in _formats(world)
    _check(world)
    world.commit([put(n) for n in range(20)])
    assert _formats(world) == {FileFormat.PUFFIN}
    _check(world)


@pytest.mark.parametrize("version", [2, 3])
def test_key_6_deletes_of_others_stay_beneath(tmp_path: Path, version: int) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 2)
    world.commit([put(n) for n in range(6)])
    (rows,) = world.load().inspect.data_files()["file_path"].to_pylist()
    delete_first_row(world.load(), rows)
    del world.source.fold[(0,)]
    if version == 3:
        world.upgrade_to_3()
    assert world.commit([put(0), put(1)], [gone(2)]) == KeyCounts(1, 1, 1)
    assert [len(files) for files in world.delete_files().values()] == [1, 1]
    _check(world)


def test_key_1_a_key_that_moves_to_another_partition_of_the_table_leaves_the_first(
    tmp_path: Path,
) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3, ("zone",))
    world.commit([put(1, "a"), put(2, "a")])
    assert world.commit([put(1, "b"), put(1, "c")]) == KeyCounts(updated=1, superseded=1)
    _check(world)


def test_key_1_another_key_than_the_table_was_filled_by_is_refused(tmp_path: Path) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3)
    attempt = world.attempt(world.files([put(1)]))
    for table in (
        keyed_table(world.catalog, ("id", "name")),
        IcebergTable(world.catalog, NAME, SINK, threads=False),
    ):
        with pytest.raises(KeyChanged, match=r"filled by the key of columns \[1\]"):
            table.commit(attempt)
    assert world.land(attempt).inserted == 1


def test_key_1_a_delivery_brings_no_rows_to_a_table_with_a_key(tmp_path: Path) -> None:
    """Once filled by ``[table] key``, now named by a route: its rows would be there twice."""
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3)
    world.commit([put(1)])
    plain = IcebergTable(world.catalog, NAME, SINK, threads=False)
    attempt = world.attempt(world.files([put(1)]))
    record = attempt.record
    draft = Staging(plain.read(), record.transaction, record.coordinator, attempt.files, 0)
    with pytest.raises(KeyChanged, match="the settings say without a key"):
        plain.stage(draft)
    pending = world.table.stage(draft)
    with pytest.raises(KeyChanged, match="the settings say without a key"):
        plain.commit(CommitAttempt(plain.read(), record, pending_commits=pending))
    assert isinstance(plain.commit(CommitAttempt(plain.read(), record)), Landed)


def test_key_1_a_table_that_was_filled_without_a_key_gets_none(tmp_path: Path) -> None:
    catalog = local_catalog(tmp_path).catalog
    create_table_if_missing(catalog, NAME, TableDeclaration(COLUMNS, (), {}, key=("id",)))
    plain = IcebergTable(catalog, NAME, SINK, threads=False)
    world = KeyedWorld(catalog, Source(), plain)
    assert isinstance(plain.commit(world.attempt(())), Landed)
    with pytest.raises(KeyChanged, match="filled without a key"):
        keyed_table(catalog, ("id",)).commit(world.attempt(()))


def test_key_5_a_refused_resolution_is_taken_back_and_found_anew(tmp_path: Path) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3)
    world.commit([put(n) for n in range(9)])
    attempt = world.attempt(world.files([put(n) for n in range(0, 9, 2)]))
    overtaken = OvertakenCatalog(world)
    rival = keyed_table(overtaken, ("id",))  # type: ignore[arg-type]
    before = _stored(tmp_path)
    assert isinstance(rival.commit(attempt), Refused)
    assert {path for path in _stored(tmp_path) - before if "deletes" in path} == set()
    world.table = rival
    assert world.land(world.again(attempt)).updated == 5
    _check(world)


def test_key_5_what_may_have_landed_is_not_taken_back(tmp_path: Path) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3)
    world.commit([put(n) for n in range(9)])
    attempt = world.attempt(world.files([put(3)]))
    rival = keyed_table(LostAnswer(world.catalog), ("id",))  # type: ignore[arg-type]
    assert isinstance(rival.commit(attempt), Unknown)
    _check(world)


def test_key_2_key_files_go_when_their_commit_has_landed(tmp_path: Path) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3)
    files = world.files([put(1), put(2), gone(1)])
    (keys,) = (file.path for file in files if file.kind is FileKind.KEYS)
    assert Path(keys.removeprefix("file://")).exists()
    world.land(world.attempt(files))
    while Path(keys.removeprefix("file://")).exists():
        time.sleep(0.01)


def test_key_7_more_rows_than_memory_may_hold_stop_the_sink_and_commit_nothing(
    tmp_path: Path,
) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3)
    world.commit([put(n) for n in range(9)])
    world.table = keyed_table(world.catalog, ("id",), index_bytes_max=8)
    head = world.load().current_snapshot()
    with pytest.raises(KeyIndexFull, match="raise changes"):
        world.commit([put(1)])
    assert world.load().current_snapshot() == head


def test_key_7_a_table_that_has_no_room_leaves_that_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is suspended (SUSPEND-1): what it had begun to read was kept, and suspended all other
    keyed tables."""
    monkeypatch.setattr(upsert_commit, "gettempdir", _nowhere)
    worlds = []
    for name, rows in (("large", 9), ("small", 2)):
        (tmp_path / name).mkdir()
        world = KeyedWorld.create(local_catalog(tmp_path / name).catalog, 3)
        for n in range(rows):
            world.commit([put(n)])
        worlds.append(world)
    memory, by = IndexMemory(8 * ROW_BYTES), KeyedBy(("id",), "from_partition", "from_offset")
    large, small = worlds
    for world in worlds:
        keyed = KeyedRows(by, memory=memory)
        world.table = IcebergTable(world.catalog, NAME, SINK, threads=False, keyed=keyed)
    for _ in range(2):
        with pytest.raises(KeyIndexFull):
            large.commit([put(1)])
    assert small.commit([put(1), put(7)]) == KeyCounts(inserted=1, updated=1)
    assert small.commit([put(1)]) == KeyCounts(updated=1)


def _nowhere() -> str:
    raise FileNotFoundError("no usable temporary directory found")


@pytest.mark.spark
@pytest.mark.parametrize("version", [2, 3])
def test_key_1_the_reference_reads_and_rewrites_a_keyed_table(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, version: int
) -> None:
    local = sqlite_catalog
    mode = {"write.delete.mode": "merge-on-read", "write.delete.granularity": "file"}
    world = KeyedWorld.create(local.catalog, version, ("bucket(2, id)",), **mode)

    def spark(statement: str) -> None:
        iceberg_spark.sql(local.name, local.database, statement)

    def check() -> None:
        _assert_one_delete_file_each(world)
        assert rows_of(iceberg_spark.read(local.name, local.database, NAME)) == (
            world.source.expected_rows()
        )
        _check(world)

    world.commit([put(n) for n in range(20)])
    world.commit([put(n) for n in range(0, 20, 3)], [gone(1)])
    check()
    spark(f"DELETE FROM {local.name}.{NAME} WHERE id IN (2, 3)")
    for key in (2, 3):
        del world.source.fold[(key,)]
    assert world.commit([put(2), put(4)], [gone(3)]) == KeyCounts(1, 1, 0, 1)
    check()
    of_positions = ["rewrite_position_delete_files"] if version == 2 else []  # none of vectors
    for procedure in ["rewrite_data_files", *of_positions]:
        options = "options => map('rewrite-all', 'true')"
        attempt = world.attempt(world.files([put(n) for n in range(5, 15)]))
        spark(f"CALL {local.name}.system.{procedure}(table => '{NAME}', {options})")
        assert isinstance(world.table.commit(attempt), Refused)
        assert world.land(world.again(attempt)).updated == 10
        check()


def put(key: int, zone: str = "a") -> Event:
    return Event((key,), zone)


def gone(key: int) -> Event:
    return Event((key,))


class OvertakenCatalog:
    """Somebody moves the head after a call was prepared, once."""

    def __init__(self, world: KeyedWorld) -> None:
        self._world = world
        self._calls = 0

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        self._calls += 1
        if self._calls == 1:
            sink = SinkName("other")
            other = IcebergTable(self._world.catalog, NAME, sink, threads=False)
            claim = replace(self._world.attempt(()).record, sink=sink)
            assert isinstance(other.commit(CommitAttempt(other.read(), claim, ())), Landed)
        return self._world.catalog.commit_table(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.catalog, name)


class LostAnswer:
    """A catalog whose commits land, and whose answers are lost."""

    def __init__(self, real: Catalog) -> None:
        self._real = real

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        self._real.commit_table(*arguments)
        raise ConnectionError("the answer was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _assert_one_delete_file_each(world: KeyedWorld) -> None:
    """KEY-6."""
    assert {len(files) for files in world.delete_files().values()} <= {1}


def _formats(world: KeyedWorld) -> set[FileFormat]:
    return {file.file_format for files in world.delete_files().values() for file in files}


def _stored(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def _event(chance: random.Random, key: tuple[str, ...]) -> Event:
    number = chance.randint(0, 30)
    values = {"id": number, "name": f"key-{number}" * (number % 3)}
    zone = None if chance.random() < 0.3 else chance.choice("abc")
    return Event(tuple(values[name] for name in key), zone)


def _check(world: KeyedWorld) -> None:
    location = world.load().metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        assert rows_of(read(location)) == world.source.expected_rows(), read.__name__
