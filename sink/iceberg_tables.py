"""Implements ``OpenedTables`` for Iceberg: a catalog, with followers, makers and maintenance."""

from __future__ import annotations

from contextlib import ExitStack

from pyiceberg.catalog import Catalog

from headgate.control_protocol.ports import Lead, SourceTopics
from headgate.sink.aside import ensure_aside
from headgate.sink.catalog_place import refuse_catalog, sqlite_file
from headgate.sink.catalogs import open_catalog
from headgate.sink.declaration import declaration
from headgate.sink.followers import iceberg_table, opened_followers
from headgate.sink.gone import PATIENCE_S, refuse_gone
from headgate.sink.made_tables import MakingTopics, TableMaker
from headgate.sink.opened_tables import Coordinated, Maintained
from headgate.sink.planning import Planning, iceberg_planning
from headgate.sink.settings import SinkSettings
from headgate.sink.shelf import IcebergShelf
from headgate.sink.starting import refuse_start
from headgate.tables.iceberg.creation import ensure_table
from headgate.tables.iceberg.gate import Gates


def ready_iceberg(settings: SinkSettings, stack: ExitStack) -> IcebergTables:
    """Open the catalog and create the tables that may be created; ``stack`` closes it.

    What ``headgate check`` would refuse is refused before anything is created.
    """
    if (database := sqlite_file(settings.catalog)) and not database.exists():
        refuse_gone(settings, PATIENCE_S)  # opening the catalog creates the file
    catalog = open_catalog(settings)
    stack.callback(catalog.close)
    refuse_start(catalog, settings)
    ensure_table(catalog, settings.table.identifier, declaration(settings.table))
    if settings.quarantine.keeps:
        ensure_aside(settings, catalog)
    return IcebergTables(settings, catalog)


class IcebergTables:
    """Implements ``OpenedTables`` for one catalog."""

    def __init__(self, settings: SinkSettings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog

    def lead(self) -> Lead:
        return iceberg_table(self._settings, self._catalog, self._settings.table.identifier)

    def planning(self) -> Planning:
        return iceberg_planning(self._settings, self._catalog)

    def coordinated(
        self,
        settings: SinkSettings,
        topics: SourceTopics,
        opening: ExitStack,
        maintained: Maintained | None,
    ) -> Coordinated:
        catalog, gates = self._catalog, Gates()
        table = iceberg_table(settings, catalog, settings.table.identifier, gates, leads=True)
        opening.callback(table.close)
        maker = (
            TableMaker(settings, IcebergShelf(catalog), filled=lambda: table.read().filled)
            if settings.tables
            else None
        )
        followers = opened_followers(settings, catalog, opening, maker, gates=gates)
        if settings.maintenance:
            from headgate.sink.maintenance.beside import Maintenance  # only if needed

            told = (maintained,) if maintained else ()
            opening.callback(Maintenance(settings, catalog, gates, *told).close)
        return Coordinated(table, followers, MakingTopics(topics, maker) if maker else topics)


def looked_at_iceberg(settings: SinkSettings, opening: ExitStack) -> Lead | None:
    """Open the table for reading only; ``None`` if the catalog has no database yet."""
    refuse_catalog(settings.catalog)
    database = sqlite_file(settings.catalog)
    if database and not database.exists():
        return None
    catalog = open_catalog(settings)
    opening.callback(catalog.close)
    return iceberg_table(settings, catalog, settings.table.identifier)
