"""Implements the format ``json``: JSON objects without a schema.

A block goes through the columnar path; what that refuses (``bad_record_search``) is looked at one
by one. ``json.values`` lists what is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.control_protocol.columns import Struct
from headgate.data_plane.formats import column_options as formats_column_options
from headgate.data_plane.formats import field_names
from headgate.data_plane.formats.casting.relabel import rows_from_python
from headgate.data_plane.formats.format_registry import require_known_options
from headgate.data_plane.formats.json import (
    bad_record_search,
    columns,
    columns_with_options,
    one_pass,
    paths,
)
from headgate.data_plane.formats.json import values as json_values
from headgate.data_plane.formats.json.columns import Unfit
from headgate.data_plane.formats.json.field_names import KeysByFieldName
from headgate.data_plane.formats.record_format import UndecodableRecords
from headgate.data_plane.formats.unknown_fields import UnknownColumns, UnknownFieldFinder
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags, Octets

_SAMPLES = 16
_FEW, _PROBES = 64, 8
_LACKS, _IGNORES = 1, 2


class JsonRecords:
    """Reads JSON, and remembers how each column spells dates and decimals. A ``RecordFormat``."""

    rules = formats_column_options.EVERY

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        require_known_options(options or {})
        self._spellings: dict[pa.Schema, columns.Spelling] = {}
        self._watch = bad_record_search.Watch()
        self._named: tuple[pa.Schema, KeysByFieldName] | None = None
        self._finder: UnknownFieldFinder | None = None
        self._marks: Octets | None = None
        self._refused = ""
        """The column that refused a value last."""
        self.record_count_with_ignored_fields = 0

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        if all(map(field_names.is_found_by_exact_names, schema)):
            return self._decode_exact_names(values, schema)
        if self._named is None or not self._named[0].equals(schema, check_metadata=True):
            self._named = (schema, KeysByFieldName(schema, self._decode_exact_names))
        return self._named[1].decode(list(values))

    def watch_unknown_fields(self, finder: UnknownFieldFinder) -> None:
        self._finder = finder

    def unknown_columns_of_last_decode(
        self, values: Sequence[bytes], bad_rows: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Read once more only what the C code, which marked most records, is unsure about.

        If it marked none, read all, and count those with ignored fields.
        """
        assert self._finder is not None, "nobody watches"
        marks = self._marks
        marked = marks is not None and len(marks) == len(values)
        if marks is None or not marked:
            marks = np.full(len(values), _LACKS, np.uint8)
        self.record_count_with_ignored_fields += int(np.count_nonzero(marks & _IGNORES))
        rows = sorted({*np.flatnonzero(marks & _LACKS).tolist(), *bad_rows})
        result: dict[Struct, list[int]] = {}
        for row in rows:
            try:
                record = json_values.parse_record(values[row])
            except ValueError:
                continue
            self.record_count_with_ignored_fields += not marked and self._finder.has_ignored_field(
                record
            )
            wanted = self._finder.columns_needed_by_record(record)
            if wanted.fields:
                result.setdefault(wanted, []).append(row)
        return [(np.array(some, np.int64), wanted) for wanted, some in result.items()]

    def flag_absent_field(self, values: Sequence[bytes], path: Sequence[pa.Field]) -> Flags:
        return paths.flag_absent_field(Packed.pack(values), path)

    def _decode_exact_names(self, some: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """Read what is plain in one pass, and what that leaves by the rules."""
        values = Packed.pack(some)
        has_read_options = formats_column_options.any_field_has_read_option(schema)
        plan = self._plan_for(schema)
        taken = one_pass.read_in_one_pass(values, plan) if plan else None
        if taken is None or not taken.batch.num_rows:
            return self._decode_without_one_pass(values, schema, has_read_options=has_read_options)
        left = taken.rows_left_over()
        watched = self._finder is not None and self._finder.fields is not None
        marks = (taken.found >> 2).astype(np.uint8) if watched else None
        self._marks = marks
        if not len(left):
            return taken.batch
        bad: dict[int, str] = {}
        try:
            some = values.take(left)
            if not has_read_options and (len(some) <= _FEW or self._seem_mostly_bad(some, schema)):
                rest = self._decode_one_by_one(some, taken.batch.slice(0, 0))
            else:
                rest = self._decode_without_one_pass(
                    some, schema, has_read_options=has_read_options
                )
        except UndecodableRecords as error:
            rows = left.tolist()
            rest, bad = error.rest, {rows[at]: reason for at, reason in error.bad.items()}
        if marks is not None and self._marks is not None:
            marks[left] = self._marks
            self._marks = marks
        batch = taken.batch
        if rest.num_rows:
            good = np.setdiff1d(left, np.array([*bad], np.int64), assume_unique=True)
            order = np.argsort(np.concatenate([np.flatnonzero(taken.found != one_pass.LEFT), good]))
            batch = pa.concat_batches([batch, rest]).take(pa.array(order))
        if bad:
            raise UndecodableRecords(bad, batch)
        return batch

    def _plan_for(self, schema: pa.Schema) -> one_pass.Plan | None:
        return one_pass.compile_plan(schema, self._finder.fields if self._finder else None)

    def _decode_without_one_pass(
        self, values: Packed, schema: pa.Schema, *, has_read_options: bool
    ) -> pa.RecordBatch:
        if has_read_options:
            return columns_with_options.decode_with_read_options(
                values, schema, self._decode_exact_names
            )
        return self._decode_around_bad_records(values, schema)

    def _seem_mostly_bad(self, values: Packed, schema: pa.Schema) -> bool:
        """Judge by a few of them: a block of bad ones would be divided until each stands alone."""
        self._ensure_number_or_text_known(values, schema)
        some = values[:: -(-len(values) // _PROBES)]
        refused = [
            isinstance(self._decode_one_or_reason(value or b"", schema, "", ill_formed=True), str)
            for value in some
        ]
        return 2 * sum(refused) > len(refused)

    def _decode_one_by_one(self, values: Packed, empty_batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode what the pass left, which costs less than a block of few, or of bad ones.

        ``empty_batch``: has no rows, and the schema.
        """
        schema = empty_batch.schema
        self._ensure_number_or_text_known(values, schema)
        fields = self._finder.fields if self._finder else None
        ill_formed, _, marks = bad_record_search.flag_suspect_records(values.array, fields)
        self._marks = _mark_ill_formed_as_unsure(marks, ill_formed)
        parts = [empty_batch]
        bad: dict[int, str] = {}
        for row, value in enumerate(values):
            result = self._decode_one_or_reason(
                value or b"", schema, "", ill_formed=bool(ill_formed[row])
            )
            if isinstance(result, str):
                bad[row] = result
            else:
                parts.append(result)
        rest = pa.concat_batches(parts)
        if bad:
            raise UndecodableRecords(bad, rest)
        return rest

    def _ensure_number_or_text_known(self, values: Packed, schema: pa.Schema) -> None:
        if schema not in self._spellings:
            self._spellings[schema] = {}
            self._learn_spelling_if_new(values, schema)

    def _decode_around_bad_records(self, values: Packed, schema: pa.Schema) -> pa.RecordBatch:
        self._ensure_number_or_text_known(values, schema)
        try:
            apart = bad_record_search.BadRecordSearch(
                values,
                schema,
                self._spellings[schema],
                self._watch,
                learn=lambda: self._learn_spelling_if_new(values, schema),
                fields=self._finder.fields if self._finder else None,
            )
        except bad_record_search.Respelled:
            return self._decode_around_bad_records(values, schema)
        self._marks = _mark_ill_formed_as_unsure(apart.marks, apart.ill_formed)
        return self._decode_refused_and_merge(values, schema, apart)

    def _learn_spelling_if_new(self, values: Packed, schema: pa.Schema) -> bool:
        """Return whether a few samples showed a spelling that was not known before."""
        spelling = self._spellings[schema]  # asked once: a wide schema's hash is expensive
        before = dict(spelling)
        # From the last to the first: what the first record shows stays.
        for value in values[:: -max(1, len(values) // _SAMPLES)]:
            try:
                record = json_values.parse_record(value)
            except ValueError:
                continue
            for field in schema:
                columns.learn_number_or_text(spelling, field, record.get(field.name))
        return before != spelling

    def _decode_refused_and_merge(
        self, values: Packed, schema: pa.Schema, search: bad_record_search.BadRecordSearch
    ) -> pa.RecordBatch:
        """Return, in order, the rows of the fast path and those of the explaining path."""
        bad: dict[int, str] = {}
        accepted: dict[int, pa.RecordBatch] = {}
        for row, column in sorted(search.refused.items()):
            ill = bool(search.ill_formed[row])
            result = self._decode_one_or_reason(values[row] or b"", schema, column, ill_formed=ill)
            if isinstance(result, str):
                bad[row] = result
            else:
                accepted[row] = result
        rows, batch = search.accepted_rows()
        if accepted:
            order = np.argsort(np.concatenate([rows, np.array([*accepted], np.int64)]))
            batch = pa.concat_batches([batch, *accepted.values()]).take(pa.array(order))
        if bad:
            raise UndecodableRecords(bad, batch)
        return batch

    def _decode_one_or_reason(
        self, value: bytes, schema: pa.Schema, suspected: str, *, ill_formed: bool
    ) -> pa.RecordBatch | str:
        """Return the row, or the reason why there is none."""
        try:
            record = json_values.parse_record(value)
        except json_values.KeyTwice as reason:
            return str(reason)
        except ValueError as reason:
            return self._retry_columnar_or_reason(value, schema, reason, surely_bad=ill_formed)
        row: dict[str, Any] = {}
        # Bad records often come in rows, with the same fault: what was wrong before comes first.
        for field in _named_fields_then_all(schema, suspected, self._refused):
            try:
                row[field.name] = json_values.convert_field(field, record)
            except ValueError as reason:
                self._refused = field.name
                surely_bad = _is_columnar_as_strict_as_by_value(field.type)
                return self._retry_columnar_or_reason(value, schema, reason, surely_bad=surely_bad)
        return rows_from_python([row], schema)

    def _retry_columnar_or_reason(
        self, value: bytes, schema: pa.Schema, reason: ValueError, *, surely_bad: bool
    ) -> pa.RecordBatch | str:
        """Accept what the columnar path accepts next to good neighbours; chance must not decide.

        The columnar path is laxer in places. ``surely_bad``: not for this record.
        """
        if not surely_bad:
            try:
                return columns.decode_block_or_raise(
                    Packed.from_values([value]), schema, self._spellings[schema]
                )
            except Unfit:
                pass
        return str(reason)


def _named_fields_then_all(schema: pa.Schema, *names: str) -> Iterator[pa.Field]:
    """Yield the fields of these names, if there are any, and then all."""
    for name in names:
        if (at := schema.get_field_index(name)) >= 0:
            yield schema.field(at)
    yield from schema


def _mark_ill_formed_as_unsure(marks: Octets | None, ill_formed: Flags) -> Octets | None:
    """Return the marks, as the C code did not see everything of an invalid value."""
    return None if marks is None else np.where(ill_formed, marks | _LACKS, marks)


def _is_columnar_as_strict_as_by_value(data_type: pa.DataType) -> bool:
    """Return whether the columnar path refuses all values that ``json.values`` refuses."""
    return not pa_types.is_nested(data_type) and not pa_types.is_large_string(data_type)
