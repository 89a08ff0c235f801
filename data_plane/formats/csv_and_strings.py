"""Implements the formats ``csv``, ``string`` and ``bytes``, whose values name no fields.

- ``csv``: one line per record (RFC 4180: quotes are doubled inside quotes). Options: ``columns``,
  the column of each cell as a list with commas, where an empty name drops the cell (default: the
  table's columns in their order); ``delimiter``, one character; ``null``, the text without quotes
  that stands for null (default: the empty one).
- ``string`` and ``bytes``: the whole value, in the column that the option ``column`` names
  (default: the only one).

Cells and strings go into columns of other types by the rules that JSON has for text, and ``true``
and ``false`` into booleans. Columns that get nothing are null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.casting.cast_to_table import cast_column, require_no_faults
from headgate.data_plane.formats.format_registry import require_known_options
from headgate.data_plane.formats.record_format import Faults
from headgate.native.byte_arrays import Packed

_LINE_END = r"\r?\n$"


class StringRecords:
    """Takes each value as one text, in UTF-8. A ``RecordFormat``."""

    rules = frozenset({column_options.UNIT})

    def __init__(self, options: Mapping[str, str]) -> None:
        self._column = require_known_options(options, {"column": ""})["column"]

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        column = _require_named_or_only_column(schema, self._column)
        return _build_rows({column: _decode_texts(values, faults)}, len(values), schema, faults)


class BytesRecords:
    """Takes each value as it is. A ``RecordFormat``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._column = require_known_options(options, {"column": ""})["column"]

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        column = _require_named_or_only_column(schema, self._column)
        data = Packed.pack(values).array
        return _build_rows({column: data}, len(values), schema, Faults())


class CsvRecords:
    """Takes each value as one line of cells. A ``RecordFormat``."""

    rules = frozenset({column_options.UNIT})

    def __init__(self, options: Mapping[str, str]) -> None:
        taken = require_known_options(options, {"columns": "", "delimiter": ",", "null": ""})
        self._columns = [name.strip() for name in taken["columns"].split(",")]
        self._delimiter, self._null = taken["delimiter"], taken["null"]
        if len(self._delimiter) != 1 or self._delimiter in '"\r\n':
            raise ValueError(f"delimiter cannot be {self._delimiter!r}; use one character")
        named = [name for name in self._columns if name]
        if len(set(named)) < len(named):
            raise ValueError("columns names a column twice")
        outside = re.escape(self._delimiter)
        self._cell = re.compile(rf'(?:"((?:[^"]|"")*)"|([^"{outside}]*))({outside}|\Z)')

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        faults = Faults()
        columns = self._columns if any(self._columns) else schema.names
        for name in columns:
            if name:
                _require_named_or_only_column(schema, name)
        texts = pc.replace_substring_regex(_decode_texts(values, faults), _LINE_END, "")
        cells = self._split_into_columns(texts, len(columns), faults)
        result = {name: cells[place] for place, name in enumerate(columns) if name}
        return _build_rows(result, len(values), schema, faults)

    def _split_into_columns(
        self, texts: pa.Array, cell_count: int, faults: Faults
    ) -> list[pa.Array]:
        """Return a column of text for each cell."""
        if pc.any(pc.match_substring(texts, '"'), min_count=0).as_py():
            lines = [self._split_line(text) for text in texts.to_pylist()]
            wrong = [row for row, line in enumerate(lines) if len(line) != cell_count]
            faults.note(wrong, f"is not a line of {cell_count} cells")
            for row in wrong:
                lines[row] = [None] * cell_count
            result = zip(*lines, strict=True)
            return [pa.array(cells, pa.large_string()) for cells in result]
        lists = pc.split_pattern(texts, self._delimiter)
        counts = pc.list_value_length(lists).to_numpy()
        faults.note(np.flatnonzero(counts != cell_count), f"is not a line of {cell_count} cells")
        lists = pc.if_else(
            pa.array(counts == cell_count), lists, pa.scalar([None] * cell_count, lists.type)
        )
        columns = [pc.list_element(lists, place) for place in range(cell_count)]
        return [pc.if_else(pc.equal(column, self._null), None, column) for column in columns]

    def _split_line(self, text: str) -> list[str | None]:
        """Return the cells; none at all if the quotes make no sense."""
        cells: list[str | None] = []
        at = 0
        while True:
            result = self._cell.match(text, at)
            if result is None:
                return []
            quoted, bare, end = result.groups()
            if quoted is not None:
                cells.append(quoted.replace('""', '"'))
            else:
                cells.append(None if bare == self._null else bare)
            if not end:
                return cells
            at = result.end()


def _decode_texts(values: Sequence[bytes], faults: Faults) -> pa.Array:
    data = Packed.pack(values).array
    try:
        return data.cast(pa.large_string())
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for row, value in enumerate(values):
            try:
                texts.append(value.decode())
            except UnicodeDecodeError:
                texts.append("")
                faults.note([row], "is not UTF-8 text")
        return pa.array(texts, pa.large_string())


def _require_named_or_only_column(schema: pa.Schema, name: str) -> str:
    if not name and len(schema) == 1:
        return str(schema.names[0])
    if name not in schema.names:
        raise ConfigurationError(
            f"format.options names the column {name!r}"
            if name
            else "a value fills one column only",
            f"columns to be filled from values are: {', '.join(schema.names)}",
        )
    return name


def _build_rows(
    columns_by_name: Mapping[str, pa.Array], row_count: int, schema: pa.Schema, faults: Faults
) -> pa.RecordBatch:
    """Cast the columns to the schema, null where one is absent; raises ``UndecodableRecords``."""
    columns = []
    for field in schema:
        values = columns_by_name.get(field.name, pa.nulls(row_count))
        if pa_types.is_boolean(field.type) and pa_types.is_large_string(values.type):
            values = _parse_booleans(values, field.name, faults)
        columns.append(cast_column(values, field, faults))
    return require_no_faults(pa.RecordBatch.from_arrays(columns, schema=schema), faults)


def _parse_booleans(texts: pa.Array, name: str, faults: Faults) -> pa.Array:
    places = pc.index_in(texts, pa.array(["false", "true"], pa.large_string()))
    wrong = pc.and_(texts.is_valid(), places.is_null()).to_numpy(zero_copy_only=False)
    faults.note(np.flatnonzero(wrong), f"{name}: is neither true nor false")
    return places.cast(pa.bool_())
