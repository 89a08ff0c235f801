"""A catalog that needs no server: a SQLite file beside a folder of tables."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyiceberg.catalog import Catalog

from headgate.control_protocol.table_format import TableSpec
from headgate.data_plane.routing.table_lookup import TableLookup
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_format import IcebergFormat

DATABASE = "catalog.sqlite"


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
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    (folder / DATABASE).write_bytes(_empty_database())
    return _open_in(folder)


@cache
def _empty_database() -> bytes:
    """A catalog that has the namespace and no table; SQLAlchemy makes one in 6 ms each time."""
    with tempfile.TemporaryDirectory() as folder:
        _open_in(Path(folder)).catalog.create_namespace("db")
        return (Path(folder) / DATABASE).read_bytes()


def _open_in(folder: Path) -> LocalCatalog:
    database, warehouse = folder / DATABASE, folder / "warehouse"
    properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": warehouse.as_uri()}
    return LocalCatalog("local", properties, load_catalog("local", properties), database, warehouse)


def lookup_in(catalog: Catalog) -> TableLookup:
    """The tables of a catalog, as a sink with routes looks them up."""
    return TableLookup(IcebergFormat(catalog), lambda name: TableSpec(name, ""))
