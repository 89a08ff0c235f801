"""KEY-11: a compaction of a keyed table begins at one head and settles at the newest one."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from integration.readers import read_with_duckdb, read_with_pyiceberg
from pyiceberg.catalog import Catalog
from pyiceberg.table.refs import MAIN_BRANCH
from support.keyed_world import NAME, SINK, Event, KeyedWorld, rows_of
from support.local_catalog import local_catalog
from support.maintained import settings

from headgate.runtime.maintenance.table_maintenance import Round
from headgate.tables.iceberg.maintenance.compaction_commit import MovedRows
from headgate.tables.iceberg.maintenance.compaction_plan import (
    _FIRST_ROW,
    read_data_files_and_deletes,
)
from headgate.tables.iceberg.maintenance.orphan_files import Ages, Orphans

KEYS = 60
KINDS = [(2, ()), (3, ()), (3, ("bucket(2, id)",))]
Act = Callable[[], object]
NOTHING: Mapping[str, Act] = {}


class _Unhurried(threading.Event):
    """Nobody waits between two tries."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return False


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    local = local_catalog(tmp_path)
    yield local.catalog
    local.catalog.close()


class Compacted:
    """A keyed table of many small commits, what compacts it, and what happens meanwhile."""

    def __init__(
        self,
        catalog: Catalog,
        home: Path,
        version: int,
        partition_by: tuple[str, ...] = (),
        target_file_bytes: int = 0,
    ) -> None:
        self.catalog = catalog
        self.world = KeyedWorld.create(catalog, version, partition_by)
        self.chance = random.Random(version)
        wanted = f"dead_per_thousand = 500\ntarget_file_bytes = {target_file_bytes}\n"
        self._settings = replace(settings(home, wanted), name=SINK)
        self._calls: list[Act] = []
        self._real = catalog.commit_table
        catalog.commit_table = self._commit_table  # type: ignore[method-assign]

    def _commit_table(self, *call: Any) -> Any:
        while self._calls:
            self._calls.pop()()
        return self._real(*call)

    def fill(self, commits: int) -> None:
        for _ in range(commits):
            self.change(15)

    def change(self, records: int) -> None:
        """Rows of all ages are replaced and deleted, and new ones come."""
        self.world.commit([self._event() for _ in range(records)])

    def _event(self) -> Event:
        gone = self.chance.random() < 0.3
        return Event((self.chance.randrange(KEYS),), None if gone else self.chance.choice("ab"))

    def compact(self, meanwhile: Mapping[str, Act] = NOTHING) -> Round:
        """Once; each act of ``meanwhile`` comes before its step, the first time."""
        acts = dict(meanwhile)

        def reached(step: str) -> None:
            acts.pop(step, lambda: None)()

        def settling() -> None:
            reached("settling")
            if "called" in acts:
                self._calls.append(acts.pop("called"))

        one = Round(
            self._settings,
            self.catalog,
            NAME,
            quiet=settling,
            on_progress=lambda *_: reached("rewritten"),
            ending=_Unhurried(),
        )
        one.compact()
        return one

    def live(self) -> dict[str, int]:
        """Live data files of the head, and how many rows each holds, dead ones too."""
        table = self.world.load()
        snapshot = table.metadata.snapshot_by_name(MAIN_BRANCH)
        assert snapshot
        data, _ = read_data_files_and_deletes(table, snapshot)
        return {entry.data_file.file_path: entry.data_file.record_count for entry in data}

    def assert_fold(self) -> None:
        location = self.world.load().metadata_location
        for read in (read_with_pyiceberg, read_with_duckdb):
            assert rows_of(read(location)) == self.world.source.expected_rows(), read.__name__

    def row_ids(self) -> dict[int, tuple[int, int]]:
        """Of each live row, by its offset: its id, and the number of its last change."""
        table = self.world.load()
        snapshot = table.metadata.snapshot_by_name(MAIN_BRANCH)
        assert snapshot
        live = {row["from_offset"] for row in self.world.source.fold.values()}
        found = {}
        for entry in read_data_files_and_deletes(table, snapshot)[0]:
            path = entry.data_file.file_path.removeprefix("file://")
            for place, row in enumerate(pq.ParquetFile(path).read().to_pylist()):
                if row["from_offset"] in live:
                    row_id = row.get("_row_id")
                    found[row["from_offset"]] = (
                        entry.data_file[_FIRST_ROW] + place if row_id is None else row_id,
                        row.get("_last_updated_sequence_number") or entry.sequence_number or 0,
                    )
        return found


@pytest.mark.parametrize(("version", "partition_by"), KINDS)
def test_key_11_dead_rows_go_and_files_become_few(
    catalog: Catalog, tmp_path: Path, version: int, partition_by: tuple[str, ...]
) -> None:
    it = Compacted(catalog, tmp_path, version, partition_by)
    it.fill(5)
    before, ids = it.live(), it.row_ids() if version == 3 else {}

    one = it.compact()

    assert one.done.left == []
    assert one.done.compacted_files == len(before)
    assert len(it.live()) == one.done.into_files <= 2
    assert sum(it.live().values()) == len(it.world.source.fold), "no dead row is left"
    assert not it.world.delete_files(), "what was about the sources went with them"
    if version == 3:
        assert it.row_ids() == ids, "rows keep their ids, and when they changed"
    it.assert_fold()


@pytest.mark.parametrize(("version", "partition_by"), KINDS)
def test_key_11_it_settles_at_the_newest_head_and_nothing_that_died_comes_back(
    catalog: Catalog, tmp_path: Path, version: int, partition_by: tuple[str, ...]
) -> None:
    it = Compacted(catalog, tmp_path, version, partition_by)
    it.fill(4)
    before, tag = set(it.live()), it.world.table.read().tag

    one = it.compact(dict.fromkeys(("rewritten", "settling", "called"), lambda: it.change(15)))

    view = it.world.table.read()
    assert one.done.left == []
    assert not before & set(it.live())
    assert view.tag != view.head, "the tag stays where the last commit left it"
    assert view.tag != tag
    it.assert_fold()
    for of_one in it.world.delete_files().values():
        assert len(of_one) == 1, "a data file has one delete file at most (KEY-6)"
    it.fill(2)  # the index of keys follows
    it.compact()
    it.change(15)
    it.assert_fold()


@pytest.mark.parametrize("version", [2, 3])
def test_key_11_another_compaction_meanwhile_ends_it_and_its_files_go(
    catalog: Catalog, tmp_path: Path, version: int
) -> None:
    it = Compacted(catalog, tmp_path, version)
    it.fill(4)

    one = it.compact({"settling": it.compact})

    assert one.done.left == ["a compaction did not land (gone); its files were taken back"]
    assert len(it.live()) == 1
    folder = Path(next(iter(it.live())).removeprefix("file://")).parent
    assert len(list(folder.glob("*.parquet"))) == 1
    it.change(15)
    it.assert_fold()


def test_key_11_a_file_whose_rows_all_died_goes(catalog: Catalog, tmp_path: Path) -> None:
    it = Compacted(catalog, tmp_path, 3)
    it.world.commit([Event((key,), "a") for key in range(5)])
    it.world.commit([Event((key,)) for key in range(5)])

    one = it.compact()

    assert (one.done.compacted_files, one.done.into_files) == (1, 0)
    assert (it.live(), it.world.delete_files()) == ({}, {})
    it.world.commit([Event((key,), "b") for key in range(3)])
    it.assert_fold()


def test_key_11_a_large_file_is_rewritten_when_it_is_worn_and_not_before(
    catalog: Catalog, tmp_path: Path
) -> None:
    it = Compacted(catalog, tmp_path, 3, target_file_bytes=1)
    it.world.commit([Event((key,), "a") for key in range(10)])
    it.world.commit([Event((key,)) for key in range(4)])
    assert it.compact().done.compacted_files == 0

    it.world.commit([Event((4,))])

    assert it.compact().done.compacted_files == 1
    assert list(it.live().values()) == [5]
    it.assert_fold()


def test_key_11_who_is_killed_before_the_call_leaves_orphans_and_the_table_as_it_was(
    catalog: Catalog, tmp_path: Path
) -> None:
    it = Compacted(catalog, tmp_path, 3)
    it.fill(4)
    before = it.live()

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        it.compact({"called": killed})

    assert it.live() == before
    left = {str(path) for path in tmp_path.rglob("compacted/**/*.*")}
    assert left
    for path in left:
        os.utime(path, (1, 1))
    it.change(15)
    orphans = Orphans(catalog, SINK, NAME, NAME, Ages(after_ms=1, claim_max_ms=1))
    assert {path.removeprefix("file://") for path in orphans.find_orphans().files} == left
    it.compact()
    it.assert_fold()


# ------------------------------------------------------------------------- mutants, planted here


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        (lambda self, dead: {}, "deaths are not carried over"),
        (
            lambda self, dead: {
                path: dead(source.path)
                for (path, _), source in zip(self.files, self.sources, strict=False)
            },
            "old positions are taken for new ones",
        ),
    ],
)
def test_key_11_planted(
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    planted: Callable[..., Any],
    named: str,
) -> None:
    it = Compacted(catalog, tmp_path, 3)
    it.fill(4)
    monkeypatch.setattr(MovedRows, "newly_dead_positions", planted)

    it.compact({"settling": lambda: it.change(15)})

    rows = rows_of(read_with_duckdb(it.world.load().metadata_location))
    assert rows != it.world.source.expected_rows(), named
