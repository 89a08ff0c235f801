"""What a transform gives becomes rows of the table: whole, named where wrong, of known records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, UUIDType

from headgate.control_protocol.errors import ConfigurationError, PoisonRecord, TransformFailed
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.data_plane.batch.record_numbers import RecordNumbers
from headgate.data_plane.batch.writer_task_plan import SourcePlan, TableShape, WriterPlan
from headgate.data_plane.transform.result_rows import (
    RECORD,
    ResultRows,
    require_valid_result,
    rows_until_stop_then_raise,
)

TABLE = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "mark", UUIDType()),
    NestedField(3, "topic", StringType()),
    NestedField(4, "part", IntegerType()),
    NestedField(5, "place", LongType()),
    NestedField(6, "key", StringType()),
)
PARTS = {"topic": "topic", "partition": "part", "offset": "place", "key": "key"}
PLAN = WriterPlan(
    source=SourcePlan({}, record_columns=PARTS),
    shape=TableShape(
        schema_json=TABLE.model_dump_json(),
        spec_json=UNPARTITIONED_PARTITION_SPEC.model_dump_json(),
        sort_order_json=UNSORTED_SORT_ORDER.model_dump_json(),
        table_properties={},
        location="",
    ),
    io_properties={},
)
RANGES = {
    TopicPartition("b", 1): OffsetRange(10, 20),
    TopicPartition("a", 0): OffsetRange(5, 5),
    TopicPartition("a", 2): OffsetRange(100, 103),
}
GIVEN = pa.schema(
    [("key", pa.string()), ("id", pa.int32()), ("mark", pa.string()), (RECORD, pa.int64())]
)
UUID = "123e4567-e89b-12d3-a456-426614174000"


def result() -> ResultRows:
    return ResultRows(PLAN, RecordNumbers(RANGES), "transform.sql")


def batch(*rows: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=GIVEN)


def test_rows_get_the_tables_columns_and_the_records_own_coordinates() -> None:
    require_valid_result(GIVEN, PLAN, "transform.sql")
    numbered = result().convert_batch(
        batch(
            {"id": 7, "mark": UUID, "key": "k", RECORD: 2},
            {"id": 8, "mark": None, "key": None, RECORD: 3},
        )
    )
    rows = [{**row, "mark": row["mark"] and str(row["mark"])} for row in numbered.rows.to_pylist()]
    assert rows == [
        {"id": 7, "mark": UUID, "topic": "a", "part": 2, "place": 102, "key": "k"},
        {"id": 8, "mark": None, "topic": "b", "part": 1, "place": 10, "key": None},
    ]
    assert numbered.numbers.tolist() == [2, 3]


def test_f35_what_it_says_of_topic_partition_and_offset_does_not_count() -> None:
    given = pa.RecordBatch.from_pylist([{"id": 1, "place": 5, "key": None, RECORD: 0}])
    assert result().convert_batch(given).rows.column("place").to_pylist() == [100]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"id": None, RECORD: 1}, "id: a required value is missing"),
        ({"id": 1, "mark": "no UUID", RECORD: 1}, "mark"),
    ],
)
def test_a_value_that_does_not_fit_names_record_and_transform(
    row: dict[str, object], told: str
) -> None:
    with pytest.raises(PoisonRecord, match=r"a partition 2 offset 101: transform\.sql") as bad:
        result().convert_batch(batch({"id": 3, RECORD: 0}, row))
    assert told in bad.value.message
    assert bad.value.first == Offsets({TopicPartition("a", 2): 101})


def test_after_a_row_that_does_not_fit_the_others_are_only_looked_at_for_more_of_them() -> None:
    """BATCH-2: each task finds the first such record of all its partitions at once."""
    given = [
        batch({"id": 3, RECORD: 0}),
        batch({"id": None, RECORD: 2}),
        batch({"id": 4, RECORD: 3}),
    ]
    given.append(batch({"id": None, RECORD: 1}))
    rows = result()
    found = rows_until_stop_then_raise(given, lambda each: (rows.convert_batch(each),))
    assert next(found).numbers.tolist() == [0]
    with pytest.raises(PoisonRecord) as stopped:
        next(found)
    assert stopped.value.first == Offsets({TopicPartition("a", 2): 101})


@pytest.mark.parametrize("number", [-1, 13, None])
def test_a_row_of_no_record_ends_it(number: int | None) -> None:
    with pytest.raises(TransformFailed, match=RECORD):
        result().convert_batch(batch({"id": 1, RECORD: number}))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ([("id", pa.int64()), ("key", pa.string())], f"loses the column {RECORD}"),
        ([*GIVEN, ("more", pa.int64())], "'more', which the table has not"),
        ([*GIVEN, ("id", pa.int64())], "'id' twice"),
        ([("key", pa.string()), (RECORD, pa.int64())], "no column 'id'"),
        ([("id", pa.int64()), (RECORD, pa.int64())], "no column 'key'"),
        ([("id", pa.string()), ("key", pa.string()), (RECORD, pa.int64())], "'id' as string"),
    ],
)
def test_columns_that_are_not_the_tables_are_refused_before_any_row(
    fields: list[tuple[str, pa.DataType]], told: str
) -> None:
    schema = pa.schema(fields)
    with pytest.raises(ConfigurationError) as refused:
        require_valid_result(schema, PLAN, "transform.sql")
    assert told in refused.value.message


def test_every_offset_has_a_number_of_its_own_in_every_process() -> None:
    numbering = RecordNumbers(RANGES)
    other = RecordNumbers(dict(reversed(RANGES.items())))
    partitions = list(RANGES)
    pairs = [(place, o) for place, at in enumerate(partitions) for o in range(*_ends(RANGES[at]))]
    places, offsets = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    numbers = numbering.numbers_of_records(partitions, places, offsets)
    assert sorted(numbers.tolist()) == list(range(13))
    assert (other.numbers_of_records(partitions, places, offsets) == numbers).all()
    back, again = numbering.locate_records(numbers)
    assert [numbering.partitions[place] for place in back] == [partitions[at] for at in places]
    assert (again == offsets).all()
    assert numbering.describe_record(3) == "b partition 1 offset 10"


def _ends(span: OffsetRange) -> tuple[int, int]:
    return span.begin, span.end
