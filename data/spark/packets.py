"""Packs rows of a table for Spark's shuffle: many of one table partition in one value.

So every type of the table keeps its bits, and the JVM only moves bytes. A packet goes to the task
of its ``PLACE``, which is the same number for all rows of a table partition. For a range
distribution over a table with a sort order, packets are short runs of sorted rows, and carry the
sort values of their first row: ranges of packets are then ranges of rows, up to a packet's length.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from headgate.data.transform.result_rows import RECORD, Numbered
from headgate.data.transform.spark_types import to_spark
from headgate.data.writers.partitioning import Partitioner
from headgate.data.writers.plan import WriterPlan
from headgate.data.writers.sorting import Sorter
from headgate.data.writers.transforms import TransformedColumn
from headgate.participant.settings import Distribution

PLACE = "_headgate_place"
PACKET = "_headgate_packet"
_SORT = "_headgate_sort_"

BUFFER_BYTES = 64 * 1024 * 1024
_PACKET_BYTES = 4 * 1024 * 1024
_SORTED_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows that travel together, and the place that they go to."""

    place: int
    rows: pa.Table

    def packet(self) -> bytes:
        # Combined, so that a packet holds its own rows and not the buffers of its neighbours.
        packed: bytes = self.rows.combine_chunks().to_batches()[0].serialize().to_pybytes()
        return packed


class Packing:
    """Packs rows of one table. ``schema`` is that of the packets.

    ``table``: its name if there are many, so that each table's rows go to places of their own.
    """

    def __init__(self, plan: WriterPlan, table: str = "") -> None:
        self._table = table
        self._rows = _with_record(plan.arrow_schema())
        self._partitioner = Partitioner(plan.spec(), plan.schema())
        ranged = plan.shaping.distribution is Distribution.RANGE
        order = plan.sort_order()
        self._sorter = Sorter(order, plan.schema())
        self._sort_columns = [
            TransformedColumn(field.transform, field.source_id, plan.schema(), "sort field")
            for field in order.fields
            if ranged
        ]
        empty = plan.arrow_schema().empty_table()
        sort_types = [_comparable(column.of(empty)).type for column in self._sort_columns]
        self.sort_names = [f"{_SORT}{place}" for place in range(len(sort_types))]
        self.schema = pa.schema(
            [
                (PLACE, pa.int32()),
                (PACKET, pa.binary()),
                *zip(self.sort_names, sort_types, strict=True),
            ]
        )

    def packed(self, rows: Iterator[Numbered]) -> Iterator[pa.RecordBatch]:
        """Yield packets, one at a time; ``BUFFER_BYTES`` of rows wait to fill them."""
        waiting: list[pa.RecordBatch] = []
        waiting_bytes = 0
        for numbered in rows:
            waiting.append(self.joined(numbered))
            waiting_bytes += waiting[-1].nbytes
            if waiting_bytes >= BUFFER_BYTES:
                yield from map(self._packet, self.cut(waiting))
                waiting, waiting_bytes = [], 0
        if waiting:
            yield from map(self._packet, self.cut(waiting))

    def unpacked(self, packet: pa.Scalar) -> Numbered:
        """Return the rows of one packet."""
        read = pa.ipc.read_record_batch(packet.as_buffer(), self._rows)
        return Numbered(read.drop_columns([RECORD]), np.asarray(read.column(RECORD)))

    def joined(self, numbered: Numbered) -> pa.RecordBatch:
        """Return the rows with their numbers."""
        columns = [*numbered.rows.columns, pa.array(numbered.numbers)]
        return pa.RecordBatch.from_arrays(columns, schema=self._rows)

    def cut(self, waiting: list[pa.RecordBatch]) -> Iterator[Cut]:
        """Yield rows and their numbers as packets of one place each."""
        for key, rows in self._partitioner.split(pa.Table.from_batches(waiting)):
            place = zlib.crc32(f"{self._table}{key.folder}".encode()) & 0x7FFFFFFF
            step = max(1, int(rows.num_rows * _PACKET_BYTES / max(1, rows.nbytes)))
            if self._sort_columns:
                rows, step = self._sorter.sorted(rows), min(step, _SORTED_ROWS)  # noqa: PLW2901
            for begin in range(0, rows.num_rows, step):
                yield Cut(place, rows.slice(begin, step))

    def sort_values(self, cut: Cut) -> list[pa.Array]:
        """Return the sort values of the first row; empty if nothing is cut by them."""
        first = cut.rows.slice(0, 1).combine_chunks()
        return [_comparable(column.of(first)) for column in self._sort_columns]

    def _packet(self, cut: Cut) -> pa.RecordBatch:
        place, packet = pa.array([cut.place], pa.int32()), pa.array([cut.packet()], pa.binary())
        return pa.RecordBatch.from_arrays(
            [place, packet, *self.sort_values(cut)], schema=self.schema
        )


def _with_record(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(RECORD, pa.int64()))


def _comparable(values: pa.Array) -> pa.Array:
    """Convert to a type that Spark knows, with the same order."""
    kind = values.type
    if kinds.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    if kinds.is_time(kind) or (kinds.is_timestamp(kind) and kind.unit == "ns"):
        return values.cast(pa.int64())
    return values.cast(to_spark(pa.schema([("", kind)]))[0].field(0).type)
