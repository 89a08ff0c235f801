"""Opens the table of a sink of any kind but Iceberg, for the coordinator or to be looked at."""

from __future__ import annotations

from typing import cast

from headgate.control_protocol.column_growth import Refusal
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Evolved,
    Lead,
    SinkTable,
    TableView,
)
from headgate.control_protocol.table_kinds import Capability, TableKind
from headgate.sink.kinds import wanted_table
from headgate.sink.settings import SinkSettings


def kind_lead(settings: SinkSettings, kind: TableKind) -> Lead:
    """Return the table, for its opener to close."""
    return as_lead(kind.open(wanted_table(settings), settings.name), kind)


def as_lead(table: SinkTable, kind: TableKind) -> Lead:
    """Return a table of the kind as one that may be asked for new columns."""
    if Capability.EVOLUTION in kind.capabilities:
        return cast("Lead", table)
    return FixedColumns(table)


class FixedColumns:
    """``ports.Lead`` over a table whose columns stay as they are."""

    def __init__(self, table: SinkTable) -> None:
        self._table = table

    def read(self) -> TableView:
        return self._table.read()

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        return self._table.commit(attempt)

    def evolve(self, base: TableView, columns: Struct) -> Evolved:
        why = "tables of this kind get no new columns"
        refused = tuple(Refusal((column.name,), why) for column in columns.fields)
        return Evolved(base, refused=refused)

    def close(self) -> None:
        self._table.close()
