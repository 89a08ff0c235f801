"""Asks the questions of ``headgate check`` about an Iceberg catalog and its table."""

from __future__ import annotations

from pyiceberg.table import Table

from headgate.config.catalog_settings import Backend
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import declared
from headgate.control_protocol.errors import (
    TableMissing,
)
from headgate.data_plane.files.format_choice import refuse_files
from headgate.data_plane.files.metrics import leaves_of, metrics_modes
from headgate.data_plane.files.parquet import unheeded
from headgate.operations.access.table import opened_catalog, opened_table
from headgate.operations.check.catalog_rights import Unasked, may_commit, may_create
from headgate.operations.check.quarantine import check_aside
from headgate.operations.check.state import NotChecked, StateCheck
from headgate.runtime.start_checks import (
    future_location,
    refuse_apart,
    refuse_new,
    refuse_read_only,
    refuse_table,
)
from headgate.tables.storage.object_stores import for_files


class TableCheck(StateCheck):
    """Questions in this order; each one uses what the ones before found out."""

    def __init__(self, settings: SinkSettings, *, asks_group: bool = False) -> None:
        super().__init__(settings, asks_group=asks_group)
        self.catalog, self.rights, self.files = self._catalog, self._rights, self._files
        self._table: Table | None = None

    @property
    def exists(self) -> bool:
        return self._table is not None

    def _catalog(self) -> str:
        catalog = self._settings.catalog
        try:
            with opened_catalog(self._settings) as opened:
                refuse_apart(opened, self._settings)
        except TableMissing as error:
            if not self._settings.table.create:
                raise
            self._refuse_gone()
            return f"{error.message}: the first start creates it"
        refuse_read_only(catalog)
        in_java = ", in Java" if catalog.backend is Backend.JAVA else ""
        return f"{catalog.name!r} ({catalog.properties.get('type', 'by its uri')}) opens{in_java}"

    def table(self) -> str:
        wanted = self._settings.table
        try:
            with opened_table(self._settings) as table:
                self._table = table
        except TableMissing as error:
            if not wanted.create:
                raise TableMissing(
                    error.message,
                    "create it, correct table.identifier, or set table.create with its columns",
                ) from None
            self._refuse_gone()
            self._refuse_new()
            return f"{wanted.identifier} does not exist yet; the first start creates it"
        return f"{wanted.identifier} exists (UUID {self._table.metadata.table_uuid})"

    def _refuse_new(self) -> None:
        try:
            with opened_catalog(self._settings) as catalog:
                refuse_new(self._settings, catalog)
        except TableMissing:
            refuse_new(self._settings)

    def _rights(self) -> str:
        """Check that the catalog lets this principal do what the sink will do."""
        try:
            if self._table is None:
                with opened_catalog(self._settings) as catalog:
                    return may_create(catalog, self._settings.table.identifier)
            with opened_table(self._settings) as table:  # the other one's catalog is closed
                return may_commit(table)
        except Unasked as reason:
            raise NotChecked(str(reason)) from reason
        except TableMissing as error:
            raise NotChecked(f"{error.message}: the first start creates it") from error

    def columns(self) -> str:
        assert self._table is not None  # asked only if the table exists
        schema = self._table.schema()
        refuse_table(self._table, self._settings)
        wanted = len(declared(self._settings.table).columns)
        return f"{len(schema.fields)} in the table, {wanted} of them declared here and equal"

    def _files(self) -> str:
        """Check that files can be written by the table's properties; list unsupported ones."""
        assert self._table is not None  # asked only if the table exists
        schema, properties = self._table.schema(), self._table.properties
        leaves = leaves_of(schema, metrics_modes(schema, properties, self._table.sort_order()))
        refuse_files(schema, properties, self._table.sort_order())
        ignored = unheeded(properties, leaves)
        return (
            f"not supported: {'; '.join(ignored)}" if ignored else "as the table's properties ask"
        )

    def quarantine(self) -> str:
        return check_aside(self._settings, self._refuse_replaced)

    def _location(self) -> str:
        table = self._table
        return table.metadata.location if table else future_location(self._settings)

    def _file_properties(self) -> dict[str, str]:
        """Return a participant's properties, which the catalog may only give out with a table."""
        if self._table is not None:
            return for_files(self._table.io.properties, self._location())
        location = self._location()
        if "://" not in location:
            raise NotChecked(
                f"writing to {location or 'the catalog`s own choice'} was not tried: where a new "
                "table lies, and with which keys, the catalog says when it makes one"
            )
        return for_files(self._settings.catalog.properties, location)
