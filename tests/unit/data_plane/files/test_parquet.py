"""Dictionaries where values come again, none where nearly each is another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    UUIDType,
)
from support.local_catalog import local_catalog

from headgate.control_protocol.events import TableStart
from headgate.data_plane.batch.writer_task_plan import SourcePlan, load_table_and_plan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.data_plane.files.metrics import leaves_of, metrics_modes
from headgate.data_plane.files.parquet import columns_for_dictionary
from headgate.data_plane.files.partitioning import PartitionKey

ROWS = 60_000
NUMBERS = np.arange(ROWS)
CHANCE = np.random.default_rng(1)


def dictionary_of(values: pa.Array, kind: PrimitiveType, pieces: int = 3) -> bool:
    """Whether a column of these values, that come in so many chunks, begins one."""
    schema = Schema(NestedField(1, "a", kind))
    step = len(values) // pieces + 1
    chunks = [values[at : at + step] for at in range(0, len(values), step)]
    rows = pa.table({"a": pa.chunked_array([*chunks, values[:0]])})
    leaves = leaves_of(schema, metrics_modes(schema, {}, UNSORTED_SORT_ORDER))
    return columns_for_dictionary(leaves, rows) == ["a"]


@pytest.mark.parametrize("pieces", [1, 3, 60])
def test_what_never_comes_again_has_none(pieces: int) -> None:
    assert not dictionary_of(pa.array(NUMBERS), LongType(), pieces)
    texts = pa.array([f"text {number}" for number in NUMBERS])
    assert not dictionary_of(texts, StringType(), pieces)
    sparse = pa.array(NUMBERS, mask=CHANCE.random(ROWS) < 0.5)
    assert not dictionary_of(sparse, LongType(), pieces)


def test_types_that_arrow_wraps_or_calculates_with() -> None:
    octets = pa.array([int(number).to_bytes(16) for number in NUMBERS], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), octets)
    assert not dictionary_of(uuids, UUIDType())
    amounts = pa.array(NUMBERS).cast(pa.decimal128(38, 2))
    assert not dictionary_of(amounts, DecimalType(38, 2))
    assert dictionary_of(pa.array(NUMBERS % 2 == 0), BooleanType())


@pytest.mark.parametrize("period", [1, 256, 1000, 20_011])
def test_what_comes_again_has_one(period: int) -> None:
    assert dictionary_of(pa.array(NUMBERS % period), LongType())
    assert dictionary_of(pa.array(CHANCE.integers(0, period, ROWS)), LongType())
    assert dictionary_of(pa.array(NUMBERS // 3), LongType())


def test_nothing_at_all_has_one() -> None:
    assert dictionary_of(pa.nulls(ROWS, pa.int64()), LongType())


def test_of_few_rows_nothing_is_known() -> None:
    assert dictionary_of(pa.array(NUMBERS[:1000]), LongType())


def test_columns_inside_of_others_have_one() -> None:
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "s", StructType(NestedField(3, "id", LongType()))),
        NestedField(4, "l", ListType(5, LongType())),
    )
    rows = pa.table(
        {
            "id": NUMBERS,
            "s": [{"id": number} for number in NUMBERS.tolist()],
            "l": [[number] for number in NUMBERS.tolist()],
        }
    )
    leaves = leaves_of(schema, metrics_modes(schema, {}, UNSORTED_SORT_ORDER))
    assert columns_for_dictionary(leaves, rows) == ["s.id", "l.list.element"]


def test_files_are_written_so(tmp_path: Path) -> None:
    local = local_catalog(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "few", LongType()))
    table = local.catalog.create_table("db.t", schema)
    prefix = f"{table.location()}/data/nonce"
    start = TableStart("db.t", str(table.metadata.table_uuid), 0, 0, prefix)
    shape = file_shape_of(load_table_and_plan(local.catalog, start, SourcePlan({})))
    files = DataFiles(shape, prefix, 1 << 27)
    rows = pa.table({"id": NUMBERS, "few": NUMBERS % 7}).cast(shape.arrow_schema)
    files.write(PartitionKey(), rows)
    (file,) = files.finish()
    path = file.path.removeprefix("file://")
    group = pq.read_metadata(path).row_group(0)
    assert [group.column(place).has_dictionary_page for place in (0, 1)] == [False, True]
    assert pq.read_table(path).equals(rows)
    local.catalog.close()
