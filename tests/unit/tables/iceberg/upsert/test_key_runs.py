"""Runs of the key index in files: they find what those in memory find, with little memory."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.examples import first_few

from headgate.control_protocol.errors import KeyIndexFull
from headgate.tables.iceberg.upsert import key_index, key_runs
from headgate.tables.iceberg.upsert.key_index import FileKeys, KeyIndex
from headgate.tables.iceberg.upsert.key_runs import ROW_BYTES

HELD = 400


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MERGED_ROWS_MAX", 90)
    monkeypatch.setattr(key_index, "HELD_ROWS_MAX", HELD)
    monkeypatch.setattr(key_index, "MERGED_RUNS", 3)
    monkeypatch.setattr(key_runs, "_SLICE_ROWS", 250)


class Table:
    """Files whose rows have random keys, many of them several times; some rows are dead."""

    def __init__(self, seed: int) -> None:
        self.dice = np.random.default_rng(seed)
        few = self.dice.integers(0, 2**64, 500, np.uint64, endpoint=False)
        few[:4] = 0, 1, 2**64 - 1, 2**64 - 2
        self.words = few
        self.files: dict[str, FileKeys] = {}
        self.dead: defaultdict[str, set[int]] = defaultdict(set)

    def add(self, count: int) -> tuple[str, FileKeys]:
        path = f"file-{self.dice.integers(2**60)}"
        high = self.dice.choice(self.words, count)
        keys = FileKeys(
            high,
            self.dice.integers(0, 2, count, np.uint64),
            self.dice.integers(-1, 3, count).astype(np.int32),
            np.arange(count, dtype=np.int64),
        )
        self.files[path] = keys
        return path, keys

    def dead_of(self, path: str) -> Any:
        return np.array(sorted(self.dead[path]), np.int64)

    def found(self, index: KeyIndex) -> set[tuple[int, int, str, int, int]]:
        """What the index finds of keys that are there, and of others."""
        high = np.sort(np.concatenate([self.words, self.words ^ np.uint64(1 << 40)]))
        high, low = np.repeat(high, 2), np.tile(np.array([0, 1], np.uint64), len(high))
        hits = index.find_rows(high, low)
        paths = [index.path_of_file(number) for number in hits.files.tolist()]
        rows = zip(
            high[hits.asked].tolist(),
            low[hits.asked].tolist(),
            paths,
            hits.positions.tolist(),
            hits.sources.tolist(),
            strict=True,
        )
        return {row for row in rows if row[3] not in self.dead[row[2]]}

    def live(self) -> set[tuple[int, int, str, int, int]]:
        return {
            (int(h), int(w), path, at, int(source))
            for path, keys in self.files.items()
            for at, (h, w, source) in enumerate(zip(keys.high, keys.low, keys.sources, strict=True))
            if at not in self.dead[path]
        }


def end_merge(index: KeyIndex) -> None:
    """Wait until a merge is done, if there is one: the index takes it when it is asked again."""
    if index._merge:
        index._merge.wait()


class Held:
    """Holds merges at their first look at what is alive, until they are let go."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.begun, self.go = threading.Event(), threading.Event()

    def dead_of(self, path: str) -> Any:
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            assert self.go.wait(60)
        return self.table.dead_of(path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", first_few(range(4)))
def test_key_7_an_index_in_files_finds_the_live_rows_of_every_key(
    seed: int, tmp_path: Path
) -> None:
    table = Table(seed)
    dice = table.dice
    index = KeyIndex(10**7, table.dead_of, folder=str(tmp_path))
    stored = 0
    for _ in range(40):
        if dice.random() < 0.5:
            end_merge(index)
        index.add_file(*table.add(int(dice.choice([0, 1, 50, 300, 1000]))))
        if dice.random() < 0.3:
            gone = str(dice.choice(list(table.files)))
            index.forget_file(gone)
            del table.files[gone]
        for path, keys in table.files.items():
            if dice.random() < 0.2:
                table.dead[path] |= set(dice.integers(0, len(keys) + 1, 5).tolist())
        assert table.found(index) == table.live()
        stored = max(stored, len(index._stored))
        assert sum(map(len, index._runs)) <= HELD
    assert stored > 1
    assert not list(tmp_path.iterdir()), "nobody has to clean up"


@pytest.mark.usefixtures("small")
def test_key_7_rows_in_files_take_a_small_part_of_the_memory(tmp_path: Path) -> None:
    index = KeyIndex(10**7, folder=str(tmp_path))
    table = Table(1)
    table.words = table.dice.integers(0, 2**64, 10**5, np.uint64, endpoint=False)
    for _ in range(10):
        index.add_file(*table.add(20_000))
    assert len(index) == 200_000
    assert index.bytes_in_memory < 1.6 * len(index) + HELD * ROW_BYTES


@pytest.mark.usefixtures("small")
def test_key_7_a_run_whose_files_are_gone_is_left_out(tmp_path: Path) -> None:
    """A compaction of the whole table would double it otherwise."""
    table = Table(2)
    index = KeyIndex(10**7, table.dead_of, folder=str(tmp_path))
    for _ in range(3):
        for _ in range(4):
            index.add_file(*table.add(1000))
            end_merge(index)
        for path in list(table.files)[:-4]:
            index.forget_file(path)
            del table.files[path]
    end_merge(index)
    assert len(index) <= 8000
    assert table.found(index) == table.live()


@pytest.mark.usefixtures("small")
def test_key_7_what_no_disk_takes_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    table = Table(3)
    index = KeyIndex(5000 * ROW_BYTES, table.dead_of, folder=str(tmp_path))
    for _ in range(3):
        index.add_file(*table.add(1000))
    before = len(index._stored)
    monkeypatch.setattr(key_runs, "_to_stored_array", no_room)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            index.add_file(*table.add(1000))
    assert "keys stay in memory" in caplog.text
    assert len(index._stored) == before
    assert table.found(index) == table.live()
    known = dict(table.files)
    with pytest.raises(KeyIndexFull, match="rows of a keyed table need"):
        index.add_file(*table.add(1000))
    table.files = known
    assert table.found(index) == table.live(), "it is as before"


def test_key_7_a_table_whose_memory_others_have_goes_to_files(tmp_path: Path) -> None:
    table = Table(4)
    index = KeyIndex(2000 * ROW_BYTES, table.dead_of, folder=str(tmp_path))
    for _ in range(8):
        index.add_file(*table.add(1500))
    assert table.found(index) == table.live()
    assert index.bytes_in_memory <= 2000 * ROW_BYTES


def test_key_7_even_files_need_some_memory(tmp_path: Path) -> None:
    index = KeyIndex(1, folder=str(tmp_path))
    with pytest.raises(KeyIndexFull, match="all such tables may have 1"):
        index.add_file(*Table(5).add(3))
    assert len(index) == 0


@pytest.mark.usefixtures("small")
def test_key_7_a_merge_holds_nobody_up(tmp_path: Path) -> None:
    """Keys are found and added, files go and rows die, while it is at work."""
    table = Table(6)
    held = Held(table)
    index = KeyIndex(10**7, held.dead_of, folder=str(tmp_path))
    while not index._merge:
        index.add_file(*table.add(500))
    assert held.begun.wait(60)
    merged = index._merge.runs
    for _ in range(6):
        path, keys = table.add(500)
        index.add_file(path, keys)
        table.dead[path] |= {1, 3}
        gone = next(iter(table.files))
        index.forget_file(gone)
        del table.files[gone]
        for known in table.files:
            table.dead[known].add(int(table.dice.integers(0, 500)))
        assert table.found(index) == table.live()
    assert set(merged) <= set(index._stored), "it is the same one, and not done"
    held.go.set()
    end_merge(index)
    assert table.found(index) == table.live()
    assert not set(merged) & set(index._stored)


@pytest.mark.usefixtures("small")
def test_key_7_a_merge_has_its_part_of_the_memory(tmp_path: Path) -> None:
    """What it makes stands beside what it is made of, so that there is no merge without room."""
    table = Table(7)
    table.words = table.dice.integers(0, 2**64, 10**5, np.uint64, endpoint=False)
    taken: list[int] = []

    def try_resize(wanted: int) -> bool:
        taken.append(wanted)
        return wanted <= bytes_max

    bytes_max = 10**7
    held = Held(table)
    index = KeyIndex(bytes_max, held.dead_of, try_resize, folder=str(tmp_path))
    while not index._merge:
        index.add_file(*table.add(500))
    runs = sum(run.bytes_in_memory for run in index._stored)
    assert index.bytes_in_memory == runs + index._merge.result_bytes_max == taken[-1]
    held.go.set()
    end_merge(index)
    made = index._merge.result()
    assert sum(run.bytes_in_memory for run in made) <= index._merge.result_bytes_max
    bytes_max = runs + 10
    index = KeyIndex(bytes_max, table.dead_of, try_resize, folder=str(tmp_path))
    for path, keys in list(table.files.items()):
        index.add_file(path, keys)
    assert index._merge is None
    assert len(index._stored) >= 3
    assert table.found(index) == table.live()


@pytest.mark.usefixtures("small")
def test_key_7_a_merge_that_fails_leaves_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    table = Table(8)
    index = KeyIndex(10**7, table.dead_of, folder=str(tmp_path))
    monkeypatch.setattr(key_runs, "merge_live_rows_of_stored_runs", no_room)
    while not index._merge:
        index.add_file(*table.add(500))
    end_merge(index)
    assert table.found(index) == table.live()
    assert "runs of keys stay apart" in caplog.text
    monkeypatch.undo()
    assert index._merge is None


@pytest.mark.usefixtures("small")
def test_key_7_a_closed_index_ends_its_merge(tmp_path: Path) -> None:
    """A rollback makes another index: what the merge knew of the dead may be wrong by then."""
    table = Table(9)
    held = Held(table)
    index = KeyIndex(10**7, held.dead_of, folder=str(tmp_path))
    while not index._merge:
        index.add_file(*table.add(500))
    merge = index._merge
    index.close()
    held.go.set()
    merge.wait()
    assert isinstance(merge.error, InterruptedError)
    assert merge.result() == list(merge.runs)
    assert not list(tmp_path.iterdir())


_MERGING = """
import sys, threading
import numpy as np
from headgate.tables.iceberg.upsert import key_index
from headgate.tables.iceberg.upsert.key_index import FileKeys, KeyIndex

key_index.HELD_ROWS_MAX, key_index.MERGED_RUNS = 400, 3
begun = threading.Event()

def dead(path):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        threading.Event().wait()
    return np.empty(0, np.int64)

index = KeyIndex(10**7, dead, folder=sys.argv[1])
for number in range(3):
    words = np.arange(500, dtype=np.uint64)
    index.add_file(str(number), FileKeys(words, words, np.zeros(500, np.int32), np.arange(500)))
assert begun.wait(60)
print("merging", flush=True)
if sys.argv[2] == "killed":
    threading.Event().wait()
"""


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_key_7_a_process_that_ends_amid_a_merge_leaves_nothing(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", _MERGING, str(tmp_path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "merging\n"
        if how == "killed":
            process.kill()
        assert process.wait(60) == (-signal.SIGKILL if how == "killed" else 0)
    assert not list(tmp_path.iterdir())
