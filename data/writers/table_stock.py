"""The tables that exist for routes to name, and how files of each are written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    RetryLater,
    TableMissing,
    Unreachable,
)
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.table_kinds import FileSchema
from headgate.data.writers.encodings import refuse_for_keys
from headgate.data.writers.layout_plans import plan_of_layout
from headgate.data.writers.plan import SourcePlan, plan_of_table
from headgate.data.writers.routed_table import RoutedTable, dropped
from headgate.data.writers.routes import RAW_NAME_PROPERTY
from headgate.data.writers.shaping import Shaping
from headgate.tables.iceberg.catalog import rights_taken
from headgate.tables.stores.object_stores import refuse_signing


class TableStock(Protocol):
    """Used by one thread at a time."""

    def names(self, namespace: str) -> frozenset[str]:
        """Return the last parts of the names of its tables. Raises ``Unreachable``."""

    def loaded(self, name: str, source: SourcePlan, shaping: Shaping) -> RoutedTable:
        """Return the table as it is now, or what is wrong with it. Raises ``Unreachable``."""


class IcebergStock:
    """The tables of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def names(self, namespace: str) -> frozenset[str]:
        try:
            return frozenset(found[-1] for found in self._catalog.list_tables(namespace))
        except NoSuchNamespaceError:
            return frozenset()
        except OSError as error:
            raise Unreachable(f"the tables of {namespace} cannot be listed: {error}") from error

    def loaded(self, name: str, source: SourcePlan, shaping: Shaping) -> RoutedTable:
        try:
            table = self._catalog.load_table(name)
        except NoSuchTableError:  # it was listed a moment ago
            return dropped(name)
        except Exception as error:
            if refused := rights_taken(error):
                why = f"{refused.code} {name} may not be loaded: {refused.message}"
                return RoutedTable(name, problem=why, trouble=why)
            if isinstance(error, OSError):
                raise Unreachable(f"{name} cannot be loaded: {error}") from error
            raise
        uuid, schema_id = str(table.metadata.table_uuid), table.schema().schema_id
        start = TableStart(name, uuid, schema_id, table.spec().spec_id, "")
        try:
            refuse_signing(name, table.io.properties)
            plan = plan_of_table(table, start, source, shaping)
            if source.changes is not None:
                refuse_for_keys(name, table.properties)
        except ConfigurationError as error:
            return RoutedTable(name, problem=error.message)
        raw_name = table.properties.get(RAW_NAME_PROPERTY, "")
        return RoutedTable(name, plan, "", uuid, schema_id, raw_name)


class KindStock:
    """The tables of another kind. ``listed`` returns possible names, ``layout`` loads one.

    ``exists``: whether one is there, usable or not.
    """

    def __init__(
        self,
        listed: Callable[[str], Collection[str]],
        exists: Callable[[str], bool],
        layout: Callable[[str], FileSchema],
    ) -> None:
        self._listed = listed
        self._exists = exists
        self._layout = layout
        self._seen = set[str]()

    def names(self, namespace: str) -> frozenset[str]:
        """Return the names, of former tables too, as long as they are listed: loading tells."""
        found = {f"{namespace}.{short}": short for short in self._listed(namespace)}
        self._seen |= {name for name in found.keys() - self._seen if self._exists(name)}
        return frozenset(short for name, short in found.items() if name in self._seen)

    def loaded(self, name: str, source: SourcePlan, shaping: Shaping) -> RoutedTable:
        try:
            layout = self._layout(name)
        except TableMissing:
            return dropped(name)
        except RetryLater as error:
            if refused := rights_taken(error):
                return RoutedTable(name, problem=str(refused), trouble=str(refused))
            raise
        except ConfigurationError as error:
            return RoutedTable(name, problem=error.message)
        except HeadgateError as error:
            return RoutedTable(name, problem=str(error), trouble=str(error))
        self._seen.add(name)
        try:
            plan = plan_of_layout(layout, name, source, shaping)
        except ConfigurationError as error:
            return RoutedTable(name, problem=error.message)
        raw_name = layout.properties.get(RAW_NAME_PROPERTY, "")
        return RoutedTable(name, plan, "", layout.uuid, layout.schema_id, raw_name)
