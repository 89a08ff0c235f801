"""Provides a dry run's catalog: empty copies of the real tables, in a temporary folder.

A table is copied when it is first loaded. What the sink would create is created here instead.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import EMPTY_DICT

from headgate.tables.iceberg.catalog import install_own_metadata_writer
from headgate.tables.iceberg.table_creation import ensure_namespaces

_NOT_HERE = (
    *("write.data.path", "write.metadata.path", "write.object-storage.", "write.location-"),
    "write.format.default",
)
"""Properties that would place files outside the temporary folder, or make them unreadable here."""


class DryRunCatalog(NoopCatalog, MetastoreCatalog):
    """Holds tables in a folder, and their names in memory; what a dry run never asks is refused.

    ``copied``: the names of tables that the real catalog has. ``real`` is only read.
    """

    def __init__(self, folder: Path, real: Catalog | None) -> None:
        super().__init__("dry-run")
        install_own_metadata_writer(self)
        self._folder = folder
        self._namespaces: set[tuple[str, ...]] = set()
        self._locations: dict[tuple[str, ...], str] = {}
        """Of each table's newest metadata."""
        self._real = real
        self.copied: set[str] = set()

    def create_namespace(self, namespace: Any, properties: Any = EMPTY_DICT) -> None:
        del properties
        self._namespaces.add(self.identifier_to_tuple(namespace))

    def namespace_exists(self, namespace: Any) -> bool:
        return self.identifier_to_tuple(namespace) in self._namespaces

    def list_tables(self, namespace: Any) -> list[Any]:
        levels = self.identifier_to_tuple(namespace)
        names = {name for name in self._locations if name[:-1] == levels}
        known = levels in self._namespaces
        if self._real is not None:
            with suppress(NoSuchNamespaceError):
                names |= {tuple(each) for each in self._real.list_tables(namespace)}
                known = True
        if not known:
            raise NoSuchNamespaceError(f"there is no namespace {namespace}")
        return sorted(names)

    def load_table(self, identifier: Any) -> Table:
        name = self.identifier_to_tuple(identifier)
        if name not in self._locations:
            if self._real is None:
                raise NoSuchTableError(f"there is no table {identifier}")
            self.create_empty_copy(self._real.load_table(identifier), identifier)
        at = self._locations[name]
        metadata = FromInputFile.table_metadata(self._load_file_io(location=at).new_input(at))
        return Table(name, metadata, at, self._load_file_io(metadata.properties, at), self)

    def table_exists(self, identifier: Any) -> bool:
        real = self._real
        here = self.identifier_to_tuple(identifier) in self._locations
        return here or (real is not None and real.table_exists(identifier))

    def create_table(
        self, identifier: Any, schema: Any, location: str | None = None, *more: Any, **named: Any
    ) -> Table:
        """Create the table here, whatever ``location`` says."""
        del location
        given = (
            dict(zip(("partition_spec", "sort_order", "properties"), more, strict=False)) | named
        )
        name = self.identifier_to_tuple(identifier)
        properties = given.get("properties", {})
        metadata = new_table_metadata(
            location=f"file://{self._folder.joinpath('tables', *name)}",
            schema=schema,
            partition_spec=given.get("partition_spec", UNPARTITIONED_PARTITION_SPEC),
            sort_order=given.get("sort_order", UNSORTED_SORT_ORDER),
            properties={k: text for k, text in properties.items() if not k.startswith(_NOT_HERE)},
        )
        self._write_metadata_version(name, metadata, 0)
        return self.load_table(identifier)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Apply the updates to the newest metadata. Nobody else commits here."""
        name = table.name()
        staged = self._update_and_stage_table(self.load_table(name), name, requirements, updates)
        at = self._write_metadata_version(
            name, staged.metadata, self._parse_metadata_version(self._locations[name])
        )
        return CommitTableResponse(metadata=staged.metadata, metadata_location=at)

    def _write_metadata_version(
        self, name: tuple[str, ...], metadata: TableMetadata, former_version: int
    ) -> str:
        provider = load_location_provider(metadata.location, metadata.properties)
        at = provider.new_table_metadata_file_location(former_version + 1)
        self._write_metadata(metadata, self._load_file_io(location=at), at)
        self._locations[name] = at
        return at

    def create_empty_copy(self, table: Table, identifier: Any) -> None:
        """Create an empty table like this one."""
        name = identifier if isinstance(identifier, str) else ".".join(identifier)
        ensure_namespaces(self, name)
        properties = {**table.properties, "format-version": str(table.format_version)}
        self.create_table(name, table.schema(), None, table.spec(), table.sort_order(), properties)
        self.copied.add(name)
