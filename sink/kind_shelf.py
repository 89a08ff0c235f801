"""Lists and creates the tables of any sink that is not Iceberg, by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import HeadgateError, RetryLater, TableMissing
from headgate.control_protocol.table_kinds import Layout, ListingKind, TableKind
from headgate.sink.kinds import wanted_follower, wanted_made
from headgate.sink.settings import SinkSettings
from headgate.sink.table_settings import TableSettings

if TYPE_CHECKING:
    from headgate.data.writers.table_lookup import KindStock


class KindShelf:
    """Implements ``Shelf`` for a kind with ``Capability.MANY_TABLES``."""

    def __init__(self, settings: SinkSettings, kind: TableKind) -> None:
        self._settings = settings
        self._kind = cast("ListingKind", kind)

    def has(self, table: str) -> bool:
        """Return whether the table exists, usable or not. Raises ``RetryLater``."""
        try:
            self.layout(table)
        except TableMissing:
            return False
        except RetryLater:
            raise
        except HeadgateError:
            return True
        return True

    def names(self, namespace: str) -> Collection[str]:
        return self._kind.names(wanted_follower(self._settings, f"{namespace}.any"))

    def make(self, table: TableSettings, raw: str, inferred: Struct) -> bool:
        wanted = wanted_made(self._settings, table, raw, inferred)
        self._kind.refuse(wanted)
        self._kind.ensure(wanted)
        return True

    def layout(self, table: str) -> Layout:
        """Return how its files are written now. Raises what ``TableKind.layout`` raises."""
        return self._kind.layout(wanted_follower(self._settings, table))

    def stock(self) -> KindStock:
        """Return the tables as participants use them."""
        from headgate.data.writers.table_lookup import KindStock  # not for readers

        return KindStock(self.names, self.layout)
