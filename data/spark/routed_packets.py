"""Packs rows of many tables for Spark's shuffle: packets that name their table.

A table partition has one place, as with one table (``packets``); another table's has another. The
sort order of a range distribution differs from table to table, so a packet carries its values as
bytes that compare like them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headgate.data.spark.packets import BUFFER_BYTES, PACKET, PLACE, Packing
from headgate.data.transform.result_tables import TableRows
from headgate.data.writers.plan import WriterPlan
from headgate.participant.settings import Distribution

TABLE = "_headgate_table"
_SORT = "_headgate_sort"
_DECIMAL_DIGITS = 38


@dataclass(slots=True)
class _Waiting:
    """Rows of one table that wait for their packets."""

    packing: Packing
    index: int
    rows: list[pa.RecordBatch] = field(default_factory=list)
    octets: int = 0


class RoutedPacking:
    """Packs rows of many tables. ``schema`` is that of the packets."""

    def __init__(self, plan: WriterPlan) -> None:
        self._shaping = plan.shaping
        self._plans = {name: each.plan for name, each in plan.tables.items() if each.plan}
        self._names = sorted(self._plans)
        self._open: dict[str, _Waiting] = {}
        ranged = plan.shaping.distribution is Distribution.RANGE
        self.sort_names = [_SORT] if ranged else []
        columns = [(PLACE, pa.int32()), (TABLE, pa.int32()), (PACKET, pa.binary())]
        self.schema = pa.schema([*columns, *((name, pa.binary()) for name in self.sort_names)])

    def packed(self, rows: Iterator[TableRows]) -> Iterator[pa.RecordBatch]:
        """Yield packets, one at a time.

        ``BUFFER_BYTES`` of rows of all tables wait to fill them.
        """
        for some in rows:
            table = self._table(some.table)
            table.rows.append(table.packing.joined(some.numbered))
            table.octets += table.rows[-1].nbytes
            while sum(each.octets for each in self._open.values()) >= BUFFER_BYTES:
                yield from self._flushed(max(self._open.values(), key=lambda each: each.octets))
        for table in self._open.values():
            yield from self._flushed(table)

    def unpacked(self, table: int, packet: pa.Scalar) -> TableRows:
        """Return the rows of one packet."""
        name = self._names[table]
        return TableRows(name, self._table(name).packing.unpacked(packet))

    def _table(self, name: str) -> _Waiting:
        if name not in self._open:
            plan = replace(self._plans[name], shaping=self._shaping)
            self._open[name] = _Waiting(Packing(plan, name), self._names.index(name))
        return self._open[name]

    def _flushed(self, table: _Waiting) -> Iterator[pa.RecordBatch]:
        rows, table.rows, table.octets = table.rows, [], 0
        for cut in table.packing.cut(rows) if rows else ():
            values: list[Any] = [cut.place, table.index, cut.packet()]
            if self.sort_names:
                first = [value[0].as_py() for value in table.packing.sort_values(cut)]
                values.append(sort_key(first))
            columns = [
                pa.array([value], column.type)
                for value, column in zip(values, self.schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def sort_key(values: Sequence[Any]) -> bytes:
    """Return bytes that compare like the values, whose kinds are in one order; null is first."""
    return b"".join(b"\0" if value is None else b"\1" + _ordered(value) for value in values)


def _ordered(value: Any) -> bytes:
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        return struct.pack(">Q", value + (1 << 63))
    if isinstance(value, float):
        return _ordered_float(value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").encode()
    if isinstance(value, date):
        return struct.pack(">Q", value.toordinal())
    if isinstance(value, Decimal):
        whole = int(value.scaleb(_DECIMAL_DIGITS)) + (1 << 255)
        return whole.to_bytes(32, "big")
    octets = value.encode() if isinstance(value, str) else bytes(value)
    return octets.replace(b"\0", b"\0\xff") + b"\0\0"


def _ordered_float(value: float) -> bytes:
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    flipped = bits ^ 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63
    return struct.pack(">Q", flipped)
