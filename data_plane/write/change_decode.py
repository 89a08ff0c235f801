"""Reads changes of a keyed table: rows go into data files, keys of what goes into key files (U2).

A chunk is read as a batch in which each record is a row, a key that goes, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.errors import SourceTruncated, StopBefore
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.metadata_columns import RecordColumns
from headgate.data_plane.batch.record_numbers import firsts
from headgate.data_plane.batch.routed_table import RoutedTable
from headgate.data_plane.batch.write_plan import WriterPlan
from headgate.data_plane.cdc.envelope_reader import Columns, Opened
from headgate.data_plane.cdc.message_keys import NO_KEY, MessageKeys, message_key_format
from headgate.data_plane.cdc.operations import Operation, Operations
from headgate.data_plane.cdc.policy import Envelope, OnTruncate, UnavailableValue
from headgate.data_plane.cdc.unavailable_values import unavailable
from headgate.data_plane.cdc.unwrap import ROW_PLACES, opener
from headgate.data_plane.files.data_files import file_shape
from headgate.data_plane.files.format_choice import refuse_for_keys
from headgate.data_plane.formats.format_registry import ValueOptions, record_format
from headgate.data_plane.formats.record_format import Faults, RecordFormat
from headgate.data_plane.formats.unknown_fields import WatchfulFormat
from headgate.data_plane.quarantine.poison_search import Read, read_apart
from headgate.data_plane.quarantine.prefilter import others
from headgate.data_plane.quarantine.rejected_records import BAD_PART, BAD_VALUE, Aside
from headgate.data_plane.quarantine.unsupported_values import held_values
from headgate.data_plane.write import change_decode
from headgate.data_plane.write.decode import lookout_for, named_columns
from headgate.data_plane.write.missing_columns import Evolution, Needs
from headgate.data_plane.write.table_outlets import TableFiles
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags, Integers


def note_missing(
    rows: pa.RecordBatch, required: Iterable[str], among: Flags, faults: Faults
) -> None:
    """Make nulls in these columns faults, ``among`` some of the rows."""
    for name in required:
        column = rows.column(name)
        if column.null_count:
            nulls = np.flatnonzero(np.asarray(column.is_null()) & among)
            faults.note(nulls, f"{name}: a required value is missing")


def note_moved(before: pa.RecordBatch, rows: pa.RecordBatch, faults: Faults) -> None:
    """Make changed keys faults if the whole former key is known."""
    known = complete(before)
    if not known.any():
        return
    for column in before.schema:
        old, new = _stored(before.column(column.name)), _stored(rows.column(column.name))
        moved = known & np.asarray(pc.fill_null(pc.not_equal(old, new), fill_value=False))
        faults.note(
            np.flatnonzero(moved),
            f"{column.name}: the key of the row changes; a changed key must be a delete "
            "of the old one and a row with the new one, as Debezium writes it if its "
            "key is table.key",
        )


def complete(keys: pa.RecordBatch) -> Flags:
    """Return in which rows every column has a value."""
    found = np.ones(keys.num_rows, np.bool_)
    for column in keys.columns:
        if column.null_count:
            found &= np.asarray(column.is_valid())
    return found if keys.num_columns else ~found


def _stored(values: pa.Array) -> pa.Array:
    return values.storage if isinstance(values, pa.ExtensionArray) else values


OPERATION = "headgate.operation"
_KEY = "headgate.key."


class ChangeReading:
    """Reads chunks of one batch. Serves one thread.

    ``schema``: the table's columns, an ``OPERATION``, and the key that a record deletes; all null
    where they say nothing. ``mapping``: the plan's of names. With an ``evolution`` fields of rows
    that the table lacks are looked for, and ``needs`` tells of them. Raises ``ConfigurationError``
    for names that do not go together.
    """

    def __init__(
        self,
        plan: WriterPlan,
        batch: Batch,
        schema: pa.Schema,
        evolution: Evolution | None = None,
        *,
        mapping: str | None,
    ) -> None:
        source, changes = plan.source, plan.source.changes
        assert changes is not None, "chosen for it"
        self._changes, self._columns = changes, schema
        self._record_columns = RecordColumns(source, schema, list(batch.ranges))
        values = named_columns(source, schema, mapping, batch.table.table)
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
        opened, at, bad = self._opened(chunk)
        upserts, faults = opened.operations == Operation.UPSERT, Faults()
        keys = self._deleted(chunk, opened, at, faults)
        rows = self._checked(_only(opened.rows, upserts), opened.before, upserts, faults)
        added, reasons = self._record_columns.columns(_records(chunk, at))
        parts = {
            row: reason
            for row, reason in reasons.items()
            if upserts[row] and row not in faults.reasons
        }
        of_records = _only(pa.RecordBatch.from_pydict(added), upserts)
        filled = {
            **dict(zip(rows.schema.names, rows.columns, strict=True)),
            **dict(zip(of_records.schema.names, of_records.columns, strict=True)),
            **keys,
            OPERATION: pa.array(opened.operations),
        }
        columns = [
            filled[column.name] if column.name in filled else pa.nulls(len(at), column.type)
            for column in self.schema
        ]
        whole = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        bad |= {int(at[row]): reason for row, reason in faults.reasons.items()}
        found = {int(at[row]): reason for row, reason in parts.items()}
        classes = ((bad, BAD_VALUE), (found, BAD_PART))
        return Read(
            _where(whole, _but(len(at), [*faults.reasons, *parts])),
            [(reasons, why) for reasons, why in classes if reasons],
        )

    def _opened(self, chunk: Chunk) -> tuple[Opened, Integers, dict[int, str]]:
        """Open the values; return what is in them, whose it is, and which records are bad.

        A record without a value is a delete of which nothing else is said.
        """
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
        if len(tombstones):
            opened = opened.with_deletes(left, tombstones)
            left = np.sort(np.concatenate([left, tombstones]))
        return opened, left, bad

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

    def _checked(
        self, rows: pa.RecordBatch, before: pa.RecordBatch, upserts: Flags, faults: Faults
    ) -> pa.RecordBatch:
        """Note faults of rows, and return these without values that nobody knows."""
        if self._changes.envelope in (Envelope.DEBEZIUM, Envelope.FLATTENED):
            placeholder = unavailable(self._changes.unavailable_placeholder)
            rows, unknown = placeholder.removed(rows)
            if self._changes.unavailable_value is UnavailableValue.FAIL:
                placeholder.note(unknown, faults)
        change_decode.note_moved(before, rows, faults)
        change_decode.note_missing(rows, self._required, upserts, faults)
        return rows

    def _deleted(
        self, chunk: Chunk, opened: Opened, at: Integers, faults: Faults
    ) -> dict[str, pa.Array]:
        """Return the keys that records delete, null for other records.

        By the key before; where the envelope says none, by the row's; else by the message's.
        """
        some = opened.operations == Operation.DELETE
        rows = np.flatnonzero(some)
        if not len(rows):
            return {}
        places = np.full(len(rows), -1, np.int64)
        known = self._said(opened, some)
        for number, keys in enumerate(known):
            said = np.flatnonzero(change_decode.complete(keys) & (places < 0))
            places[said] = number * len(rows) + said
        unsaid = np.flatnonzero(places < 0)
        keys, reasons = self._of_messages(_records(chunk, at[rows[unsaid]]))
        places[unsaid] = len(known) * len(rows) + np.arange(len(unsaid))
        for row, reason in reasons.items():
            faults.note([rows[unsaid[row]]], reason)
        indices = np.zeros(len(at), np.int64)
        indices[rows] = places
        wanted = pa.array(indices, mask=~some)
        return {
            f"{_KEY}{name}": pa.concat_arrays([said.column(name) for said in (*known, keys)]).take(
                wanted
            )
            for name in self._changes.key
        }

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


def _only(rows: pa.RecordBatch, some: Flags) -> pa.RecordBatch:
    """The rows with nothing in all but some of them."""
    silent = ~some
    if not silent.any() or not any(
        np.asarray(column.is_valid())[silent].any() for column in rows.columns
    ):
        return rows
    return rows.take(pa.array(np.arange(rows.num_rows), mask=silent))


def _where(rows: pa.RecordBatch, some: Flags) -> pa.RecordBatch:
    return rows if some.all() else rows.filter(pa.array(some))


class ChangedRows:
    """The changes of one keyed table of a batch, on their way into files.

    By place of the batch's ranges: ``records`` became rows, those ``deleted`` are in key files.
    """

    def __init__(
        self,
        known: RoutedTable,
        plan: WriterPlan,
        batch: Batch,
        *,
        aside: Aside,
        outlet: TableFiles,
    ) -> None:
        changes = plan.source.changes
        assert changes is not None, "chosen for it"
        assert outlet.keys is not None, "the plan is the same"
        refuse_for_keys(known.name, plan.shape.table_properties)
        self._changes = changes
        self._aside = aside
        self._rows, self._keys = outlet.rows, outlet.keys
        self._partitions = list(batch.ranges)
        shape, evolution = file_shape(plan), plan.watched_for(known.refused)
        self._reading = ChangeReading(
            *(plan, batch, shape.arrow_schema, evolution), mapping=shape.name_mapping
        )
        self.needs, self.ignored = self._reading.needs, self._reading.ignored
        self._read = held_values(self._reading.read, plan.values)
        self.records = np.zeros(len(batch.ranges), np.int64)
        self.deleted = np.zeros(len(batch.ranges), np.int64)

    def take(self, chunk: Chunk, *, in_vain: bool) -> None:
        """Write the rows and keys of sifted records. Raises as ``aside``.

        ``in_vain``: as ``TableReading.take``.
        """
        if in_vain and self.needs is None:
            return
        if disposal := self._changes.tombstones.disposal:
            chunk = self._aside.without_tombstones(chunk, disposal)
        try:
            read = read_apart(chunk, self._reading.schema, self._read)
        except StopBefore as error:
            self._aside.stops(error)
            return
        if self.needs:
            return  # nothing of this attempt will count
        for bad, error_class in read.bad:
            self._aside.take(chunk, bad, error_class)
        refused = {row: reason for bad, _ in read.bad for row, reason in bad.items()}
        records = chunk.where(others(chunk, refused)) if refused else chunk
        told = self._reading.operations(read.rows)
        self._refuse_truncated(records, told == Operation.TRUNCATE)
        if self._aside.stopping:
            return  # as little of this one
        upserts, deletes = told == Operation.UPSERT, told == Operation.DELETE
        self._rows.take(self._reading.rows(read.rows, upserts))
        self._keys.take(self._reading.keys(read.rows, deletes), records.where(deletes))
        self.records += self._by_place(records, upserts)
        self.deleted += self._by_place(records, deletes)
        self._aside.passed_over(records.where(told >= Operation.SKIP))

    def _by_place(self, records: Chunk, some: Flags) -> Integers:
        return np.bincount(records.places[some], minlength=len(self._partitions))

    def _refuse_truncated(self, records: Chunk, some: Flags) -> None:
        if self._changes.on_truncate is OnTruncate.FAIL and some.any():
            row = int(np.argmax(some))
            at = self._partitions[records.places[row]]
            first = firsts(self._partitions, records.places[some], records.offsets[some])
            self._aside.stops(
                SourceTruncated(
                    f"{at} offset {records.offsets[row]} says that the source's table was emptied",
                    "empty the sink's table too, if that is wanted; then set "
                    "changes.on_truncate to skip, to continue after this record",
                    first,
                )
            )
