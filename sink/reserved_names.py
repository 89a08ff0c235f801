"""Refuses column names that Iceberg reserves: engines could not read a table that has one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headgate.control_protocol.column_growth import RESERVED
from headgate.control_protocol.errors import NameReserved

if TYPE_CHECKING:
    from headgate.sink.sections import SinkSections
    from headgate.sink.table_settings import ColumnSettings, RecordColumns


def check_reserved(settings: SinkSections) -> None:
    """Raises ``NameReserved`` if a table of the sink would have such a column."""
    table, tables = settings.table, settings.tables
    _refuse("table.columns", _named(table.columns))
    _refuse("table.record_columns", _parts(table.record_columns))
    _refuse("tables.record_columns", _parts(tables.record_columns))
    for each in tables.table:
        _refuse("tables.table.columns", _named(each.columns))


def _named(columns: Iterable[ColumnSettings]) -> list[str]:
    return [column.name for column in columns]


def _parts(columns: RecordColumns) -> Iterable[str]:
    return columns.named().values()


def _refuse(section: str, names: Iterable[str]) -> None:
    for name in names:
        if name.lower() in RESERVED:
            raise NameReserved(
                f"{section}: the column name {name!r} is reserved by Iceberg",
                f"choose another name, for example kafka{name.lower()}",
            )
