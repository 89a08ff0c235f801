"""Decodes fetched chunks into rows of a schema, and counts what was read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from headgate.control_protocol.errors import ConfigurationError, IncompatibleValue, StopBefore
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.metadata_columns import RecordColumns
from headgate.data_plane.batch.record_numbers import first_offsets_of
from headgate.data_plane.batch.routed_table import RoutedTable
from headgate.data_plane.batch.writer_task_plan import SourcePlan, WriterPlan
from headgate.data_plane.files.data_files import file_shape_of
from headgate.data_plane.formats import field_names
from headgate.data_plane.formats.casting.relabel import rows_from_python
from headgate.data_plane.formats.format_registry import ValueOptions, create_record_format
from headgate.data_plane.formats.format_with_column_options import RuledColumns
from headgate.data_plane.formats.record_format import RecordFormat, UndecodableRecords
from headgate.data_plane.formats.unknown_fields import EvolvingFormat, RowPlace, UnknownFieldFinder
from headgate.data_plane.quarantine.poison_search import Read, read_around_poison
from headgate.data_plane.quarantine.rejected_records import (
    BAD_PART,
    BAD_VALUE,
    EXPECTATION,
    RejectedRecords,
)
from headgate.data_plane.quarantine.rowless_record_filter import flags_of_all_but
from headgate.data_plane.quarantine.unsupported_values import MisfitNulling, reader_with_value_check
from headgate.data_plane.write.columns_to_add import Evolution, MissingColumns
from headgate.data_plane.write.table_outlets import Decoded, TableOutlet
from headgate.kafka.record_fetch import Chunk
from headgate.participant.settings import Incompatible

if TYPE_CHECKING:
    from headgate.data_plane.write.row_shape import RowShape


class RowDecoder:
    """Decodes each record of one table into a row. Implements ``TableDecoder``.

    ``rejected`` takes records that are not rows. ``row_counts``: of those that became rows, by
    place. It looks for fields that the table lacks, unless they are ignored, and
    ``missing_columns`` reports them. Raises ``ConfigurationError`` for names or options that do not
    go together.
    """

    def __init__(
        self,
        routed: RoutedTable,
        plan: WriterPlan,
        batch: Batch,
        *,
        rejected: RejectedRecords,
        outlet: TableOutlet,
    ) -> None:
        source, evolution = plan.source, plan.evolution_unless_ignored(routed.refused)
        if plan.shaping.transform is None:
            shape = file_shape_of(plan)
            schema, mapping = shape.arrow_schema, shape.name_mapping
        else:
            schema, mapping = plan.decoded_schema(), plan.name_mapping()
        self._source = source
        self._nulling: MisfitNulling | None = None
        self._batch = batch
        self._rejected = rejected
        self._outlet = outlet
        # Behind a transform its result is checked: only that has the table's columns.
        values = plan.values if plan.shaping.transform is None else None
        self._read_checked = reader_with_value_check(self._read_rows_noting_needs, values)
        self._looks_on = plan.shaping.has_local_transform
        self._schema = schema
        self._shape: RowShape | None = None
        if plan.shaping.rules is not None:
            self._set_up_shape(plan, routed.name)
        clear = self._shape.clear_schema if self._shape else schema
        self._clear_schema = clear
        self._record_columns = RecordColumns(source, clear, list(batch.ranges))
        self._options = ValueOptions.from_options(source.format_options)
        self._format: RecordFormat = create_record_format(
            source.format_name, self._options.of_format
        )
        self._read_schema = columns_from_value(source, clear, mapping, routed.name)
        self.missing_columns: MissingColumns | None = None
        if evolution is not None:
            self._set_up_unknown_field_watch(source, batch, evolution)
        if source.rules:
            self._format = RuledColumns(
                self._format, source.rules, self._read_schema, caseless=self._options.caseless
            )
        self.row_counts = np.zeros(len(batch.ranges), np.int64)
        self.deleted_counts = np.zeros(len(batch.ranges), np.int64)

    def _set_up_shape(self, plan: WriterPlan, table: str) -> None:
        # Only for sinks with rules: it brings pyiceberg's parser, which no other decoder needs.
        from headgate.data_plane.write.row_shape import (
            reader_without_content_in_errors,
            row_shape_of,
        )

        self._shape = row_shape_of(plan, self._schema, table)
        if not plan.source.handling.keeps_content:
            self._read_checked = reader_without_content_in_errors(self._read_checked)

    def _set_up_unknown_field_watch(
        self, source: SourcePlan, batch: Batch, evolution: Evolution
    ) -> None:
        """Look for fields that the table lacks and that nothing else takes."""
        self._watched = cast("EvolvingFormat", self._format)
        finder = unknown_field_finder(source, self._read_schema, evolution)
        self._watched.watch_unknown_fields(finder)
        self.missing_columns = MissingColumns(evolution, finder, list(batch.ranges))

    def ignored_field_counts(self) -> Mapping[str, int]:
        """Return how many records or values were ignored, by a text for people.

        That is the joined paths of fields that become no column, or ``x, where it does not fit``.
        """
        result = (
            self.missing_columns.label_count_with_ignored_fields(
                self._watched.record_count_with_ignored_fields
            )
            if self.missing_columns is not None
            else {}
        )
        nulls = self._nulling.nulls if self._nulling else {}
        return {**result, **{f"{name}, where it does not fit": n for name, n in nulls.items() if n}}

    def _apply_policy_to_misfits(
        self, chunk: Chunk, rows: pa.RecordBatch, bad: Mapping[int, str]
    ) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        """Treat values that do not fit, by the settings."""
        wanted = self._source.schema_policy.incompatible
        if wanted is Incompatible.IGNORE:
            if self._nulling is None:
                self._nulling = MisfitNulling(self._read_schema, self._create_format_for)
            return self._nulling.replace_misfits_with_nulls(chunk.values, rows, bad)
        if wanted is Incompatible.FAIL:
            row = min(bad)
            partitions = list(self._batch.ranges)
            at = partitions[int(chunk.places[row])]
            reason = self._rejected.reason_allowed_in_errors(bad[row])
            raise IncompatibleValue(
                f"{at} offset {chunk.offsets[row]}: {reason}",
                'mend the producer or the column, or set incompatible = "quarantine" or "ignore"',
                first_offsets_of(partitions, chunk.places[list(bad)], chunk.offsets[list(bad)]),
            )
        return rows, bad

    def _create_format_for(self, schema: pa.Schema) -> RecordFormat:
        """Return a separate format for just these columns."""
        source = self._source
        made: RecordFormat = create_record_format(source.format_name, self._options.of_format)
        rules = {name: rule for name, rule in source.rules.items() if name in schema.names}
        if not rules:
            return made
        return RuledColumns(made, rules, schema, caseless=self._options.caseless)

    def add_chunk(self, chunk: Chunk, *, only_note_needs: bool) -> None:
        """Hand on the rows of records that the filter passed on. Raises as ``rejected``.

        ``only_note_needs``: as ``TableDecoder.add_chunk``.
        """
        decoded = self._decode(chunk)
        self.row_counts += np.bincount(decoded.places, minlength=len(self.row_counts))
        if self._rejected.has_stopping_record and not self._looks_on:
            return
        if not (only_note_needs or self.missing_columns):
            self._outlet.add_rows(decoded)

    def _decode(self, chunk: Chunk) -> Decoded:
        try:
            read = read_around_poison(chunk, self._clear_schema, self._read_checked)
        except StopBefore as error:
            self._rejected.note_stop(error)
            return self._empty_decoded(chunk)
        if self.missing_columns:
            return self._empty_decoded(chunk)
        for bad, error_class in read.bad:
            self._rejected.reject_bad(chunk, bad, error_class)
        refused = {row: reason for bad, _ in read.bad for row, reason in bad.items()}
        if self._shape is not None:
            records = chunk.filter(flags_of_all_but(chunk, refused)) if refused else chunk
            return self._apply_shape(read.rows, records, self._shape)
        if not refused:
            return Decoded(read.rows, chunk.places, chunk.offsets, chunk)
        good = flags_of_all_but(
            chunk, refused
        )  # not of the whole chunk: to copy its values costs the most
        return Decoded(read.rows, chunk.places[good], chunk.offsets[good], chunk)

    def _apply_shape(self, rows: pa.RecordBatch, records: Chunk, shape: RowShape) -> Decoded:
        """Return the rows that stay, as nobody may see more of them, and count the others."""
        judged = shape.evaluate_conditions(rows)
        self._rejected.count_filtered(records.places[~judged.kept])
        if judged.bad:
            self._rejected.reject_bad(records, judged.bad, EXPECTATION)
        wanted = judged.kept & flags_of_all_but(records, judged.bad)
        if wanted.all():
            return Decoded(shape.hide_values(rows), records.places, records.offsets, records)
        rows = rows.filter(pa.array(wanted))
        places, offsets = records.places[wanted], records.offsets[wanted]
        return Decoded(shape.hide_values(rows), places, offsets, records)

    def _empty_decoded(self, chunk: Chunk) -> Decoded:
        nowhere = np.empty(0, np.int64)
        return Decoded(rows_from_python([], self._schema), nowhere, nowhere, chunk)

    def _read_rows_noting_needs(self, chunk: Chunk) -> Read:
        """Return the chunk's rows, and why the other records are none.

        Notes which columns the records need, and counts the values that become null. Raises
        ``UnknownField`` and ``IncompatibleValue`` where the settings say to stop.
        """
        chunk = self._source.with_schema_ids_prepended(chunk)
        values: Mapping[int, str] = {}
        left = np.arange(len(chunk.offsets), dtype=np.int64)
        try:
            rows = self._format.decode(chunk.values, self._read_schema)
        except UndecodableRecords as error:
            rows, values = error.rest, error.bad
        missing: Mapping[int, str] = {}
        if self.missing_columns is not None:
            missing = self.missing_columns.note_needs_and_find_bad(
                chunk, self._watched.unknown_columns_of_last_decode(chunk.values, values)
            )
        if values and not self.missing_columns:  # otherwise nothing of this attempt counts
            rows, values = self._apply_policy_to_misfits(chunk, rows, values)
        rows, values = _exclude_further_bad_rows(rows, values, missing)
        if values:
            good = flags_of_all_but(chunk, values)
            left = left[good]
            if self._source.record_columns:
                chunk = chunk.without_values().filter(good)
        # without a column from the values a batch of rows has no length
        if rows.num_columns and rows.num_rows != len(left):
            raise ValueError(f"the format gives {rows.num_rows} rows of {len(left)} records")
        added, part_faults = self._record_columns.build_columns_and_bad_rows(chunk)
        columns = [added.get(field.name) for field in self._clear_schema]
        filled = iter(rows.columns)
        rows = pa.RecordBatch.from_arrays(
            [next(filled) if column is None else column for column in columns],
            schema=self._clear_schema,
        )
        if part_faults:
            rows = rows.filter(pa.array(flags_of_all_but(chunk, part_faults)))
        parts = {int(left[row]): reason for row, reason in part_faults.items()}
        return Read(
            rows, [(bad, why) for bad, why in ((values, BAD_VALUE), (parts, BAD_PART)) if bad]
        )


def unknown_field_finder(
    source: SourcePlan, schema: pa.Schema, evolution: Evolution, place: RowPlace | None = None
) -> UnknownFieldFinder:
    """Return a finder of record fields that neither a column of ``schema`` nor anything else
    uses.
    """
    # A column that a rule fills takes no field by its own names, nor does it lack one.
    filled = {name for name, rule in source.rules.items() if rule.path or rule.value is not None}
    heads = (rule.path[0] for rule in source.rules.values() if rule.path)
    used, columns = {*source.columns_not_from_value, *heads, *filled}, []
    for column in schema:
        if column.name in filled:
            used |= field_names.lookup_names_of(column)
        else:
            columns.append(column)
    return UnknownFieldFinder(
        pa.schema(columns),
        used,
        evolution.ignored_paths,
        caseless=ValueOptions.from_options(source.format_options).caseless,
        place=place,
        defaulted={name for name, rule in source.rules.items() if rule.default is not None},
    )


def columns_from_value(
    source: SourcePlan, schema: pa.Schema, mapping: str | None, table: str
) -> pa.Schema:
    """Return the columns that values fill, with their names in the values.

    Raises ``ConfigurationError``.
    """
    used = source.columns_not_from_value
    caseless = ValueOptions.from_options(source.format_options).caseless
    columns = pa.schema([column for column in schema if column.name not in used])
    try:
        return field_names.with_lookup_names(columns, mapping, caseless=caseless)
    except ValueError as error:
        raise ConfigurationError(f"{table}: {error}", "rename one, or match by case") from error


def _exclude_further_bad_rows(
    rows: pa.RecordBatch, bad: Mapping[int, str], further: Mapping[int, str]
) -> tuple[pa.RecordBatch, Mapping[int, str]]:
    """Return the rows without those that are bad for missing fields, and all bad ones."""
    new = {row: reason for row, reason in further.items() if row not in bad}
    if not new:
        return rows, bad
    left = np.ones(rows.num_rows + len(bad), np.bool_)
    left[list(bad)] = False
    keep = np.ones(len(left), np.bool_)
    keep[list(new)] = False
    return rows.filter(pa.array(keep[left])), {**bad, **new}
