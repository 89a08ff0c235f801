"""Delete files: what is written is read back, by position, in both versions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import orc
from pyarrow import parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from headgate.tables.iceberg.upsert.position_deletes import (
    PATH_ID,
    POSITION_ID,
    DeleteFiles,
    Target,
    bitmap_of,
    build_delete_files,
    path_and_content_offset,
    read_dead_positions,
    sole_referenced_data_file,
    sorted_positions_of,
)

CHANCE = random.Random(1)
POSITIONS = [
    [0],
    [*range(100_000)],
    sorted(CHANCE.sample(range(10**6), 5_000)),
    [0, 2**31, 2**32 - 1, 2**32, 2**33 + 7],
]


@pytest.mark.parametrize("version", [2, 3])
def test_key_6_dead_positions_are_read_back_from_the_one_file_of_each_data_file(
    tmp_path: Path, version: int
) -> None:
    dead = [
        (target(f"file://{tmp_path}/rows-{n}.parquet"), bitmap_of(np.array(positions)))
        for n, positions in enumerate(POSITIONS)
    ]
    made = written(build_delete_files(version, f"file://{tmp_path}", dead))

    assert [sole_referenced_data_file(file) for file in made.listed] == [
        each.path for each, _ in dead
    ]
    assert len({path_and_content_offset(file) for file in made.listed}) == len(dead)
    assert len(made.bytes_of) == (1 if version == 3 else len(dead))
    for file, (about, bits) in zip(made.listed, dead, strict=True):
        assert (file.record_count, file.spec_id) == (len(bits), 4)
        assert file.file_size_in_bytes == len(made.bytes_of[file.file_path])
        assert read_dead_positions(PyArrowFileIO(), file) == {about.path: bits}


def test_pyiceberg_reads_the_vectors() -> None:
    dead = [(target(f"rows-{n}"), bitmap_of(np.array(p))) for n, p in enumerate(POSITIONS[:3])]
    (whole,) = build_delete_files(3, "folder", dead).bytes_of.values()
    theirs = deletion_vectors_from_puffin_file(PuffinFile(whole))
    assert {each.referenced_data_file: each.to_vector().to_pylist() for each in theirs} == {
        f"rows-{n}": positions for n, positions in enumerate(POSITIONS[:3])
    }


@pytest.mark.parametrize("file_format", [FileFormat.PARQUET, FileFormat.ORC, FileFormat.AVRO])
@pytest.mark.parametrize("count", [0, 3, 20_000])
def test_other_engines_position_deletes_are_read_in_each_format(
    tmp_path: Path, file_format: FileFormat, count: int
) -> None:
    at = f"file://{tmp_path}/deletes.{file_format.value.lower()}"
    paths = ["a" if n % 2 else "b" for n in range(count)]
    rows = pa.table(
        {"file_path": pa.array(paths, pa.string()), "pos": pa.array(range(count), pa.int64())}
    )
    match file_format:
        case FileFormat.PARQUET:
            pq.write_table(rows, tmp_path / "deletes.parquet")
        case FileFormat.ORC:
            orc.write_table(rows, tmp_path / "deletes.orc")
        case FileFormat.AVRO:
            schema = Schema(
                NestedField(PATH_ID, "file_path", StringType(), required=True),
                NestedField(POSITION_ID, "pos", LongType(), required=True),
            )
            out = PyArrowFileIO().new_output(at)
            with AvroOutputFile[Record](out, schema, "deletes") as writer:
                writer.write_block(
                    [Record(*each) for each in zip(paths, range(count), strict=True)]
                )
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=at, file_format=file_format
    )
    expected = {"b": bitmap_of(np.arange(0, count, 2)), "a": bitmap_of(np.arange(1, count, 2))}
    assert read_dead_positions(PyArrowFileIO(), file) == (expected if count else {})


def test_a_damaged_vector_is_not_believed(tmp_path: Path) -> None:
    made = build_delete_files(3, f"file://{tmp_path}", [(target("rows"), bitmap_of(np.arange(9)))])
    (path,) = made.bytes_of
    for place in (9, 20, -1):
        whole = bytearray(made.bytes_of[path])
        at = made.listed[0][_CONTENT_OFFSET] + place if place > 0 else _last(made.listed[0])
        whole[at] ^= 1
        written(DeleteFiles(made.listed, {path: bytes(whole)}))
        with pytest.raises(ValueError, match="damaged"):
            read_dead_positions(PyArrowFileIO(), made.listed[0])


def test_nothing_dead_needs_no_file() -> None:
    assert build_delete_files(3, "folder", []) == DeleteFiles()
    assert sorted_positions_of(bitmap_of(np.empty(0, np.int64))).tolist() == []


_CONTENT_OFFSET = 18


def _last(file: Any) -> int:
    """The last byte of the vector's checksum."""
    return int(file[_CONTENT_OFFSET] + file[_CONTENT_OFFSET + 1] - 1)


def target(path: str) -> Target:
    return Target(path, 4, Record(), 10**6, 1)


def written(made: DeleteFiles) -> DeleteFiles:
    for path, whole in made.bytes_of.items():
        Path(path.removeprefix("file://")).write_bytes(whole)
    assert {file.file_format for file in made.listed} <= {FileFormat.PUFFIN, FileFormat.PARQUET}
    return made
