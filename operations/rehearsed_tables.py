"""Provides a rehearsal's catalog: empty copies of the real tables, in a temporary folder.

A table is copied when it is first loaded. What the sink would create is created here instead.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from headgate.tables.iceberg.catalog import writing_version_3
from headgate.tables.iceberg.creation import ensure_namespaces

_NOT_HERE = (
    *("write.data.path", "write.metadata.path", "write.object-storage.", "write.location-"),
    "write.format.default",
)
"""Properties that would place files outside the temporary folder, or make them unreadable here."""


class RehearsalCatalog(SqlCatalog):
    """``copied``: the names of tables that the real catalog has. ``real`` is only read."""

    def __init__(self, folder: Path, real: Catalog | None) -> None:
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/tables"
        super().__init__("rehearsal", uri=uri, warehouse=warehouse)
        writing_version_3(self)
        self._real = real
        self.copied: set[str] = set()

    def list_tables(self, namespace: Any) -> list[Any]:
        found: set[tuple[str, ...]] = set()
        known = False
        for listed in (super().list_tables, self._real and self._real.list_tables):
            with suppress(NoSuchNamespaceError):
                found |= {tuple(each) for each in listed(namespace)} if listed else set()
                known |= listed is not None
        if not known:
            raise NoSuchNamespaceError(f"there is no namespace {namespace}")
        return sorted(found)

    def load_table(self, identifier: Any) -> Table:
        try:
            return super().load_table(identifier)
        except NoSuchTableError:
            if self._real is None:
                raise
        self.copy(self._real.load_table(identifier), identifier)
        return super().load_table(identifier)

    def table_exists(self, identifier: Any) -> bool:
        real = self._real
        return super().table_exists(identifier) or (
            real is not None and real.table_exists(identifier)
        )

    def create_table(
        self, identifier: Any, schema: Any, location: str | None = None, *more: Any, **named: Any
    ) -> Table:
        """Create the table here, whatever ``location`` says."""
        del location
        given = (
            dict(zip(("partition_spec", "sort_order", "properties"), more, strict=False)) | named
        )
        spec = given.get("partition_spec", UNPARTITIONED_PARTITION_SPEC)
        order = given.get("sort_order", UNSORTED_SORT_ORDER)
        wanted = given.get("properties", {})
        kept = {key: text for key, text in wanted.items() if not key.startswith(_NOT_HERE)}
        return super().create_table(identifier, schema, None, spec, order, kept)

    def copy(self, table: Table, identifier: Any) -> None:
        """Create an empty table like this one."""
        name = identifier if isinstance(identifier, str) else ".".join(identifier)
        ensure_namespaces(self, name)
        properties = {**table.properties, "format-version": str(table.format_version)}
        self.create_table(name, table.schema(), None, table.spec(), table.sort_order(), properties)
        self.copied.add(name)
