"""Compares files with the columns that their table has when it takes them (rule SCHEMA-9).

A file names columns by their ids, as the table had them when it was written. Values of a column
that somebody has dropped since would be in a file and in no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from headgate.control_protocol.errors import TableChanged
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.tables.iceberg.manifests import detail_of

Counts = Mapping[int, int]

_HINT = "undo the change, or correct the sink file, and start the sink again"


def require_files_fit_columns(table: Table, files: Sequence[WrittenFile]) -> None:
    """Raise ``TableChanged`` for files with values that the table no longer has a column for.

    So it does for files with nulls in a column that is required by now. What files do not
    count (metrics that the table turned off) is not known.
    """
    if len(table.metadata.schemas) > 1:
        details = (detail_of(table, file) for file in files if file.kind is FileKind.ROWS)
        _require_counted_columns_fit(
            table, ((dict(d.value_counts), dict(d.null_value_counts)) for d in details)
        )


def require_staged_files_fit_columns(table: Table, files: Iterable[DataFile]) -> None:
    """Do so for files that were drafted: what is pending for a table may have gathered for a
    while."""
    if len(table.metadata.schemas) > 1:
        _require_counted_columns_fit(
            table, ((file.value_counts or {}, file.null_value_counts or {}) for file in files)
        )


def _require_counted_columns_fit(table: Table, counted: Iterable[tuple[Counts, Counts]]) -> None:
    """``counted``: of each file, by column ids, the values and the nulls among them."""
    schema = table.schema()
    there, required = schema.field_ids, _required_top_level_primitives(schema)
    for counts, nulls in counted:
        for column, count in counts.items():
            if column not in there and nulls.get(column, 0) < count:
                raise _table_changed_error(
                    table, f"has no column {_column_name(table, column)!r} any more"
                )
            if column in required and nulls.get(column, 0):
                raise _table_changed_error(
                    table, f"requires a value of column {required[column]!r} now"
                )


def _table_changed_error(table: Table, what: str) -> TableChanged:
    identifier = ".".join(table.name())
    message = f"{identifier} {what}, and files were written before: none of them is committed"
    return TableChanged(message, _HINT)


def _required_top_level_primitives(schema: Schema) -> dict[int, str]:
    """Return the top-level columns that files count, and that must have values in each row."""
    return {
        field.field_id: field.name
        for field in schema.fields
        if field.required and field.field_type.is_primitive
    }


def _column_name(table: Table, field_id: int) -> str:
    """Return the column's last name, from the schemas that the table remembers."""
    for schema in reversed(table.metadata.schemas):
        if name := schema.find_column_name(field_id):
            return name
    return f"with id {field_id}"
