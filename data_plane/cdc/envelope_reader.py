"""Reads values once: the rows where their envelope has them, and the words next to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headgate.data_plane.cdc.operations import Operation, Operations
from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.formats.format_with_column_options import Inside, RuledColumns
from headgate.data_plane.formats.record_format import Faults, RecordFormat, UndecodableRecords
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags, Integers

_OURS = "headgate."
"""Prefix of columns that are not the table's."""

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnwrappedValues:
    """Holds what is in values, without the ``bad`` ones, in their order.

    ``rows``: the columns, any of which may be null. ``before``: the key's columns of the former
    row, null if unknown.
    """

    rows: pa.RecordBatch
    before: pa.RecordBatch
    operations: Operations
    bad: Mapping[int, str]

    def without_rows(self, some: Flags) -> UnwrappedValues:
        """Return this without some of the rows."""
        kept = pa.array(~some)
        rows, before = self.rows.filter(kept), self.before.filter(kept)
        return UnwrappedValues(rows, before, self.operations[~some], self.bad)

    def with_tombstones(
        self, row_places: Integers, tombstone_places: Integers, operation: Operation
    ) -> UnwrappedValues:
        """Add records of which nothing is known but that they do ``operation``.

        The rows stand at ``row_places``, those records at ``tombstone_places``; the result is in
        the order of the places.
        """
        order = np.argsort(np.concatenate([row_places, tombstone_places]))
        known = np.concatenate(
            [np.arange(len(row_places)), np.zeros(len(tombstone_places), np.int64)]
        )[order]
        wanted = pa.array(known, mask=order >= len(row_places))
        added = np.full(len(tombstone_places), operation, np.uint8)
        operations = np.concatenate([self.operations, added])[order]
        return UnwrappedValues(
            self.rows.take(wanted), self.before.take(wanted), operations, self.bad
        )


@dataclass(frozen=True, slots=True)
class Columns:
    """Says what to read of a row: the ``schema``, some columns of which are the ``key``, and rules.

    ``format_of`` builds a format of values.
    """

    schema: pa.Schema
    key: Sequence[str]
    rules: Mapping[str, ColumnRule]
    format_of: Callable[[], RecordFormat]
    caseless: bool = False

    def key_columns_only(self) -> Columns:
        """Return the key's columns alone."""
        schema = pa.schema([column for column in self.schema if column.name in self.key])
        rules = {name: rule for name, rule in self.rules.items() if name in schema.names}
        return replace(self, schema=schema, rules=rules)


@dataclass(frozen=True, slots=True)
class Parts:
    """Holds what was read from all values but the bad ones; ``left`` lists whose it is."""

    rows: pa.RecordBatch
    before: pa.RecordBatch
    words: Sequence[pa.Array]
    left: Integers
    bad: dict[int, str]

    def to_unwrapped(self, operations: Operations, faults: Faults) -> UnwrappedValues:
        """Return the values with these operations; ``faults``: rows whose operation is unknown."""
        if not faults.reasons:
            return UnwrappedValues(self.rows, self.before, operations, self.bad)
        wrong = np.zeros(len(operations), np.bool_)
        wrong[list(faults.reasons)] = True
        bad = {int(self.left[row]): reason for row, reason in faults.reasons.items()}
        return UnwrappedValues(self.rows, self.before, operations, self.bad | bad).without_rows(
            wrong
        )


class EnvelopeReader:
    """Reads the row under the path ``row``, its former key under ``before``, and the ``words``.

    Of words that are ``texts`` in all records of an envelope, any other value is a fault; else
    they are read as text whatever they are, which costs another pass.
    """

    def __init__(
        self,
        columns: Columns,
        row: Path = (),
        before: Path = (),
        words: Sequence[Path] = (),
        *,
        texts: bool = False,
    ) -> None:
        fields = [column.with_nullable(nullable=True) for column in columns.schema]
        inside = {column.name: Inside(row, column) for column in fields if row}
        rules = dict(columns.rules)
        self._width = len(fields)
        self._keys = [column for column in fields if column.name in columns.key]
        self._before = bool(before)
        for key in self._keys if before else ():
            name = f"{_OURS}before.{key.name}"
            fields.append(key.with_name(name))
            inside[name] = Inside(before, key)
            rules |= {name: rules[key.name]} if key.name in rules else {}
        for path in words:
            name = f"{_OURS}word.{'.'.join(path)}"
            fields.append(pa.field(name, pa.large_string()))
            rules[name] = ColumnRule(path, as_text=not texts)
        self._schema = pa.schema(fields)
        self._format: RecordFormat = columns.format_of()
        if rules or inside:
            self._format = RuledColumns(
                self._format, rules, self._schema, caseless=columns.caseless, inside=inside
            )

    def read(self, values: Packed) -> Parts:
        bad: dict[int, str] = {}
        left = np.arange(len(values), dtype=np.int64)
        try:
            result = self._format.decode(values, self._schema)
        except UndecodableRecords as error:
            result, bad = error.rest, dict(error.bad)
            left = left[~np.isin(left, list(bad))]
        end = self._width + (len(self._keys) if self._before else 0)
        return Parts(
            result.select(range(self._width)),
            self._former_keys_of(result, end),
            result.columns[end:],
            left,
            bad,
        )

    def _former_keys_of(self, decoded: pa.RecordBatch, keys_end: int) -> pa.RecordBatch:
        columns = (
            decoded.columns[self._width : keys_end]
            if self._before
            else [pa.nulls(decoded.num_rows, key.type) for key in self._keys]
        )
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(self._keys))
