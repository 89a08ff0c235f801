"""The tables of a sink by their names, for who makes them, and for who looks which are there."""

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
    """Where tables are made; several threads ask."""

    def has(self, table: str) -> bool: ...

    def names(self, namespace: str) -> Collection[str]:
        """The last part of the name of each table there; what is none may be among them."""

    def make(self, table: TableSettings, raw: str, inferred: Struct) -> bool:
        """Make it, with columns that records showed before those of the sink file, and keep the
        name that a route made its name of. Returns whether this call did."""


class IcebergShelf:
    """``Shelf`` of a catalog."""

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
        from headgate.tables.iceberg.creation import ensure_table  # not for who only looks

        wanted = declared(table)
        marked = {**wanted.properties, RAW_NAME_PROPERTY: raw}
        made = replace(wanted, properties=marked, inferred=inferred)
        return ensure_table(self._catalog, table.identifier, made)
