"""A catalog that needs no server: a SQLite file beside a folder of tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog

from headgate.control_protocol.table_format import TableSpec
from headgate.data_plane.routing.table_lookup import TableLookup
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_format import IcebergFormat


@dataclass(frozen=True)
class LocalCatalog:
    """``name`` and ``properties`` are what another process needs to open the same catalog."""

    name: str
    properties: Mapping[str, str]
    catalog: Catalog
    database: Path
    warehouse: Path


def local_catalog(folder: Path) -> LocalCatalog:
    """An empty catalog in the folder, with the namespace ``db``."""
    database, warehouse = folder / "catalog.sqlite", folder / "warehouse"
    warehouse.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": warehouse.as_uri()}
    catalog = load_catalog("local", properties)
    catalog.create_namespace("db")
    return LocalCatalog("local", properties, catalog, database, warehouse)


def lookup_in(catalog: Catalog) -> TableLookup:
    """The tables of a catalog, as a sink with routes looks them up."""
    return TableLookup(IcebergFormat(catalog), lambda name: TableSpec(name, ""))
