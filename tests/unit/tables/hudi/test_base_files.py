"""Base files of Hudi, as participants write them without a JVM."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_tokens import is_path_of_token
from headgate.control_protocol.errors import WriteFailed
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.table_format import FileSchema
from headgate.data_plane.batch.file_schema_plans import plan_of_file_schema
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.tables.hudi.base_files import (
    COLUMNS,
    HudiFileMarking,
    commit_token_of,
    instant_of_file,
)

INSTANT = "20261123093000123"
FIELDS = Struct(
    (
        Column("id", "long", required=False),
        Column("city", "string", required=False),
        Column("hour", "int", required=False),
    )
)
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "city": ["Łódź", "a/b=c", None, ""],
        "hour": pa.array([7, 7, 7, None], pa.int32()),
    }
)


def written(folder: Path, **marking: object) -> tuple[WrittenFile, ...]:
    location = f"file://{folder}"
    dressed = HudiFileMarking(location, **marking)  # type: ignore[arg-type]
    layout = FileSchema("uuid", 1, FIELDS, location, dressed.partition_by, marking=dressed)
    plan = pickle.loads(pickle.dumps(plan_of_file_schema(layout, "db.t", SourcePlan(kafka={}))))
    shape = file_shape_of(plan)
    files = DataFiles(shape, commit_token_of(location, INSTANT), 1 << 20)
    for key, rows in shape.partitioner.split(ROWS.cast(plan.shape.arrow_schema())):
        files.write(key, rows.slice(0, 1))
        files.write(key, rows.slice(1))
    return files.finish()


def test_files_bear_their_instant_in_name_and_rows(tmp_path: Path) -> None:
    (file,) = written(tmp_path)
    path = Path(file.path.removeprefix("file://"))
    assert is_path_of_token(commit_token_of(f"file://{tmp_path}", INSTANT), file.path)
    assert instant_of_file(file.path) == INSTANT

    rows = pq.read_table(path)
    assert {*COLUMNS} < {*rows.column_names}
    assert set(rows["_hoodie_commit_time"].to_pylist()) == {INSTANT}
    assert set(rows["_hoodie_file_name"].to_pylist()) == {path.name}
    assert set(rows["_hoodie_partition_path"].to_pylist()) == {""}
    numbers = rows["_hoodie_commit_seqno"].to_pylist()
    assert [number.rpartition("_")[2] for number in numbers] == ["0", "1", "2", "3"]
    assert rows["_hoodie_record_key"].to_pylist() == numbers
    assert rows["id"].to_pylist() == [1, 2, 3, 4]


def test_no_reader_is_told_of_arrow_s_own_types(tmp_path: Path) -> None:
    """hudi-rs believes the footer, and knows no large lists."""
    (file,) = written(tmp_path)
    assert b"ARROW:schema" not in (pq.read_metadata(file.path[7:]).metadata or {})


def test_the_marker_and_the_partition_are_there_with_the_file(tmp_path: Path) -> None:
    (file,) = written(tmp_path)
    name = file.path.rpartition("/")[2]
    assert (tmp_path / f".hoodie/.temp/{INSTANT}/{name}.marker.CREATE").exists()
    about = (tmp_path / ".hoodie_partition_metadata").read_text()
    assert f"commitTime={INSTANT}\npartitionDepth=0\n" in about


def test_partitions_are_called_as_hudi_calls_them(tmp_path: Path) -> None:
    files = written(tmp_path, partition_by=("city", "hour"))
    folders = {file.path.removeprefix(f"file://{tmp_path}/").rpartition("/")[0] for file in files}
    nowhere = "__HIVE_DEFAULT_PARTITION__"
    assert folders == {
        "city=Łódź/hour=7",
        "city=a%2Fb%3Dc/hour=7",
        f"city={nowhere}/hour=7",
        f"city={nowhere}/hour={nowhere}",
    }
    for file in files:
        folder, _, name = file.path.removeprefix(f"file://{tmp_path}/").rpartition("/")
        rows = pq.read_table(tmp_path / folder / name, partitioning=None)
        assert set(rows["_hoodie_partition_path"].to_pylist()) == {folder}
        assert (tmp_path / f".hoodie/.temp/{INSTANT}/{folder}/{name}.marker.CREATE").exists()
        about = (tmp_path / folder / ".hoodie_partition_metadata").read_text()
        assert "partitionDepth=2" in about


def test_folders_may_be_called_by_the_value_alone(tmp_path: Path) -> None:
    marking = HudiFileMarking(f"file://{tmp_path}", "", ("hour",), hive_style=False)
    assert marking.partition_path([7]) == "7"


def test_a_record_key_is_the_text_of_its_column(tmp_path: Path) -> None:
    (file,) = written(tmp_path, key="id")
    rows = pq.read_table(file.path.removeprefix("file://"))
    assert rows["_hoodie_record_key"].to_pylist() == ["1", "2", "3", "4"]


@pytest.mark.parametrize("stamp", ["file:///elsewhere/*_20261123093000123.parquet", "/x/7", "*"])
def test_nothing_is_written_where_no_coordinator_says(tmp_path: Path, stamp: str) -> None:
    """TOKEN-1: START is read from a topic that others may write to."""
    location = f"file://{tmp_path}"
    layout = FileSchema("uuid", 1, FIELDS, location, marking=HudiFileMarking(location))
    shape = file_shape_of(plan_of_file_schema(layout, "db.t", SourcePlan(kafka={})))
    files = DataFiles(shape, stamp, 1 << 20)
    key, rows = next(iter(shape.partitioner.split(ROWS.cast(shape.arrow_schema))))
    with pytest.raises(WriteFailed, match="no place of the table"):
        files.write(key, rows)
    assert not [*tmp_path.iterdir()]


def test_dropped_work_leaves_no_file(tmp_path: Path) -> None:
    location = f"file://{tmp_path}"
    layout = FileSchema("uuid", 1, FIELDS, location, marking=HudiFileMarking(location))
    shape = file_shape_of(plan_of_file_schema(layout, "db.t", SourcePlan(kafka={})))
    files = DataFiles(shape, commit_token_of(location, INSTANT), 1 << 20)
    for key, rows in shape.partitioner.split(ROWS.cast(shape.arrow_schema)):
        files.write(key, rows)
    files.discard()
    assert not [*tmp_path.rglob("*.parquet")]
