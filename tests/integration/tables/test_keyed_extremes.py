"""Keyed tables at their limits: one-row files, colliding hashes, expiring Puffin files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from integration.readers import read_with_duckdb, read_with_pyiceberg
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.types import LongType
from support import keyed_world
from support.keyed_world import NAME, SINK, Event, KeyedWorld, rows_of
from support.local_catalog import local_catalog

from headgate.control_protocol.commit_record import KeyCounts
from headgate.native.kernels import Words
from headgate.tables.iceberg.maintenance.snapshot_expiry import SnapshotExpiry
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.upsert.key_index import FileKeys, KeyHash
from headgate.tables.iceberg.upsert.key_reader import KeyReader
from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows

pytestmark = pytest.mark.integration

DUE_AT_ONCE = {
    "history.expire.max-snapshot-age-ms": str(-(10**12)),
    "history.expire.min-snapshots-to-keep": "1",
}


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "files",
    [pytest.param(60, marks=pytest.mark.wide), pytest.param(10_000, marks=pytest.mark.soak)],
)
def test_data_files_with_one_key_each_are_read_by_few_requests(
    tmp_path: Path, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3, ("zone",))
    everything = [Event((n,), f"zone-{n}") for n in range(files)]
    world.commit(everything)
    assert world.commit(everything) == KeyCounts(updated=files)
    assert len(world.delete_files()) == files
    world.restart("two")
    opened = _opened(monkeypatch)
    assert world.commit([Event((n,)) for n in range(0, files, 2)]).deleted == files // 2
    assert {times for path, times in opened.items() if path.endswith(".puffin")} == {1}
    opened.clear()
    world.restart("three")
    assert world.commit(everything).updated == files - files // 2
    assert {times for path, times in opened.items() if path.endswith(".puffin")} == {1}
    _check(world)


@pytest.mark.parametrize("cold", [False, True])
def test_a_key_that_was_widened_is_found_in_files_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cold: bool
) -> None:
    """Some of these files are of claims that were made before."""
    monkeypatch.setitem(keyed_world.COLUMNS, "id", "int not null")
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3)
    world.commit([Event((n,), "a") for n in range(6)])
    claimed = world.files([Event((1,), "b"), Event((4,))])
    with world.load().update_schema() as update:
        update.update_column("id", LongType())
    if cold:
        world.restart("two")
    later = world.files([Event((2,), "c"), Event((3,)), Event((2**40,), "d")])
    counts = world.land(world.attempt([*claimed, *later]))
    assert counts == KeyCounts(inserted=1, updated=2, deleted=2)
    _check(world)


class Meeting(KeyReader):
    """Answers for a data file when three others are being read as well."""

    def __init__(self) -> None:
        super().__init__()
        self._met = Barrier(4)

    def read_data_file(self, *asked: Any) -> FileKeys:
        self._met.wait(120)
        return super().read_data_file(*asked)


def test_a_coordinator_that_begins_waits_for_storage_once(tmp_path: Path) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3)
    for number in range(4):
        world.commit([Event((number,), "a"), Event((9,), "b")])
    keyed = KeyedRows(KeyedBy(("id",), "from_partition", "from_offset"), Meeting())
    world.table = IcebergTable(world.catalog, NAME, SINK, threads=False, keyed=keyed)
    assert world.commit([Event((9,)), Event((3,), "c")]) == KeyCounts(updated=1, deleted=1)
    _check(world)


class Colliding(KeyHash):
    """The first word of each key is one of three, of the other one bits are missing."""

    def __call__(self, columns: Sequence[pa.Array]) -> tuple[Words, Words]:
        high, low = super().__call__(columns)
        return high % np.uint64(3), (high | low) if len(columns) == 1 else low


@pytest.mark.parametrize("key", [("id",), ("name", "id")])
def test_keys_whose_hashes_collide_in_a_word_stay_apart(
    tmp_path: Path, key: tuple[str, ...]
) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3, (), key)
    keyed = KeyedRows(
        KeyedBy(key, "from_partition", "from_offset"), KeyReader(Colliding(seeds=(1, 2)))
    )
    world.table = IcebergTable(world.catalog, NAME, SINK, threads=False, keyed=keyed)

    def named(number: int) -> tuple[Any, ...]:
        return tuple({"id": number, "name": f"key-{number}"}[column] for column in key)

    world.commit([Event(named(n), "a") for n in range(90)])
    counts = world.commit([Event(named(n), "b" if n % 2 else None) for n in range(45)])
    assert counts == KeyCounts(updated=22, deleted=23)
    assert world.commit([Event(named(n)) for n in range(80, 100)]) == KeyCounts(
        deleted=10, absent=10
    )
    _check(world)


def test_a_puffin_file_stays_as_long_as_one_of_its_vectors_is_live(tmp_path: Path) -> None:
    world = KeyedWorld.create(local_catalog(tmp_path).catalog, 3, ("zone",), **DUE_AT_ONCE)
    world.commit([Event((n,), "a" if n < 5 else "b") for n in range(10)])
    world.commit([Event((0,)), Event((9,))])
    (shared,) = _puffins(world)
    for event in (Event((1,)), Event((8,))):
        world.commit([event])
        _expire(world)
        assert Path(shared.removeprefix("file://")).exists() == (shared in _puffins(world))
        _check(world)
    assert shared not in _puffins(world)


def _expire(world: KeyedWorld) -> None:
    assert SnapshotExpiry(world.catalog, threads=False).expire_now(world.load())


def _puffins(world: KeyedWorld) -> set[str]:
    found = [file for files in world.delete_files().values() for file in files]
    return {file.file_path for file in found if file.file_format is FileFormat.PUFFIN}


def _opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is opened from now on."""
    opened: Counter[str] = Counter()
    right = PyArrowFileIO.new_input

    def counted(self: PyArrowFileIO, location: str) -> Any:
        opened[location] += 1
        return right(self, location)

    monkeypatch.setattr(PyArrowFileIO, "new_input", counted)
    return opened


def _check(world: KeyedWorld) -> None:
    location = world.load().metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        assert rows_of(read(location)) == world.source.expected_rows(), read.__name__
