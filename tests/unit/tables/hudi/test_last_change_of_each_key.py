"""What a keyed commit changes, found from its files: without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import KeyInTwoPartitions, TableChanged
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.table_format import NumberedFile, RowKey
from headgate.tables.hudi.last_change_of_each_key import Fold
from headgate.tables.storage.file_store import open_folder

KEY = RowKey(("id", "zone"), "p", "o", "t")
ROWS = pa.schema(
    {
        "o": pa.int64(),
        "name": pa.string(),
        "zone": pa.large_string(),
        "id": pa.int64(),
        "p": pa.int32(),
        "t": pa.string(),
    }
)
GONE = pa.schema(
    {
        "id": pa.int64(),
        "zone": pa.large_string(),
        "_topic": pa.string(),
        "_partition": pa.int32(),
        "_offset": pa.int64(),
    }
)
LIVE = pa.schema({"id": pa.int64(), "zone": pa.string(), "t": pa.string(), "p": pa.int32()})

Record = tuple[int, str, str, int, int]
"""Id, zone, topic, partition, offset."""


def row(id_: int, zone: str, topic: str, partition: int, offset: int) -> Mapping[str, Any]:
    name = f"{id_} at {offset}"
    return {"id": id_, "zone": zone, "t": topic, "p": partition, "o": offset, "name": name}


class Files:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def fold(self, *files: WrittenFile) -> Fold:
        return self.numbered([(file, 0) for file in files])

    def numbered(self, files: Sequence[NumberedFile]) -> Fold:
        """Of several transactions."""
        return Fold(KEY, files, open_folder(f"file://{self._folder}", {}))

    def rows(self, *records: Record) -> WrittenFile:
        return self._written(pa.Table.from_pylist([row(*r) for r in records], ROWS), FileKind.ROWS)

    def gone(self, *records: Record) -> WrittenFile:
        told = [dict(zip(GONE.names, each, strict=True)) for each in records]
        return self._written(pa.Table.from_pylist(told, GONE), FileKind.KEYS)

    def _written(self, table: pa.Table, kind: FileKind) -> WrittenFile:
        self._count += 1
        path = self._folder / f"{self._count}.parquet"
        pq.write_table(table, path)
        return WrittenFile(f"file://{path}", len(table), path.stat().st_size, kind)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def live(*rows: tuple[int, str, str | None, int | None]) -> Iterator[pa.RecordBatch]:
    for each in rows:
        yield pa.RecordBatch.from_pylist([dict(zip(LIVE.names, each, strict=True))], LIVE)


def names(paths: Sequence[str]) -> list[str]:
    return [name for path in paths for name in table(path)["name"].to_pylist()]


def table(path: str) -> pa.Table:
    return pq.read_table(path.removeprefix("file://"))


def test_key_3_the_highest_offset_of_a_key_wins_whatever_file_it_came_in(
    files: Files, tmp_path: Path
) -> None:
    whole = files.rows((1, "a", "x", 0, 5), (1, "b", "x", 0, 6))
    half = files.rows((1, "a", "x", 0, 1), (2, "a", "x", 0, 2))
    none = files.rows((1, "b", "x", 0, 0))
    dead = files.gone((2, "b", "x", 0, 9), (1, "b", "x", 0, 3), (7, "b", "x", 0, 4))
    late = files.rows((2, "b", "x", 0, 8))
    fold = files.fold(whole, half, none, dead, late)
    fold.note_table_rows(live((1, "a", "x", 0), (2, "b", "x", 0), (9, "a", "x", 0)))
    counts = fold.check_and_count_key_changes()
    assert counts == KeyCounts(inserted=2, updated=1, deleted=1, absent=1, superseded=4)
    assert json.dumps(asdict(counts)), "the commit's record says them"
    paths = list(fold.write_or_reuse_new_row_files("new"))
    assert names(paths) == ["1 at 5", "1 at 6", "2 at 2"]
    assert paths[0] == whole.path, "a file is written anew only where it has to be"
    assert len(list((tmp_path / "new").iterdir())) == 1
    assert table(paths[1]).schema == ROWS
    assert fold.keys_to_delete().to_pylist() == [{"id": 2, "zone": "b"}]


def test_key_3_of_several_transactions_a_later_one_is_newer_whatever_its_offsets(
    files: Files,
) -> None:
    """The topic was re-created in between, and one record of each has the same offset."""
    before = files.rows(*((id_, "a", "x", 0, id_) for id_ in range(1, 5)))
    anew = files.rows((1, "a", "x", 0, 1), (2, "a", "x", 0, 0))
    fold = files.numbered([(anew, 1), (before, 0), (files.gone((3, "a", "x", 0, 2)), 1)])
    fold.note_table_rows(live((3, "a", "x", 0)))
    assert fold.check_and_count_key_changes() == KeyCounts(inserted=3, deleted=1, superseded=3)
    paths = list(fold.write_or_reuse_new_row_files("new"))
    assert names(paths) == ["1 at 1", "2 at 0", "4 at 4"]
    assert paths[0] == anew.path
    assert fold.keys_to_delete().to_pylist() == [{"id": 3, "zone": "a"}]


def test_key_8_a_key_in_two_partitions_is_refused_be_it_of_the_commit_or_of_the_table(
    files: Files,
) -> None:
    for one, other in (
        ((1, "a", "x", 0, 1), (1, "a", "x", 1, 1)),
        ((1, "a", "x", 0, 1), (1, "a", "y", 0, 1)),
    ):
        with pytest.raises(KeyInTwoPartitions, match="1 keys"):
            files.fold(
                files.rows(one, (2, "a", "x", 0, 1)), files.gone(other)
            ).check_and_count_key_changes()
    for place in (("x", 1), ("y", 0), ("z", 9)):
        fold = files.fold(files.rows((1, "a", "x", 0, 1)))
        fold.note_table_rows(live((1, "b", "x", 1), (1, "a", *place)))
        with pytest.raises(KeyInTwoPartitions):
            fold.check_and_count_key_changes()


def test_key_8_rows_of_others_are_not_asked_where_they_come_from(files: Files) -> None:
    fold = files.fold(files.rows((1, "a", "x", 0, 1)))
    fold.note_table_rows(live((1, "a", None, None)))
    assert fold.check_and_count_key_changes() == KeyCounts(updated=1)


def test_key_10_each_record_counts_once_and_files_with_others_are_refused(files: Files) -> None:
    one, other = files.rows((1, "a", "x", 0, 1)), files.rows((2, "a", "x", 0, 2))
    fewer = WrittenFile(one.path, 2, one.size_bytes)
    with pytest.raises(TableChanged):
        files.fold(fewer, other).check_and_count_key_changes()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.booleans()), min_size=1),
    st.sets(st.tuples(st.integers(0, 5), st.sampled_from("ab"))),
    st.integers(1, 4),
)
def test_key_3_the_fold_is_that_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    told: list[tuple[int, str, bool]],
    before: set[tuple[int, str]],
    parts: int,
) -> None:
    folder = tmp_path_factory.mktemp("fold")
    files, spread = Files(folder), [((id_, z, "x", 0, o), g) for o, (id_, z, g) in enumerate(told)]
    made = []
    for part in range(parts):
        mine = spread[part::parts]
        made.append(files.rows(*(record for record, goes in mine if not goes)))
        made.append(files.gone(*(record for record, goes in mine if goes)))
    fold = files.fold(*made)
    fold.note_table_rows(live(*((id_, zone, "x", 0) for id_, zone in before)))
    last = {(id_, zone): (offset, goes) for offset, (id_, zone, goes) in enumerate(told)}
    kept = {key for key, (_, goes) in last.items() if not goes}
    lost = set(last) - kept
    assert fold.check_and_count_key_changes() == KeyCounts(
        inserted=len(kept - before),
        updated=len(kept & before),
        deleted=len(lost & before),
        absent=len(lost - before),
        superseded=len(told) - len(last),
    )
    found = sorted(names(list(fold.write_or_reuse_new_row_files("new"))))
    assert found == sorted(f"{id_} at {o}" for (id_, _), (o, goes) in last.items() if not goes)
    assert {tuple(each.values()) for each in fold.keys_to_delete().to_pylist()} == lost & before
