"""What a query's checkpoint says of a batch (QUERY-11), as Spark writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock, call

import pytest
from pyspark.errors import AnalysisException

from headgate.control_protocol.errors import CheckpointUnreadable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.spark import batches
from headgate.spark.checkpoint import read_proposed_batch

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
READ: Callable[[str], str] = lambda path: Path(path).read_text()  # noqa: E731


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "sources/0").mkdir(parents=True)
    (tmp_path / "metadata").write_text('{"id":"q"}')
    (tmp_path / "sources/0/0").write_text('\0v1\n{"t":{"0":3}}')
    (tmp_path / "offsets/0").write_text('v1\n{"batchWatermarkMs":0}\n{"t":{"0":7}}')
    (tmp_path / "offsets/1").write_text('v1\n{"batchWatermarkMs":0}\n{"t":{"0":7,"1":4}}')
    return tmp_path


def test_query_11_a_batch_is_what_lies_between_two_entries(checkpoint: Path) -> None:
    first = read_proposed_batch(str(checkpoint), 0, READ)
    assert (first.query, first.begin, first.end) == ("q", Offsets({A: 3}), Offsets({A: 7}))
    second = read_proposed_batch(f"{checkpoint}/", 1, READ)
    assert (second.begin, second.end) == (Offsets({A: 7, B: 0}), Offsets({A: 7, B: 4}))


@pytest.mark.parametrize(
    "text",
    ["", "v2\n{}\n{}", "v1\n{}", "v1", 'v1\n{}\n{"t":{"0":', "VERSION_1\n{}\n{}"],
)
def test_query_11_another_version_and_a_torn_file_are_refused(checkpoint: Path, text: str) -> None:
    (checkpoint / "offsets/1").write_text(text)
    with pytest.raises(CheckpointUnreadable):
        read_proposed_batch(str(checkpoint), 1, READ, spark_version="4.1.4")


@pytest.mark.parametrize(
    ("root", "local"),
    [
        ("{}", True),
        ("file:{}", True),
        ("file://{}", True),
        ("dbfs:/ckpt", False),
        ("hdfs:/ckpt", False),
        ("s3a://bucket/ckpt", False),
    ],
)
def test_query_11_a_checkpoint_is_read_however_its_file_system_is_spelled(
    checkpoint: Path, root: str, local: bool
) -> None:
    frame = Mock()
    frame.sparkSession.read.text.return_value.collect.return_value = [['{"id":"q"}']]
    path = f"{root.format(checkpoint)}/metadata"
    assert batches._read_text_file(frame, path) == '{"id":"q"}'
    assert frame.sparkSession.read.text.call_args_list == (
        [] if local else [call(path, wholetext=True)]
    )


def test_query_11_a_checkpoint_without_a_scheme_may_be_on_spark_s_own_file_system() -> None:
    """Spark resolves it by ``fs.defaultFS``, which no public call tells."""
    frame, path = Mock(), "/not/on/this/machine/metadata"
    frame.sparkSession.read.text.return_value.collect.return_value = [['{"id":"q"}']]
    assert batches._read_text_file(frame, path) == '{"id":"q"}'
    frame.sparkSession.read.text.side_effect = AnalysisException("[PATH_NOT_FOUND] " + path)
    with pytest.raises(FileNotFoundError):
        batches._read_text_file(frame, path)


@pytest.mark.parametrize("name", ["metadata", "offsets/0", "offsets/1"])
def test_query_11_a_file_that_is_missing_is_refused(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointUnreadable):
        read_proposed_batch(str(checkpoint), 1, READ)


def test_query_11_a_source_that_had_given_nothing_begins_where_it_began(checkpoint: Path) -> None:
    (checkpoint / "offsets/0").write_text("v1\n{}\n-")
    assert read_proposed_batch(str(checkpoint), 1, READ).begin == Offsets({A: 3, B: 0})
    (checkpoint / "sources/0/0").unlink()
    with pytest.raises(CheckpointUnreadable, match="sources/0/0"):
        read_proposed_batch(str(checkpoint), 1, READ)


def test_query_11_where_a_source_began_is_not_guessed_while_nobody_answers(
    checkpoint: Path,
) -> None:
    """Without it the batch would be placed by its number, as of another kind of source."""

    def read(path: str) -> str:
        if "sources" in path:
            raise TimeoutError(path)
        return READ(path)

    with pytest.raises(CheckpointUnreadable, match="sources/0/0 cannot be read: TimeoutError"):
        read_proposed_batch(str(checkpoint), 0, read)


def test_query_11_where_kafka_began_is_never_guessed(checkpoint: Path) -> None:
    """Stored by its number, the batch would be taken again once it is placed by its offsets."""
    (checkpoint / "sources/0/0").unlink()
    with pytest.raises(CheckpointUnreadable, match="sources/"):
        read_proposed_batch(str(checkpoint), 0, READ)
    (checkpoint / "offsets/0").write_text('v1\n{}\n{"logOffset":3}')
    assert read_proposed_batch(str(checkpoint), 0, READ).by_number


def test_query_11_a_kafka_source_that_began_with_no_partition_is_placed_by_offsets(
    checkpoint: Path,
) -> None:
    """By its number, the offsets of the first rows would not be stored."""
    (checkpoint / "sources/0/0").write_text("\0v1\n{}")
    first = read_proposed_batch(str(checkpoint), 0, READ)
    assert (first.by_number, first.begin, first.end) == (False, Offsets({A: 0}), Offsets({A: 7}))
    (checkpoint / "offsets/0").write_text("v1\n{}\n{}")
    empty = read_proposed_batch(str(checkpoint), 0, READ)
    assert (empty.by_number, empty.begin, empty.end) == (False, Offsets(), Offsets())
    second = read_proposed_batch(str(checkpoint), 1, READ)
    assert (second.begin, second.end) == (Offsets({A: 0, B: 0}), Offsets({A: 7, B: 4}))


@pytest.mark.parametrize("line", ['{"logOffset":3}', "17", '{"t":{"0":7}}\n{"t":{"0":7}}'])
def test_query_10_other_sources_and_a_partition_read_twice_have_numbers_alone(
    checkpoint: Path, line: str
) -> None:
    for number in (0, 1):
        (checkpoint / f"offsets/{number}").write_text(f"v1\n{{}}\n{line}")
    assert read_proposed_batch(str(checkpoint), 1, READ).by_number


def test_query_11_version_1_is_what_this_spark_writes_and_anything_may_be_cut_off(
    checkpoint: Path,
) -> None:
    whole = (checkpoint / "offsets/1").read_text()
    for length in range(len(whole)):
        (checkpoint / "offsets/1").write_text(whole[:length])
        with pytest.raises(CheckpointUnreadable):
            read_proposed_batch(str(checkpoint), 1, READ)
    assert json.loads(whole.splitlines()[2])
