"""A catalog that needs no server: a SQLite file beside a folder of tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog

from headgate.tables.iceberg.catalog import load_catalog


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
