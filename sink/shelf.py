"""Defines the port to a sink's tables by name: list them, create them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError

from headgate.control_protocol.columns import Struct
from headgate.data.writers.routes import RAW_NAME_PROPERTY
from headgate.sink.declaration import declared
from headgate.sink.table_settings import TableSettings


class Shelf(Protocol):
    """Creates tables; several threads may ask at once."""

    def has(self, table: str) -> bool: ...

    def names(self, namespace: str) -> Collection[str]:
        """Return the last part of each table's name; some may not be tables."""

    def make(self, table: TableSettings, raw: str, inferred: Struct) -> bool:
        """Create the table, and return whether this call did.

        ``inferred`` columns, which records showed, come before those of the sink file. ``raw`` is
        kept: the name before the route turned it into a table name.
        """


class IcebergShelf:
    """Implements ``Shelf`` for a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def has(self, table: str) -> bool:
        return self._catalog.table_exists(table)

    def names(self, namespace: str) -> Collection[str]:
        try:
            return [found[-1] for found in self._catalog.list_tables(namespace)]
        except NoSuchNamespaceError:
            return ()

    def make(self, table: TableSettings, raw: str, inferred: Struct) -> bool:
        from headgate.tables.iceberg.creation import ensure_table  # not for readers

        wanted = declared(table)
        marked = {**wanted.properties, RAW_NAME_PROPERTY: raw}
        made = replace(wanted, properties=marked, inferred=inferred)
        return ensure_table(self._catalog, table.identifier, made)
