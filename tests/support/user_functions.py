"""Provides transforms of Arrow batches as a user's package would: sinks of tests name them."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RECORD = "_headgate_record"
NEEDLE = "erika.mustermann@example.org"

calls: list[int] = []
"""How many rows each call got, in this process."""


def count_calls(records: pa.RecordBatch) -> pa.RecordBatch:
    calls.append(records.num_rows)
    return records


def cheap(records: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out what is not cheap; derive a column."""
    kept = records.filter(pc.less(records["fare"], 100))
    return kept.set_column(kept.schema.get_field_index("zone"), "zone", pc.utf8_upper(kept["zone"]))


def as_table(records: pa.RecordBatch) -> pa.Table:
    whole = pa.Table.from_batches([records])
    return pa.concat_tables([whole.slice(0, 2), whole.slice(2)])


def nothing(records: pa.RecordBatch) -> pa.RecordBatch:
    return records.slice(0, 0)


def backwards(records: pa.RecordBatch) -> pa.RecordBatch:
    """Change the order, and that of the columns."""
    turned = records.take(pa.array(np.arange(records.num_rows)[::-1]))
    return turned.select(turned.schema.names[::-1])


def double(records: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([records, records.slice(0, 1)])


def renumber(records: pa.RecordBatch) -> pa.RecordBatch:
    return _with_numbers(records, pc.add(records[RECORD], 1_000))


def renumber_within(records: pa.RecordBatch) -> pa.RecordBatch:
    """Give each row the number before its own: the first has none, and the last is another's."""
    return _with_numbers(records, pc.subtract(records[RECORD], 1))


def nullify(records: pa.RecordBatch) -> pa.RecordBatch:
    return _with_numbers(records, pa.nulls(records.num_rows, pa.int64()))


def as_floats(records: pa.RecordBatch) -> pa.RecordBatch:
    """Do as pandas does where a join leaves nulls."""
    return _with_numbers(records, records[RECORD].cast(pa.float64()))


def _with_numbers(records: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
    return records.drop_columns([RECORD]).append_column(RECORD, numbers)


def without_number(records: pa.RecordBatch) -> pa.RecordBatch:
    return records.drop_columns([RECORD])


def of_another_type(records: pa.RecordBatch) -> Any:
    return records.to_pylist()


def column_of_another_type(records: pa.RecordBatch) -> pa.RecordBatch:
    return records.set_column(0, "id", records["id"].cast(pa.large_string()))


def later_of_another_type(records: pa.RecordBatch) -> pa.RecordBatch:
    """Give good columns once, and another type from then on."""
    calls.append(records.num_rows)
    return records if len(calls) == 1 else column_of_another_type(records)


def with_a_strange_column(records: pa.RecordBatch) -> pa.RecordBatch:
    return records.append_column("more", records["id"])


def keeping_rows(records: pa.RecordBatch, kept: list[pa.RecordBatch] = []) -> pa.Table:  # noqa: B006
    """Keep state: each call gives what the one before got."""
    before = kept[:]
    kept[:] = [records]
    return pa.Table.from_batches(before, records.schema)


def nulling(records: pa.RecordBatch) -> pa.RecordBatch:
    """Give no id, which the table requires, where it is 3."""
    ids = pc.if_else(pc.equal(records["id"], 3), pa.scalar(None, pa.int64()), records["id"])
    return records.set_column(0, pa.field("id", pa.int64()), ids)


def raising_for_some(records: pa.RecordBatch) -> pa.RecordBatch:
    """Raise for an id that ends in 7."""
    calls.append(records.num_rows)
    for number, zone in zip(records["id"].to_pylist(), records["zone"].to_pylist(), strict=True):
        if number % 10 == 7:
            raise KeyError(zone)
    return records


def raising(records: pa.RecordBatch) -> pa.RecordBatch:
    calls.append(records.num_rows)
    raise ZeroDivisionError(f"so much for {NEEDLE}")


def unreachable(_: pa.RecordBatch) -> pa.RecordBatch:
    raise ConnectionRefusedError("the service of exchange rates is away")


def exiting(records: pa.RecordBatch) -> pa.RecordBatch:
    if 7 in records["id"].to_pylist():
        sys.exit(3)
    return records


def overwriting(records: pa.RecordBatch) -> pa.RecordBatch:
    """Write to the memory of what it got: Arrow does not protect it."""
    for column in records.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.is_mutable:
                np.frombuffer(buffer, np.uint8)[:] = 0
    return records


def overwriting_values(records: pa.RecordBatch) -> pa.RecordBatch:
    """Do that to the values of its rows, which then name no table."""
    named = records.append_column("_table", pa.nulls(records.num_rows, pa.string()))
    overwriting(records.drop_columns([RECORD]))
    return named


def odd(records: pa.RecordBatch) -> pa.RecordBatch:
    """Keep odd numbers, the last first."""
    kept = pc.equal(pc.bit_wise_and(records["number"], 1), 1)
    return backwards(records.filter(kept))


def to_tables(records: pa.RecordBatch) -> pa.RecordBatch:
    """Name the table of each row by its zone."""
    return records.append_column("_table", records["zone"])


def slow(records: pa.RecordBatch) -> pa.RecordBatch:
    """Sleep as long as the environment says."""
    time.sleep(float(os.environ.get("SLOW_FUNCTION_S", "0")))
    return records


def derive(records: pa.RecordBatch) -> pa.RecordBatch:
    """Do what the SQL of tests/integration/sink/test_transforms.py does."""
    kept = records.filter(pc.not_equal(pc.bit_wise_and(records["id"], 7), 0))
    return pa.RecordBatch.from_pydict(
        {
            "id": kept["id"],
            "zone": pc.utf8_upper(kept["zone"]),
            "day": kept["happened_at"].cast(pa.timestamp("us")).cast(pa.date32()),
            "twice": pc.multiply(kept["id"], 2),
            RECORD: kept[RECORD],
        }
    ).take(pa.array(np.arange(kept.num_rows)[::-1]))
