"""Asks the questions of ``headgate check`` about a table that is not Iceberg."""

from __future__ import annotations

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import declared
from headgate.config.table_formats import wanted_quarantine, wanted_table
from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.table_format import FileSchema, SupportsLock, TableFormat
from headgate.operations.check.quarantine import check_aside
from headgate.operations.check.state import StateCheck
from headgate.runtime.start_checks import refuse_layout, refuse_quarantine
from headgate.tables.storage.object_stores import for_files


class KindCheck(StateCheck):
    """Asks what a start would ask about a table of this kind."""

    def __init__(
        self, settings: SinkSettings, kind: TableFormat, *, asks_group: bool = False
    ) -> None:
        super().__init__(settings, asks_group=asks_group)
        self._kind = kind
        self._layout: FileSchema | None = None
        if isinstance(kind, SupportsLock):
            self.lock = lambda: kind.reach_lock(wanted_table(settings))

    @property
    def exists(self) -> bool:
        return self._layout is not None

    def table(self) -> str:
        wanted = self._settings.table
        try:
            self._layout = self._kind.file_schema(wanted_table(self._settings))
        except TableMissing:
            if not wanted.create:
                raise
            self._refuse_gone()
            return f"{wanted.identifier} does not exist yet; the first start creates it"
        return f"{wanted.identifier} exists ({wanted.type}, UUID {self._layout.uuid})"

    def columns(self) -> str:
        assert self._layout is not None  # asked only if the table exists
        refuse_layout(self._layout, self._settings)
        wanted = len(declared(self._settings.table).columns)
        there = len(self._layout.columns.fields)
        return f"{there} in the table, {wanted} of them declared here and equal"

    def quarantine(self) -> str:
        if self._settings.apart:
            return check_aside(self._settings, self._refuse_replaced)
        wanted = wanted_quarantine(self._settings)
        try:
            layout = self._kind.file_schema(wanted)
        except TableMissing:
            self._refuse_replaced(None)
            return f"{wanted.name} does not exist yet; the next start creates it"
        refuse_quarantine(layout, self._settings)
        self._refuse_replaced(layout.uuid)
        return f"{wanted.name} exists ({self._settings.table.type}, UUID {layout.uuid})"

    def _location(self) -> str:
        return self._layout.location if self._layout else self._settings.table.location

    def _file_properties(self) -> dict[str, str]:
        return for_files(self._settings.catalog.properties, self._location())
