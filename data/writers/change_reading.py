"""One chunk of changes read: a batch in which each record is a row, a key that goes, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa

from headgate.control_protocol.ports import Batch
from headgate.data.envelopes import row_checks
from headgate.data.envelopes.changes import Changes, Envelope, UnavailableValue
from headgate.data.envelopes.message_keys import NO_KEY, MessageKeys
from headgate.data.envelopes.opening import ROW_PLACES, opener
from headgate.data.envelopes.operations import Operation, Operations
from headgate.data.envelopes.reading import Columns, Opened
from headgate.data.envelopes.unavailable import unavailable
from headgate.data.formats.faults import Faults
from headgate.data.formats.lookout import WatchfulFormat
from headgate.data.formats.port import RecordFormat
from headgate.data.formats.registry import ValueOptions, record_format
from headgate.data.writers.aside import BAD_PART, BAD_VALUE
from headgate.data.writers.decoding import lookout_for, named_columns
from headgate.data.writers.needs import Evolution, Needs
from headgate.data.writers.plan import SourcePlan, WriterPlan
from headgate.data.writers.record_columns import RecordColumns
from headgate.data.writers.singling import Read
from headgate.kafka.fetch import Chunk
from headgate.native.loops import Flags, Integers
from headgate.native.packed import Packed

OPERATION = "headgate.operation"
_KEY = "headgate.key."


@dataclass(frozen=True, slots=True)
class _Part:
    """Records of a chunk: ``rows`` of those ``at`` these places, and why others are bad."""

    at: Integers
    rows: pa.RecordBatch
    bad: Mapping[int, str] = field(default_factory=dict)
    bad_parts: Mapping[int, str] = field(default_factory=dict)


class ChangeReading:
    """Reads chunks of one batch. Serves one thread.

    ``schema``: the table's columns, an ``OPERATION``, and the key that a record deletes; all null
    where they say nothing. With an ``evolution`` fields of rows that the table lacks are looked
    for, and ``needs`` tells of them. Raises ``ConfigurationError`` for names that do not go
    together.
    """

    def __init__(
        self,
        plan: WriterPlan,
        batch: Batch,
        schema: pa.Schema,
        evolution: Evolution | None = None,
    ) -> None:
        source, changes = plan.source, plan.source.changes
        assert changes is not None, "chosen for it"
        self._changes, self._columns = changes, schema
        self._record_columns = RecordColumns(source, schema, list(batch.ranges))
        values = named_columns(source, schema, plan.name_mapping(), batch.table.table)
        options = ValueOptions.taken(source.format_options)
        formats: list[RecordFormat] = []

        def format_of() -> RecordFormat:
            formats.append(record_format(source.format_name, options.of_format))
            return formats[-1]

        columns = Columns(values, changes.key, source.rules, format_of, options.caseless)
        self._opener = opener(changes.envelope, columns)
        self.needs: Needs | None = None
        if evolution is not None:
            (watched,) = formats  # rows in several places are refused (``ROW_PLACES``)
            place = ROW_PLACES[changes.envelope]
            lookout = lookout_for(source, values, evolution, place)
            self._watched = cast("WatchfulFormat", watched)
            self._watched.watch(lookout)
            self.needs = Needs(evolution, lookout, list(batch.ranges))
        self._required = [column.name for column in values if not column.nullable]
        self._in_values = all(name in values.names for name in changes.key)
        keys = [(values if name in values.names else schema).field(name) for name in changes.key]
        made = message_key_format(source, changes, keys)
        self._keys = keys
        self._message_keys = made and MessageKeys(made, pa.schema(keys), source.rules)
        self.schema = pa.schema(
            [
                *(column.with_nullable(nullable=True) for column in schema),
                pa.field(OPERATION, pa.uint8()),
                *(pa.field(f"{_KEY}{key.name}", key.type) for key in keys),
            ]
        )

    def read(self, chunk: Chunk) -> Read:
        """The chunk's changes, and why its other records are none. Nothing else comes of it."""
        there = np.asarray(chunk.values.array.is_valid())
        at, tombstones = np.flatnonzero(there), np.flatnonzero(~there)
        values = chunk.values.where(there) if len(tombstones) else chunk.values
        opened = self._opener.opened(values)
        bad = {int(at[row]): reason for row, reason in opened.bad.items()}
        left = np.delete(at, list(opened.bad)) if opened.bad else at
        if lacking := self._lacking(chunk, at, values, opened):
            bad = {**lacking, **bad}
            some = np.isin(left, list(lacking))
            opened, left = opened.without(some), left[~some]
        parts = [
            self._upserts(chunk, opened, left),
            self._deletes(chunk, opened, left, tombstones),
            self._others(opened, left),
        ]
        for part in parts:
            bad |= part.bad
        found = {row: reason for part in parts for row, reason in part.bad_parts.items()}
        classes = ((bad, BAD_VALUE), (found, BAD_PART))
        return Read(_in_order(parts), [(reasons, why) for reasons, why in classes if reasons])

    def _lacking(
        self, chunk: Chunk, at: Integers, values: Packed, opened: Opened
    ) -> Mapping[int, str]:
        """Note what rows need that the table lacks; return which are bad for it, and why.

        What is said of rows that go is not asked for. Raises ``UnknownField``.
        """
        if self.needs is None:
            return {}
        left = np.delete(np.arange(len(values)), list(opened.bad))
        rowless = left[opened.operations != Operation.UPSERT]
        lacks = [
            (at[np.setdiff1d(rows, rowless)], wanted)
            for rows, wanted in self._watched.lacking(values, opened.bad)
        ]
        return self.needs.take(chunk, [(rows, wanted) for rows, wanted in lacks if len(rows)])

    def ignored(self) -> Mapping[str, int]:
        """In how many records there are fields that become no column, by their paths."""
        return self.needs.ignored(self._watched.ignoring) if self.needs is not None else {}

    def operations(self, rows: pa.RecordBatch) -> Operations:
        """What the record of each of these rows does."""
        return np.asarray(rows.column(OPERATION))

    def rows(self, rows: pa.RecordBatch, some: Flags) -> pa.RecordBatch:
        """Some of these rows, as the table has them."""
        chosen = _where(rows, some)
        return pa.RecordBatch.from_arrays(
            chosen.columns[: len(self._columns)], schema=self._columns
        )

    def keys(self, rows: pa.RecordBatch, some: Flags) -> dict[str, pa.Array]:
        """The keys that some of these rows delete, by the names of their columns."""
        chosen = _where(rows, some)
        return {name: chosen.column(f"{_KEY}{name}") for name in self._changes.key}

    def _upserts(self, chunk: Chunk, opened: Opened, left: Integers) -> _Part:
        some = opened.operations == Operation.UPSERT
        rows, at, faults = _where(opened.rows, some), left[some], Faults()
        if self._changes.envelope in (Envelope.DEBEZIUM, Envelope.FLATTENED):
            placeholder = unavailable(self._changes.unavailable_placeholder)
            rows, unknown = placeholder.removed(rows)
            if self._changes.unavailable_value is UnavailableValue.FAIL:
                placeholder.note(unknown, faults)
        row_checks.note_moved(_where(opened.before, some), rows, faults)
        row_checks.note_missing(rows, self._required, faults)
        good = _but(len(at), faults.reasons)
        bad = {int(at[row]): reason for row, reason in faults.reasons.items()}
        rows, at = _where(rows, good), at[good]
        if not len(at):
            return _Part(at, self._whole(0, Operation.UPSERT, {}), bad)
        added, parts = self._record_columns.columns(_records(chunk, at))
        filled = {**dict(zip(rows.schema.names, rows.columns, strict=True)), **added}
        whole = self._whole(len(at), Operation.UPSERT, filled)
        good = _but(len(at), parts)
        bad_parts = {int(at[row]): reason for row, reason in parts.items()}
        return _Part(at[good], _where(whole, good), bad, bad_parts)

    def _deletes(self, chunk: Chunk, opened: Opened, left: Integers, tombstones: Integers) -> _Part:
        """By the key before; where the envelope says none, by the row's; else by the message's."""
        some = opened.operations == Operation.DELETE
        at = np.concatenate([left[some], tombstones])
        if not len(at):
            return _Part(at, self._whole(0, Operation.DELETE, {}))
        places = np.full(len(at), -1, np.int64)
        known = self._said(opened, some)
        for number, keys in enumerate(known):
            said = np.flatnonzero(row_checks.complete(keys) & (places[: keys.num_rows] < 0))
            places[said] = number * keys.num_rows + said
        order = np.argsort(at)
        at, places = at[order], places[order]
        unsaid = np.flatnonzero(places < 0)
        keys, reasons = self._of_messages(_records(chunk, at[unsaid]))
        places[unsaid] = sum(said.num_rows for said in known) + np.arange(len(unsaid))
        bad = {int(at[unsaid[row]]): reason for row, reason in reasons.items()}
        good = _but(len(at), unsaid[list(reasons)])
        filled = {
            f"{_KEY}{name}": pa.concat_arrays([said.column(name) for said in (*known, keys)]).take(
                pa.array(places[good])
            )
            for name in self._changes.key
        }
        return _Part(at[good], self._whole(int(good.sum()), Operation.DELETE, filled), bad)

    def _said(self, opened: Opened, some: Flags) -> list[pa.RecordBatch]:
        """The keys that values tell of rows: those before, and those of the rows themselves."""
        if not self._in_values:
            return []
        rows = opened.rows.select(list(self._changes.key))
        return [_where(opened.before, some), _where(rows, some)]

    def _of_messages(self, records: Chunk) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        count = len(records.offsets)
        if count and self._message_keys and records.keys is not None:
            return self._message_keys.read(records.keys)
        nothing = [pa.nulls(count, key.type) for key in self._keys]
        keys = pa.RecordBatch.from_arrays(nothing, names=list(self._changes.key))
        return keys, dict.fromkeys(range(count), NO_KEY)

    def _others(self, opened: Opened, left: Integers) -> _Part:
        some = opened.operations >= Operation.SKIP
        whole = self._whole(int(some.sum()), opened.operations[some], {})
        return _Part(left[some], whole)

    def _whole(
        self, count: int, told: Operation | Operations, filled: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        """Of ``schema``, with nulls in the columns that are not ``filled``."""
        operation = np.zeros(count, np.uint8)
        operation[:] = told
        found = {**filled, OPERATION: pa.array(operation)}
        columns = [
            found[column.name] if column.name in found else pa.nulls(count, column.type)
            for column in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def message_key_format(
    source: SourcePlan, changes: Changes, keys: list[pa.Field]
) -> RecordFormat | None:
    """How keys of messages are read; ``None`` where nothing says it.

    As ``record_columns`` reads them where the key's column takes the message's key; as values are,
    where a connector writes both; else the message's key is the value of the only column.
    """
    if source.key_format_name:
        return record_format(source.key_format_name, source.key_format_options)
    if changes.keys_like_values(source.format_name, source.record_columns.get("key", "")):
        options = ValueOptions.taken(source.format_options)
        return record_format(source.format_name, options.of_format)
    if len(keys) > 1:
        return None
    octets = pa.types.is_binary(keys[0].type) or pa.types.is_large_binary(keys[0].type)
    return record_format("bytes" if octets else "string", {})


def _in_order(parts: list[_Part]) -> pa.RecordBatch:
    filled = [part for part in parts if len(part.at)] or parts[:1]
    if len(filled) == 1:
        return filled[0].rows
    order = np.argsort(np.concatenate([part.at for part in filled]))
    return pa.concat_batches([part.rows for part in filled]).take(pa.array(order))


def _records(chunk: Chunk, at: Integers) -> Chunk:
    """The chunk's records at these ascending places."""
    if len(at) == len(chunk.offsets):
        return chunk
    wanted = np.zeros(len(chunk.offsets), np.bool_)
    wanted[at] = True
    return chunk.where(wanted)


def _but(count: int, places: Iterable[int]) -> Flags:
    """The flags of all but these."""
    found = np.ones(count, np.bool_)
    found[list(places)] = False
    return found


def _where(rows: pa.RecordBatch, some: Flags) -> pa.RecordBatch:
    return rows if some.all() else rows.filter(pa.array(some))
