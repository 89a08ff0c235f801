"""The key index: it finds what a dictionary would, and holds no more than it may."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest

from headgate.control_protocol.errors import KeyIndexFull
from headgate.tables.iceberg.upsert import key_index
from headgate.tables.iceberg.upsert.index_memory import IndexMemory
from headgate.tables.iceberg.upsert.key_index import FileKeys, KeyIndex
from headgate.tables.iceberg.upsert.key_runs import ROW_BYTES

Row = tuple[str, int]


@pytest.mark.parametrize("seed", range(5))
def test_key_7_it_finds_the_live_rows_of_a_key(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MERGED_ROWS_MAX", 60)
    chance = random.Random(seed)
    dead: dict[str, set[int]] = defaultdict(set)
    index = KeyIndex(10**6, lambda path: np.array(sorted(dead[path]), np.int64))
    rows: dict[tuple[int, int], set[Row]] = defaultdict(set)
    for number in range(60):
        path = f"file-{number}"
        keys = [(chance.randint(0, 9), chance.randint(0, 2)) for _ in range(chance.randint(0, 30))]
        index.add_file(path, file_keys(keys))
        for position, key in enumerate(keys):
            rows[key].add((path, position))
        if index.numbers and chance.random() < 0.3:
            gone = chance.choice(list(index.numbers))
            index.forget_file(gone)
            rows = defaultdict(set, {k: {r for r in v if r[0] != gone} for k, v in rows.items()})
        for live in rows.values():
            for row in chance.sample(sorted(live), len(live) // 4):
                live.remove(row)
                dead[row[0]].add(row[1])
        assert found(index, dead) == {key: live for key, live in rows.items() if live}


@pytest.mark.parametrize("dead", [False, True])
def test_key_7_a_file_is_asked_for_its_dead_rows_where_its_own_rows_are_merged(
    *, dead: bool
) -> None:
    """Asking for all files in each merge took minutes of a table with ten thousand small ones."""
    files, asked = 512, []
    index = KeyIndex(
        10**6, lambda path: asked.append(path) or np.empty(0, np.int64), any_dead=lambda: dead
    )
    for number in range(files):
        index.add_file(f"file-{number}", file_keys([(number, 0)]))
    merges_of_a_row = files.bit_length() - 1
    assert len(asked) == (files * merges_of_a_row if dead else 0)


def test_key_7_two_keys_with_the_same_first_word_are_told_apart() -> None:
    index = KeyIndex(10**6)
    index.add_file("a", file_keys([(5, 1), (5, 2)]))
    index.add_file("b", file_keys([(5, 3)]))
    assert found(index, {}) == {(5, 1): {("a", 0)}, (5, 2): {("a", 1)}, (5, 3): {("b", 0)}}


def test_key_7_a_full_index_says_so_and_stays_as_it_was() -> None:
    index = KeyIndex(3 * ROW_BYTES)
    index.add_file("a", file_keys([(1, 0), (2, 0)]))
    with pytest.raises(KeyIndexFull, match="4 rows of a keyed table need 112 bytes"):
        index.add_file("b", file_keys([(3, 0), (4, 0)]))
    assert found(index, {}) == {(1, 0): {("a", 0)}, (2, 0): {("a", 1)}}


def test_key_7_rows_of_forgotten_files_make_room() -> None:
    index = KeyIndex(2 * ROW_BYTES)
    index.add_file("a", file_keys([(1, 0), (2, 0)]))
    index.forget_file("a")
    index.add_file("b", file_keys([(1, 0), (3, 0)]))
    assert found(index, {}) == {(1, 0): {("b", 0)}, (3, 0): {("b", 1)}}


def file_keys(keys: list[tuple[int, int]]) -> FileKeys:
    count = len(keys)
    return FileKeys(
        np.array([high for high, _ in keys], np.uint64),
        np.array([low for _, low in keys], np.uint64),
        np.zeros(count, np.int32),
        np.arange(count, dtype=np.int64),
    )


def found(index: KeyIndex, dead: dict[str, set[int]]) -> dict[tuple[int, int], set[Row]]:
    """The live rows of every key."""
    asked = [(high, low) for high in range(10) for low in range(4)]
    keys = file_keys(asked)
    answer = index.find_rows(keys.high, keys.low)
    rows: dict[tuple[int, int], set[Row]] = defaultdict(set)
    for at, file, position in zip(answer.asked, answer.files, answer.positions, strict=True):
        row = index.path_of_file(int(file)), int(position)
        if row[1] not in dead.get(row[0], set()):
            rows[asked[at]].add(row)
    return dict(rows)


def test_key_7_several_tables_share_one_bound_of_memory() -> None:
    memory = IndexMemory(4 * ROW_BYTES)
    one, other = (KeyIndex(4 * ROW_BYTES, try_resize=memory.new_share_resizer()) for _ in range(2))
    one.add_file("a", file_keys([(1, 0), (2, 0), (3, 0)]))
    other.add_file("b", file_keys([(1, 0)]))
    for index in (one, other):
        with pytest.raises(KeyIndexFull):
            index.add_file("c", file_keys([(9, 0)]))
    assert found(other, {}) == {(1, 0): {("b", 0)}}
    one.forget_file("a")
    one.add_file("d", file_keys([(5, 0)]))
    other.add_file("e", file_keys([(6, 0), (7, 0)]))
    assert len(other) == 3
