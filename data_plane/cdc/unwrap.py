"""Opens values' envelopes into rows, former keys and operations.

A format is asked for the fields of a row where the envelope has them, next to the words that
describe the change: whole columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.data_plane.cdc.envelope_reader import Columns, EnvelopeReader, Parts, UnwrappedValues
from headgate.data_plane.cdc.operations import (
    DEBEZIUM,
    DMS,
    DMS_LETTERS,
    DMS_TRUNCATES,
    Operation,
    Operations,
    operations_of,
    true_flags_of,
)
from headgate.data_plane.cdc.policy import Envelope
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.formats.unknown_fields import RowPlace
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags, Integers

ROW_PLACES: Mapping[Envelope, RowPlace] = {
    Envelope.PLAIN: RowPlace(),
    Envelope.DEBEZIUM: RowPlace(
        ("after",),
        frozenset({"before", "op", "source", "transaction", "ts_ms", "ts_us", "ts_ns"}),
    ),
    Envelope.FLATTENED: RowPlace(words=frozenset({"__deleted", "__op"})),
}
"""Envelopes whose rows are all in one place, where fields without a column are looked for."""


_IMAGES: Mapping[Envelope, tuple[str, ...]] = {
    Envelope.DEBEZIUM: ("before",),
    Envelope.DMS: ("before-image",),
}
"""Where values have the row before the change, if it is beside the row."""


class EnvelopeUnwrapper(Protocol):
    """Opens the values of one envelope. Serves one thread."""

    def unwrap(self, values: Packed) -> UnwrappedValues:
        """Open the values, none of which is null."""


def unwrapper_of(envelope: Envelope, columns: Columns) -> EnvelopeUnwrapper:
    """Raises ``ValueError`` for a rule's constant that its column cannot hold."""
    return _UNWRAPPERS[envelope](columns)


class BeforeImages:
    """Reads the rows before the change, of values of one envelope. Serves one thread."""

    def __init__(self, envelope: Envelope, columns: Columns) -> None:
        place = _IMAGES.get(envelope)
        self._reader = EnvelopeReader(columns, place) if place else None

    def read_before_images(self, values: Packed) -> pa.RecordBatch | None:
        """Return them; nulls where one cannot be read. ``None``: the envelope has none."""
        if self._reader is None:
            return None
        parts = self._reader.read(values)
        places, unread = np.zeros(len(values), np.int64), np.ones(len(values), np.bool_)
        places[parts.left], unread[parts.left] = np.arange(len(parts.left)), False
        return parts.rows.take(pa.array(places, mask=unread))


class _Plain:
    """Takes each value as a row."""

    def __init__(self, columns: Columns) -> None:
        self._reader = EnvelopeReader(columns)

    def unwrap(self, values: Packed) -> UnwrappedValues:
        parts = self._reader.read(values)
        operations = np.full(len(parts.left), Operation.UPSERT, np.uint8)
        return UnwrappedValues(parts.rows, parts.before, operations, parts.bad)


class _Debezium:
    """Opens ``{"before": ..., "after": ..., "op": ...}``."""

    def __init__(self, columns: Columns) -> None:
        self._reader = EnvelopeReader(columns, ("after",), ("before",), [("op",)], texts=True)

    def unwrap(self, values: Packed) -> UnwrappedValues:
        parts, faults = self._reader.read(values), Faults()
        return parts.to_unwrapped(operations_of(parts.words[0], DEBEZIUM, "op", faults), faults)


class _Flattened:
    """Opens rows with ``__deleted`` or ``__op`` among their fields, or with neither."""

    def __init__(self, columns: Columns) -> None:
        self._reader = EnvelopeReader(columns, words=[("__deleted",), ("__op",)])

    def unwrap(self, values: Packed) -> UnwrappedValues:
        parts, faults = self._reader.read(values), Faults()
        deleted, op = parts.words
        codes = operations_of(op.fill_null("c"), DEBEZIUM, "__op", faults)
        codes[true_flags_of(deleted, "__deleted", faults)] = Operation.DELETE
        return parts.to_unwrapped(codes, faults)


class _DeletesByKey:
    """Reopens values whose rows cannot be read: a deletion needs only its key.

    Debezium and AWS DMS fill the other columns of such a row with something, or nothing.
    """

    def __init__(self, made: Callable[[Columns], EnvelopeUnwrapper], columns: Columns) -> None:
        self._made, self._columns = made, columns
        self._opener = made(columns)
        self._by_key: EnvelopeUnwrapper | None = None

    def unwrap(self, values: Packed) -> UnwrappedValues:
        result = self._opener.unwrap(values)
        if not result.bad:
            return result
        if self._by_key is None:
            self._by_key = self._made(self._columns.key_columns_only())
        at = np.array(sorted(result.bad), np.int64)
        again = self._by_key.unwrap(values.take(at))
        deletes = again.operations == Operation.DELETE
        kept = np.delete(at, list(again.bad))[deletes]
        if not len(kept):
            return result
        return _with_deletes(result, again.without_rows(~deletes), kept, len(values))


def _with_deletes(
    found: UnwrappedValues, deletes: UnwrappedValues, at: Integers, count: int
) -> UnwrappedValues:
    """Add ``deletes``: of the values at these places, which ``found`` calls bad."""
    left = np.delete(np.arange(count), list(found.bad))
    order = pa.array(np.argsort(np.concatenate([left, at])))
    there = deletes.rows.schema.names
    columns = [
        deletes.rows.column(column.name) if column.name in there else pa.nulls(len(at), column.type)
        for column in found.rows.schema
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=found.rows.schema)
    operations = np.concatenate([found.operations, deletes.operations])
    return UnwrappedValues(
        pa.concat_batches([found.rows, rows]).take(order),
        pa.concat_batches([found.before, deletes.before]).take(order),
        operations[np.asarray(order)],
        {row: reason for row, reason in found.bad.items() if row not in set(at.tolist())},
    )


class _Dms:
    """Opens ``{"data": ..., "metadata": {"operation": ...}}``, or rows with an ``Op`` field.

    The record itself tells which of the two it is, so the words are read before the rows.
    """

    def __init__(self, columns: Columns) -> None:
        nothing = Columns(pa.schema([]), (), {}, columns.format_of)
        words = [("metadata", "operation"), ("metadata", "record-type"), ("Op",)]
        self._words = EnvelopeReader(nothing, words=words)
        self._nested = EnvelopeReader(columns, ("data",), ("before-image",))
        self._flat = EnvelopeReader(columns)

    def unwrap(self, values: Packed) -> UnwrappedValues:
        words, faults = self._words.read(values), Faults()
        nested, operations = _dms_nesting_and_operations(words, faults)
        known = np.ones(len(operations), np.bool_)
        known[list(faults.reasons)] = False
        bad = words.bad | {int(words.left[row]): why for row, why in faults.reasons.items()}
        result: list[Parts] = []
        for reader, some in ((self._nested, nested), (self._flat, ~nested)):
            at = words.left[some & known]
            if len(at):
                parts = reader.read(values.take(at))
                bad |= {int(at[row]): reason for row, reason in parts.bad.items()}
                result.append(replace(parts, left=at[parts.left]))
        return _merge_parts(result or [self._flat.read(values[:0])], words, operations, bad)


def _dms_nesting_and_operations(words: Parts, faults: Faults) -> tuple[Flags, Operations]:
    """Return which records have their row in ``data``, and what each does."""
    operation, kind, letter = words.words
    nested = np.asarray(pc.or_(operation.is_valid(), kind.is_valid()))
    control = np.asarray(pc.is_in(kind, pa.array(["control"], kind.type)))
    codes = np.full(len(nested), Operation.SKIP, np.uint8)
    emptied = pc.is_in(operation, pa.array(DMS_TRUNCATES, operation.type))
    codes[control & np.asarray(emptied)] = Operation.TRUNCATE
    for some, words_of, known, name in (
        (nested & ~control, operation, DMS, "metadata.operation"),
        (~nested, letter, DMS_LETTERS, "Op"),
    ):
        rows, own = np.flatnonzero(some), Faults()
        codes[rows] = operations_of(words_of.take(pa.array(rows)), known, name, own)
        for row, reason in own.reasons.items():
            faults.note([rows[row]], reason)
    return nested, codes


def _merge_parts(
    found: list[Parts], words: Parts, operations: Operations, bad: Mapping[int, str]
) -> UnwrappedValues:
    """Merge the parts in the order of their values; ``operations``: of those read as words."""
    left = np.concatenate([parts.left for parts in found])
    order = np.argsort(left)
    rows, before = (
        pa.concat_batches(some).take(pa.array(order))
        for some in ([parts.rows for parts in found], [parts.before for parts in found])
    )
    places = np.searchsorted(words.left, left[order])
    return UnwrappedValues(rows, before, operations[places], bad)


_UNWRAPPERS: Mapping[Envelope, Callable[[Columns], EnvelopeUnwrapper]] = {
    Envelope.PLAIN: _Plain,
    Envelope.DEBEZIUM: _Debezium,
    Envelope.FLATTENED: partial(_DeletesByKey, _Flattened),
    Envelope.DMS: partial(_DeletesByKey, _Dms),
}
