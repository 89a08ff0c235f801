"""An Iceberg quarantine; beside a table of another kind it has a catalog of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from pyiceberg.catalog import Catalog

from headgate.control_protocol.ports import Follower
from headgate.data.writers.plan import Plans
from headgate.sink.catalog_place import refuse_catalog
from headgate.sink.catalogs import open_catalog
from headgate.sink.declaration import quarantine_declaration
from headgate.sink.followers import iceberg_table, told_of_payments
from headgate.sink.opened_tables import Maintained
from headgate.sink.preconditions import refuse_columns_aside, refuse_place
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import catalog_failure
from headgate.tables.iceberg.creation import ensure_table
from headgate.tables.iceberg.gate import Gates
from headgate.tables.iceberg.supported import refuse_unread
from headgate.tables.stores.object_stores import refuse_signing


class IcebergAside:
    """The quarantine of such a sink, in a catalog that its opener closes."""

    def __init__(self, settings: SinkSettings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog

    def ensure(self) -> None:
        """Make the table if it is missing. Raises as ``ensure_table``, and where it cannot be
        filled."""
        wanted = self._settings.quarantine
        refuse_place(wanted.location or wanted.catalog.properties.get("warehouse", ""))
        ensure_aside(self._settings, self._catalog)

    def follower(self, gates: Gates | None = None) -> Follower:
        """Return the table as the coordinator pays it."""
        return iceberg_table(self._settings, self._catalog, self._settings.quarantine.table, gates)

    def plans(self) -> Plans:
        """Return the plans for its files."""
        return Plans(self._catalog)

    def told(self, settings: SinkSettings, opening: ExitStack) -> Callable[[], None]:
        """Return what is to hear of its payments."""
        return told_of_payments(settings, self._catalog, opening)

    def maintain(
        self, settings: SinkSettings, gates: Gates, opening: ExitStack, told: Maintained | None
    ) -> None:
        """Begin its maintenance, if that is wanted; ``opening`` ends it."""
        if settings.maintenance:
            from headgate.sink.maintenance.beside import Maintenance  # only where it is wanted

            heard = (told,) if told else ()
            opening.callback(Maintenance(settings, self._catalog, gates, *heard).close)


def ensure_aside(settings: SinkSettings, catalog: Catalog) -> None:
    """Make an Iceberg quarantine if it is missing. Raises as ``ensure_table``, and where it cannot
    be filled."""
    wanted = settings.quarantine
    if not ensure_table(catalog, wanted.table, quarantine_declaration(wanted.location)):
        refuse_aside(settings, catalog)


def refuse_aside(settings: SinkSettings, catalog: Catalog) -> str:
    """Return the UUID of the quarantine. Raises ``TableMissing``, and where it cannot be filled."""
    name = settings.quarantine.table
    try:
        table = catalog.load_table(name)
    except Exception as error:
        refuse_unread(name, error)
        raise catalog_failure(error, f"table {name} cannot be read") from error
    refuse_signing(name, table.io.properties)
    refuse_place(table.location())
    refuse_columns_aside(name, table.schema())
    return str(table.metadata.table_uuid)


def ready_aside(settings: SinkSettings, stack: ExitStack) -> IcebergAside | None:
    """Open the quarantine's catalog, which ``stack`` closes, and make the table if it is missing.

    ``None``: the quarantine is of the table's kind, or there is none. Raises as ``open_catalog``
    and ``ensure_table``.
    """
    if not settings.apart:
        return None
    refuse_catalog(settings.quarantine.catalog)
    catalog = open_catalog(settings, of=settings.quarantine.catalog)
    stack.callback(catalog.close)
    aside = IcebergAside(settings, catalog)
    aside.ensure()
    return aside
