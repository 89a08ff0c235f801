"""Avro files are read whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list, write_manifest_list

from headgate.tables.storage.avro_integrity import check_avro_files_of, describe_avro_damage
from headgate.tables.storage.damaged_file_error import FileDamaged

LISTED = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "snap-1.avro"
    output = PyArrowFileIO().new_output(str(place))
    with write_manifest_list(2, output, 1, None, 1, "deflate") as writer:
        for number in range(LISTED):
            manifest = ManifestFile.from_args(
                manifest_path=f"m{number}.avro",
                manifest_length=100,
                partition_spec_id=0,
                content=0,
                sequence_number=1,
                min_sequence_number=1,
                added_snapshot_id=1,
                added_files_count=1,
                existing_files_count=0,
                deleted_files_count=0,
                added_rows_count=1,
                existing_rows_count=0,
                deleted_rows_count=0,
            )
            writer.add_manifests([manifest])
    return place


def read(path: Path) -> int:
    files = check_avro_files_of(check_avro_files_of(PyArrowFileIO()))
    return len(list(read_manifest_list(files.new_input(str(path)))))


def test_a_whole_file_is_read(path: Path) -> None:
    assert read(path) == LISTED
    assert len(check_avro_files_of(PyArrowFileIO()).new_input(str(path))) == path.stat().st_size


def test_a_file_that_is_cut_anywhere_but_between_blocks_is_refused(path: Path) -> None:
    """pyiceberg's decoder reads on behind the end: it lists less, or ends the process."""
    whole = path.read_bytes()
    taken = [length for length in range(len(whole)) if not describe_avro_damage(whole[:length])]
    assert len(taken) == LISTED, "before each block"
    path.write_bytes(whole[:-1])
    with pytest.raises(FileDamaged, match=r"snap-1\.avro is damaged: it is cut off"):
        read(path)


@pytest.mark.parametrize(
    ("data", "why"), [(b"", "it is empty"), (b"not Avro", "no Avro file"), (b"Obj\x01", "cut off")]
)
def test_what_is_no_avro_file_is_refused(path: Path, data: bytes, why: str) -> None:
    path.write_bytes(data)
    with pytest.raises(FileDamaged, match=why):
        read(path)


@pytest.mark.parametrize("zeros", [1, 16, 40, 400])
def test_a_file_whose_end_was_never_written_is_refused(path: Path, zeros: int) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-zeros] + bytes(zeros))
    with pytest.raises(FileDamaged, match=r"snap-1\.avro is damaged"):
        read(path)


def test_numbers_that_never_end_are_refused() -> None:
    assert "cut off" in describe_avro_damage(b"Obj\x01" + b"\xff" * 40)
