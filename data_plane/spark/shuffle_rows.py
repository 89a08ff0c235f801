"""Packs rows for Spark's shuffle: many of one table's partition in one value.

So every type of the table keeps its bits, and the JVM only moves bytes. A packet goes to the task
of its ``PLACE``, which is the same number for all rows of a table partition. For a range
distribution over a table with a sort order, packets are short runs of sorted rows, and carry the
sort values of their first row, as bytes that compare like them (the order differs from table to
table): ranges of packets are then ranges of rows, up to a packet's length.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.routed_table import tables_of_plan
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.files.partitioning import Partitioner, TransformedColumn
from headgate.data_plane.files.sorting import Sorter
from headgate.data_plane.transform.result_routing import TableRows
from headgate.data_plane.transform.result_rows import RECORD, Numbered
from headgate.participant.settings import Distribution

PLACE = "_headgate_place"
PACKET = "_headgate_packet"
TABLE = "_headgate_table"
_SORT = "_headgate_sort"

BUFFER_BYTES = 64 * 1024 * 1024
_PACKET_BYTES = 4 * 1024 * 1024
_SORTED_ROWS = 1024
_DECIMAL_DIGITS = 38
_ALL_DIGITS = Context(prec=2 * _DECIMAL_DIGITS)


@dataclass(frozen=True, slots=True)
class Cut:
    """Holds rows that travel together, and the place that they go to."""

    place: int
    rows: pa.Table

    def to_packet(self) -> bytes:
        # Combined, so that a packet holds its own rows and not the buffers of its neighbours.
        packed: bytes = self.rows.combine_chunks().to_batches()[0].serialize().to_pybytes()
        return packed


class _TablePacking:
    """Packs rows of one table; ``rows`` wait for their packets."""

    def __init__(
        self, plan: WriterPlan, distribution: Distribution, table: str, index: int
    ) -> None:
        self.index = index
        self.waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._name = table
        self._rows = plan.shape.arrow_schema().append(pa.field(RECORD, pa.int64()))
        self._partitioner = Partitioner(plan.shape.spec(), plan.shape.schema())
        order = plan.shape.sort_order()
        self._sorter = Sorter(order, plan.shape.schema())
        self._sort_columns = [
            TransformedColumn(field.transform, field.source_id, plan.shape.schema(), "sort field")
            for field in order.fields
            if distribution is Distribution.RANGE
        ]

    def add_rows(self, numbered: Numbered) -> None:
        columns = [*numbered.rows.columns, pa.array(numbered.numbers)]
        self.waiting.append(pa.RecordBatch.from_arrays(columns, schema=self._rows))
        self.waiting_bytes += self.waiting[-1].nbytes

    def unpack(self, packet: pa.Scalar) -> Numbered:
        """Return the rows of one packet."""
        read = pa.ipc.read_record_batch(packet.as_buffer(), self._rows)
        return Numbered(read.drop_columns([RECORD]), np.asarray(read.column(RECORD)))

    def drain_into_packets(self) -> Iterator[Cut]:
        """Yield what waits, rows and their numbers, as packets of one place each."""
        waiting, self.waiting, self.waiting_bytes = self.waiting, [], 0
        for key, rows in self._partitioner.split(pa.Table.from_batches(waiting, self._rows)):
            place = zlib.crc32(f"{self._name}{key.folder}".encode()) & 0x7FFFFFFF
            step = max(1, int(rows.num_rows * _PACKET_BYTES / max(1, rows.nbytes)))
            if self._sort_columns:
                rows, step = self._sorter.sort(rows), min(step, _SORTED_ROWS)  # noqa: PLW2901
            for begin in range(0, rows.num_rows, step):
                yield Cut(place, rows.slice(begin, step))

    def sort_key(self, cut: Cut) -> bytes:
        """Return the sort values of the first row; empty if nothing is cut by them."""
        first = cut.rows.slice(0, 1).combine_chunks()
        return sort_key(
            [
                _as_comparable(column.transformed_values(first))[0].as_py()
                for column in self._sort_columns
            ]
        )


def packet_schema(plan: WriterPlan) -> pa.Schema:
    """Return the schema of packets, whatever the tables."""
    columns = [(PLACE, pa.int32()), (TABLE, pa.int32()), (PACKET, pa.binary())]
    return pa.schema([*columns, *((name, pa.binary()) for name in packet_sort_columns(plan))])


def packet_sort_columns(plan: WriterPlan) -> list[str]:
    return [_SORT] if plan.shaping.distribution is Distribution.RANGE else []


class Packing:
    """Packs rows of a batch's one table, or of many. ``schema`` is that of the packets."""

    def __init__(self, plan: WriterPlan, batch: Batch) -> None:
        self._plan = plan
        self._plans = {
            name: each.plan for name, each in tables_of_plan(plan, batch).items() if each.plan
        }
        self._names = sorted(self._plans)
        self._open: dict[str, _TablePacking] = {}
        self.schema = packet_schema(plan)

    def pack(self, rows: Iterator[TableRows]) -> Iterator[pa.RecordBatch]:
        """Yield packets, one at a time.

        ``BUFFER_BYTES`` of rows of all tables wait to fill them.
        """
        for some in rows:
            self._packing_of(some.table).add_rows(some.numbered)
            while sum(each.waiting_bytes for each in self._open.values()) >= BUFFER_BYTES:
                yield from self._flush(
                    max(self._open.values(), key=lambda each: each.waiting_bytes)
                )
        for table in self._open.values():
            yield from self._flush(table)

    def unpack(self, table: int, packet: pa.Scalar) -> TableRows:
        """Return the rows of one packet."""
        name = self._names[table]
        return TableRows(name, self._packing_of(name).unpack(packet))

    def _packing_of(self, name: str) -> _TablePacking:
        if name not in self._open:
            self._open[name] = _TablePacking(
                *(self._plans[name], self._plan.shaping.distribution, name, self._names.index(name))
            )
        return self._open[name]

    def _flush(self, table: _TablePacking) -> Iterator[pa.RecordBatch]:
        for cut in table.drain_into_packets() if table.waiting else ():
            values = [cut.place, table.index, cut.to_packet(), table.sort_key(cut)]
            columns = [
                pa.array([value], column.type)
                for value, column in zip(values, self.schema, strict=False)  # the last: if ranged
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _as_comparable(values: pa.Array) -> pa.Array:
    """Convert to a type with the same order whose every value Python has: times may lie beyond the
    year 9999, which its own have not."""
    kind = values.type
    if kinds.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    if kinds.is_time(kind) or kinds.is_timestamp(kind):
        return values.cast(pa.int64())
    return values.cast(pa.int32()) if kinds.is_date32(kind) else values


def sort_key(values: Sequence[Any]) -> bytes:
    """Return bytes that compare like the values, whose kinds are in one order; null is first."""
    return b"".join(b"\0" if value is None else b"\1" + _sortable_bytes(value) for value in values)


def _sortable_bytes(value: Any) -> bytes:
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        return struct.pack(">Q", value + (1 << 63))
    if isinstance(value, float):
        return _sortable_float(value)
    if isinstance(value, Decimal):
        whole = int(value.scaleb(_DECIMAL_DIGITS, _ALL_DIGITS)) + (1 << 255)
        return whole.to_bytes(32, "big")
    data = value.encode() if isinstance(value, str) else bytes(value)
    return data.replace(b"\0", b"\0\xff") + b"\0\0"


def _sortable_float(value: float) -> bytes:
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    flipped = bits ^ 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63
    return struct.pack(">Q", flipped)
