"""Reads changes of a keyed table: rows go into data files, keys of what goes into key files
(KEY-2).

A chunk is read as a batch in which each record is a row, a key that goes, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.errors import SourceTruncated, StopBefore
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.metadata_columns import RecordColumns
from headgate.data_plane.batch.record_numbers import first_offsets_of
from headgate.data_plane.batch.routed_table import RoutedTable
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.cdc.envelope_reader import Columns, UnwrappedValues
from headgate.data_plane.cdc.message_keys import NO_KEY, MessageKeys, message_key_format
from headgate.data_plane.cdc.operations import Operation, Operations
from headgate.data_plane.cdc.policy import Envelope, OnTruncate, UnavailableValue
from headgate.data_plane.cdc.unavailable_values import placeholder_of
from headgate.data_plane.cdc.unwrap import ROW_PLACES, unwrapper_of
from headgate.data_plane.files.data_files import file_shape_of
from headgate.data_plane.files.format_choice import require_parquet_for_keyed_table
from headgate.data_plane.formats.format_registry import ValueOptions, create_record_format
from headgate.data_plane.formats.record_format import Faults, RecordFormat
from headgate.data_plane.formats.unknown_fields import EvolvingFormat
from headgate.data_plane.quarantine.poison_search import Read, read_around_poison
from headgate.data_plane.quarantine.rejected_records import (
    BAD_PART,
    BAD_VALUE,
    EXPECTATION,
    RejectedRecords,
)
from headgate.data_plane.quarantine.rowless_record_filter import flags_of_all_but
from headgate.data_plane.quarantine.unsupported_values import reader_with_value_check
from headgate.data_plane.write import change_decode
from headgate.data_plane.write.columns_to_add import Evolution, MissingColumns
from headgate.data_plane.write.decode import columns_from_value, unknown_field_finder
from headgate.data_plane.write.delete_marking import (
    MarkedDeletes,
    array_where,
    find_records_without_timestamp,
)
from headgate.data_plane.write.table_outlets import TableFiles
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags, Integers

if TYPE_CHECKING:
    from headgate.data_plane.write.row_shape import RowShape


def note_nulls_of_required(
    rows: pa.RecordBatch, required: Iterable[str], among: Flags, faults: Faults
) -> None:
    """Make nulls in these columns faults, ``among`` some of the rows."""
    for name in required:
        column = rows.column(name)
        if column.null_count:
            nulls = np.flatnonzero(np.asarray(column.is_null()) & among)
            faults.note(nulls, f"{name}: a required value is missing")


def note_changed_keys(before: pa.RecordBatch, rows: pa.RecordBatch, faults: Faults) -> None:
    """Make changed keys faults if the whole former key is known."""
    known = flag_complete_keys(before)
    if not known.any():
        return
    for column in before.schema:
        old, new = _storage_of(before.column(column.name)), _storage_of(rows.column(column.name))
        changed = known & np.asarray(pc.fill_null(pc.not_equal(old, new), fill_value=False))
        faults.note(
            np.flatnonzero(changed),
            f"{column.name}: the key of the row changes; a changed key must be a delete "
            "of the old one and a row with the new one, as Debezium writes it if its "
            "key is table.key",
        )


def flag_complete_keys(keys: pa.RecordBatch) -> Flags:
    """Return in which rows every column has a value."""
    result = np.ones(keys.num_rows, np.bool_)
    for column in keys.columns:
        if column.null_count:
            result &= np.asarray(column.is_valid())
    return result if keys.num_columns else ~result


def _storage_of(values: pa.Array) -> pa.Array:
    return values.storage if isinstance(values, pa.ExtensionArray) else values


OPERATION = "headgate.operation"
_KEY = "headgate.key."


class _OpenedChunk(NamedTuple):
    """What is in a chunk's values, the rows that it is of, and why other rows are bad."""

    opened: UnwrappedValues
    rows: Integers
    bad: dict[int, str]


class ChangeReader:
    """Reads chunks of one batch. Serves one thread.

    ``schema``: the table's columns, an ``OPERATION``, and the key that a record deletes; all null
    where they say nothing. ``mapping``: the plan's of names. With an ``evolution`` fields of rows
    that the table lacks are looked for, and ``missing_columns`` reports them. Raises
    ``ConfigurationError`` for names that do not go together.
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
        self._source, self._changes, self._columns = source, changes, schema
        self._shape: RowShape | None = None
        self._read_changes: Callable[[Chunk], Read] = self._read_unshaped
        if plan.shaping.rules is not None:
            self._set_up_shape(plan, batch.table.table)
        clear = self._shape.clear_schema if self._shape else schema
        self._record_columns = RecordColumns(source, clear, list(batch.ranges))
        values = columns_from_value(source, clear, mapping, batch.table.table)
        options = ValueOptions.from_options(source.format_options)
        formats: list[RecordFormat] = []

        def create_format() -> RecordFormat:
            formats.append(create_record_format(source.format_name, options.of_format))
            return formats[-1]

        columns = Columns(values, changes.key, source.rules, create_format, options.caseless)
        self._unwrapper = unwrapper_of(changes.envelope, columns)
        self.missing_columns: MissingColumns | None = None
        if evolution is not None:
            (watched,) = formats  # rows in several places are refused (``ROW_PLACES``)
            place = ROW_PLACES[changes.envelope]
            finder = unknown_field_finder(source, values, evolution, place)
            self._watched = cast("EvolvingFormat", watched)
            self._watched.watch_unknown_fields(finder)
            self.missing_columns = MissingColumns(evolution, finder, list(batch.ranges))
        self._required = [column.name for column in values if not column.nullable]
        self._in_values = all(name in values.names for name in changes.key)
        keys = [(values if name in values.names else clear).field(name) for name in changes.key]
        self._marks: MarkedDeletes | None = None
        if changes.deleted_at:
            self._marks = MarkedDeletes(source, clear, columns, batch)
        made = message_key_format(source, changes, keys)
        self._keys = keys
        self._message_keys = made and MessageKeys(
            made, pa.schema(keys), source.rules, caseless=options.caseless
        )
        self._clear_schema = self._schema_of_changes(clear)
        self.schema = self._schema_of_changes(schema)

    def _schema_of_changes(self, columns: pa.Schema) -> pa.Schema:
        return pa.schema(
            [
                *(column.with_nullable(nullable=True) for column in columns),
                pa.field(OPERATION, pa.uint8()),
                *(pa.field(f"{_KEY}{n}", columns.field(n).type) for n in self._changes.key),
            ]
        )

    def _set_up_shape(self, plan: WriterPlan, table: str) -> None:
        # Only for sinks with rules, as in RowDecoder.
        from headgate.data_plane.write.row_shape import (
            reader_without_content_in_errors,
            row_shape_of,
        )

        self._shape = row_shape_of(plan, self._columns, table, _KEY)
        if self._shape is not None and not plan.source.handling.keeps_content:
            self._read_changes = reader_without_content_in_errors(self._read_unshaped)

    def read(self, chunk: Chunk) -> Read:
        """Return the chunk's changes, and why its other records are none.

        Also notes columns that the table lacks.
        """
        read = self._read_changes(chunk)
        if self._shape is not None:
            read = self._apply_shape(chunk, read, self._shape)
        return read if self._marks is None else Read(self._deletes_as_upserts(read.rows), read.bad)

    def _deletes_as_upserts(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """KEY-13: make rows of what deletes; it is marked. Expectations never saw these."""
        operations = self.operations_of(rows)
        if not (operations == Operation.DELETE).any():
            return rows
        codes = np.where(operations == Operation.DELETE, np.uint8(Operation.UPSERT), operations)
        return rows.set_column(rows.schema.get_field_index(OPERATION), OPERATION, pa.array(codes))

    def _apply_shape(self, chunk: Chunk, read: Read, shape: RowShape) -> Read:
        """Return the changes as nobody may see more of them.

        A row that does not stay becomes a delete of its key: the table has the rows of those keys
        whose last record stays (SHAPE-2).
        """
        rows, operations = read.rows, self.operations_of(read.rows)
        judged, upserts = shape.evaluate_conditions(rows), operations == Operation.UPSERT
        gone = upserts & ~judged.kept
        if gone.any():
            rows = self._as_deletes(rows, gone)
        bad = {row: reason for row, reason in judged.bad.items() if upserts[row]}
        if not bad:
            return Read(shape.hide_values(rows), read.bad)
        refused = {row for some, _ in read.bad for row in some}
        at = np.delete(np.arange(len(chunk.offsets)), list(refused))
        reasons = {int(at[row]): reason for row, reason in bad.items()}
        rows = _filter_rows(rows, _flags_of_all_but(len(at), bad))
        return Read(shape.hide_values(rows), [*read.bad, (reasons, EXPECTATION)])

    def _as_deletes(self, rows: pa.RecordBatch, to_delete: Flags) -> pa.RecordBatch:
        """Make some of these rows deletes of their keys."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name in self._changes.key:
            deleted = f"{_KEY}{name}"
            columns[deleted] = array_where(to_delete, columns[name], columns[deleted])
        operations = np.where(to_delete, np.uint8(Operation.DELETE), self.operations_of(rows))
        columns[OPERATION] = pa.array(operations)
        return pa.RecordBatch.from_arrays([*columns.values()], schema=rows.schema)

    def _read_unshaped(self, chunk: Chunk) -> Read:
        chunk = self._source.with_schema_ids_prepended(chunk)
        opened, at, bad = self._unwrap(chunk)
        upserts, faults = opened.operations == Operation.UPSERT, Faults()
        keys = self._deleted_keys(chunk, opened, at, faults)
        rows = self._null_unavailable_and_note_row_faults(
            _null_rows_except(opened.rows, upserts), opened.before, upserts, faults
        )
        records, stays = _records_at(chunk, at), upserts
        deletes = opened.operations == Operation.DELETE
        marks = self._marks if deletes.any() else None
        if marks is not None:
            rows = marks.with_values_of_deleted_rows(rows, opened.rows, records, deletes)
            stays = upserts | deletes
        added, reasons = self._record_columns.build_columns_and_bad_rows(records)
        of_records = _null_rows_except(pa.RecordBatch.from_pydict(added), stays)
        filled = {
            **dict(zip(rows.schema.names, rows.columns, strict=True)),
            **dict(zip(of_records.schema.names, of_records.columns, strict=True)),
            **keys,
            OPERATION: pa.array(opened.operations),
        }
        if marks is not None:
            filled[marks.column], timeless = marks.deletion_times_and_bad_rows(records, deletes)
            reasons = {**reasons, **timeless}
            for name in self._changes.key:
                filled[name] = array_where(deletes, keys[f"{_KEY}{name}"], filled[name])
        if self._changes.history:
            reasons = {
                **find_records_without_timestamp(records, self._source.record_columns["timestamp"]),
                **reasons,
            }
        parts = {
            row: reason
            for row, reason in reasons.items()
            if stays[row] and row not in faults.reasons
        }
        columns = [
            filled[column.name] if column.name in filled else pa.nulls(len(at), column.type)
            for column in self._clear_schema
        ]
        whole = pa.RecordBatch.from_arrays(columns, schema=self._clear_schema)
        bad |= {int(at[row]): reason for row, reason in faults.reasons.items()}
        result = {int(at[row]): reason for row, reason in parts.items()}
        classes = ((bad, BAD_VALUE), (result, BAD_PART))
        return Read(
            _filter_rows(whole, _flags_of_all_but(len(at), [*faults.reasons, *parts])),
            [(reasons, why) for reasons, why in classes if reasons],
        )

    def _unwrap(self, chunk: Chunk) -> _OpenedChunk:
        """Open the values, and note columns that the table lacks.

        Of a record without a value nothing is known but that it deletes, or says nothing.
        """
        there = np.asarray(chunk.values.array.is_valid())
        at, tombstones = np.flatnonzero(there), np.flatnonzero(~there)
        values = chunk.values.filter(there) if len(tombstones) else chunk.values
        opened = self._unwrapper.unwrap(values)
        bad = {int(at[row]): reason for row, reason in opened.bad.items()}
        left = np.delete(at, list(opened.bad)) if opened.bad else at
        if missing := self._note_missing_columns_and_find_bad(chunk, at, values, opened):
            bad = {**missing, **bad}
            some = np.isin(left, list(missing))
            opened, left = opened.without_rows(some), left[~some]
        if len(tombstones):
            nothing = self._changes.ignores_tombstones_after_deletes
            does = Operation.SKIP if nothing else Operation.DELETE
            opened = opened.with_tombstones(left, tombstones, does)
            left = np.sort(np.concatenate([left, tombstones]))
        return _OpenedChunk(opened, left, bad)

    def _note_missing_columns_and_find_bad(
        self, chunk: Chunk, at: Integers, values: Packed, opened: UnwrappedValues
    ) -> Mapping[int, str]:
        """Note what rows need that the table lacks; return which are bad for it, and why.

        Fields of deleted rows do not count. Raises ``UnknownField``.
        """
        if self.missing_columns is None:
            return {}
        left = np.delete(np.arange(len(values)), list(opened.bad))
        rowless = left[opened.operations != Operation.UPSERT]
        unknown = [
            (at[np.setdiff1d(rows, rowless)], wanted)
            for rows, wanted in self._watched.unknown_columns_of_last_decode(values, opened.bad)
        ]
        return self.missing_columns.note_needs_and_find_bad(
            chunk, [(rows, wanted) for rows, wanted in unknown if len(rows)]
        )

    def ignored_field_counts(self) -> Mapping[str, int]:
        """Return in how many records there are fields that become no column, by their paths."""
        return (
            self.missing_columns.label_count_with_ignored_fields(
                self._watched.record_count_with_ignored_fields
            )
            if self.missing_columns is not None
            else {}
        )

    def operations_of(self, rows: pa.RecordBatch) -> Operations:
        """Return what the record of each of these rows does."""
        return np.asarray(rows.column(OPERATION))

    def select_table_rows(self, rows: pa.RecordBatch, some: Flags) -> pa.RecordBatch:
        """Return some of these rows, as the table has them."""
        chosen = _filter_rows(rows, some)
        return pa.RecordBatch.from_arrays(
            chosen.columns[: len(self._columns)], schema=self._columns
        )

    def select_deleted_keys(self, rows: pa.RecordBatch, some: Flags) -> dict[str, pa.Array]:
        """Return the keys that some of these rows delete, by the names of their columns."""
        chosen = _filter_rows(rows, some)
        return {name: chosen.column(f"{_KEY}{name}") for name in self._changes.key}

    def _null_unavailable_and_note_row_faults(
        self, rows: pa.RecordBatch, before: pa.RecordBatch, upserts: Flags, faults: Faults
    ) -> pa.RecordBatch:
        """Note faults of rows, and return these without values that nobody knows."""
        if self._changes.envelope in (Envelope.DEBEZIUM, Envelope.FLATTENED):
            placeholder = placeholder_of(self._changes.unavailable_placeholder)
            rows, unknown = placeholder.replace_with_nulls(rows)
            if self._changes.unavailable_value is UnavailableValue.FAIL:
                placeholder.note_faults(unknown, faults)
        change_decode.note_changed_keys(before, rows, faults)
        change_decode.note_nulls_of_required(rows, self._required, upserts, faults)
        return rows

    def _deleted_keys(
        self, chunk: Chunk, opened: UnwrappedValues, at: Integers, faults: Faults
    ) -> dict[str, pa.Array]:
        """Return the keys that records delete, null for other records.

        By the key before; where the envelope says none, by the row's; else by the message's.
        """
        some = opened.operations == Operation.DELETE
        rows = np.flatnonzero(some)
        if not len(rows):
            return {}
        places = np.full(len(rows), -1, np.int64)
        candidates = self._key_candidates_in_values(opened, some)
        for number, keys in enumerate(candidates):
            with_key = np.flatnonzero(change_decode.flag_complete_keys(keys) & (places < 0))
            places[with_key] = number * len(rows) + with_key
        without_key = np.flatnonzero(places < 0)
        keys, reasons = self._message_keys_and_faults(_records_at(chunk, at[rows[without_key]]))
        places[without_key] = len(candidates) * len(rows) + np.arange(len(without_key))
        for row, reason in reasons.items():
            faults.note([rows[without_key[row]]], reason)
        indices = np.zeros(len(at), np.int64)
        indices[rows] = places
        wanted = pa.array(indices, mask=~some)
        return {
            f"{_KEY}{name}": pa.concat_arrays(
                [part.column(name) for part in (*candidates, keys)]
            ).take(wanted)
            for name in self._changes.key
        }

    def _key_candidates_in_values(
        self, opened: UnwrappedValues, some: Flags
    ) -> list[pa.RecordBatch]:
        """Return the keys that values hold: those before, and those of the rows themselves."""
        if not self._in_values:
            return []
        rows = opened.rows.select(list(self._changes.key))
        return [_filter_rows(opened.before, some), _filter_rows(rows, some)]

    def _message_keys_and_faults(self, records: Chunk) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        count = len(records.offsets)
        if count and self._message_keys and records.keys is not None:
            return self._message_keys.read_keys_and_faults(records.keys)
        nothing = [pa.nulls(count, key.type) for key in self._keys]
        keys = pa.RecordBatch.from_arrays(nothing, names=list(self._changes.key))
        return keys, dict.fromkeys(range(count), NO_KEY)


def _records_at(chunk: Chunk, at: Integers) -> Chunk:
    """Return the chunk's records at these ascending places."""
    if len(at) == len(chunk.offsets):
        return chunk
    wanted = np.zeros(len(chunk.offsets), np.bool_)
    wanted[at] = True
    return chunk.filter(wanted)


def _flags_of_all_but(count: int, places: Iterable[int]) -> Flags:
    """Return the flags of all but these."""
    result = np.ones(count, np.bool_)
    result[list(places)] = False
    return result


def _null_rows_except(rows: pa.RecordBatch, some: Flags) -> pa.RecordBatch:
    """Return the rows with nothing in all but some of them."""
    unset = ~some
    if not unset.any() or not any(
        np.asarray(column.is_valid())[unset].any() for column in rows.columns
    ):
        return rows
    return rows.take(pa.array(np.arange(rows.num_rows), mask=unset))


def _filter_rows(rows: pa.RecordBatch, some: Flags) -> pa.RecordBatch:
    return rows if some.all() else rows.filter(pa.array(some))


class ChangeDecoder:
    """Writes the changes of one keyed table of a batch into its files.

    By place of the batch's ranges: so many records became rows (``row_counts``), and keys of so
    many are in key files (``deleted_counts``).
    """

    def __init__(
        self,
        routed: RoutedTable,
        plan: WriterPlan,
        batch: Batch,
        *,
        rejected: RejectedRecords,
        outlet: TableFiles,
    ) -> None:
        changes = plan.source.changes
        assert changes is not None, "chosen for it"
        assert outlet.keys is not None, "the plan is the same"
        require_parquet_for_keyed_table(routed.name, plan.shape.table_properties)
        self._changes = changes
        self._rejected = rejected
        self._rows, self._keys = outlet.rows, outlet.keys
        self._partitions = list(batch.ranges)
        shape, evolution = file_shape_of(plan), plan.evolution_unless_ignored(routed.refused)
        named = replace(batch, table=replace(batch.table, table=routed.name))
        self._reader = ChangeReader(
            *(plan, named, shape.arrow_schema, evolution), mapping=shape.name_mapping
        )
        self.missing_columns, self.ignored_field_counts = (
            self._reader.missing_columns,
            self._reader.ignored_field_counts,
        )
        self._read = reader_with_value_check(self._reader.read, plan.values)
        self.row_counts = np.zeros(len(batch.ranges), np.int64)
        self.deleted_counts = np.zeros(len(batch.ranges), np.int64)

    def add_chunk(self, chunk: Chunk, *, only_note_needs: bool) -> None:
        """Write the rows and keys of records that the filter passed on. Raises as ``rejected``.

        ``only_note_needs``: as ``TableDecoder.add_chunk``.
        """
        if only_note_needs and self.missing_columns is None:
            return
        if disposal := self._changes.tombstones.disposal:
            chunk = self._rejected.take_tombstones_out(chunk, disposal)
        try:
            read = read_around_poison(chunk, self._reader.schema, self._read)
        except StopBefore as error:
            self._rejected.note_stop(error)
            return
        if self.missing_columns:
            return  # nothing of this attempt will count
        for bad, error_class in read.bad:
            self._rejected.reject_bad(chunk, bad, error_class)
        refused = {row: reason for bad, _ in read.bad for row, reason in bad.items()}
        records = chunk.filter(flags_of_all_but(chunk, refused)) if refused else chunk
        operations = self._reader.operations_of(read.rows)
        self._note_stop_at_truncation(records, operations == Operation.TRUNCATE)
        if self._rejected.has_stopping_record:
            return  # as little of this one
        upserts, deletes = operations == Operation.UPSERT, operations == Operation.DELETE
        # Both from one pass over one chunk: rows and keys then have the order of the offsets.
        self._rows.add_rows(self._reader.select_table_rows(read.rows, upserts))
        self._keys.add_keys(
            self._reader.select_deleted_keys(read.rows, deletes), records.filter(deletes)
        )
        self.row_counts += self._count_by_place(records, upserts)
        self.deleted_counts += self._count_by_place(records, deletes)
        self._rejected.count_skipped(records.filter(operations >= Operation.SKIP))

    def _count_by_place(self, records: Chunk, some: Flags) -> Integers:
        return np.bincount(records.places[some], minlength=len(self._partitions))

    def _note_stop_at_truncation(self, records: Chunk, truncations: Flags) -> None:
        if self._changes.on_truncate is OnTruncate.FAIL and truncations.any():
            row = int(np.argmax(truncations))
            at = self._partitions[records.places[row]]
            first = first_offsets_of(
                self._partitions, records.places[truncations], records.offsets[truncations]
            )
            self._rejected.note_stop(
                SourceTruncated(
                    f"{at} offset {records.offsets[row]} says that the source's table was emptied",
                    "empty the sink's table too, if that is wanted; then set "
                    "changes.on_truncate to skip, to continue after this record",
                    first,
                )
            )
