"""What a table's owner asked to be cleared away, done now and then after a commit (rule T6).

The order makes every crash harmless: first it is read which files will be unreachable, then one
catalog call removes the snapshots, then the files go. What is not deleted is an orphan.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyiceberg.catalog import Catalog, delete_files
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_bool

from headgate.control_protocol.redacted_log import redacted_logger
from headgate.coordinator.tables.condemned import Condemned
from headgate.coordinator.tables.removal import Removal
from headgate.coordinator.tables.retention import expired
from headgate.coordinator.tables.unreachable import unreachable_files

DUE_MIN = 25
"""Fewer are not worth a call: the price of one is shared by so many commits."""

REMOVED_MAX = 100
"""At once: a table that was never cleaned gets there in many small steps."""

_READING_MAX_S = 20.0
_PAUSE_S = 600.0

_log = redacted_logger(__name__)


class Upkeep:
    """For one table as one sink sees it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._condemned = Condemned(catalog)
        self._doubted: Removal | None = None
        self._rest_until_s = 0.0

    def after_commit(self, table: Table, before: TableMetadata) -> None:
        """``table`` as the commit left it. Never raises: the commit has landed, whatever happens.

        Takes the time of few catalog calls and at most about half a minute of storage's.
        """
        try:
            self._resolve_doubt(table)
            _drop_old_metadata(table, before)
            if time.monotonic() >= self._rest_until_s:
                self._expire(table)
            self._condemned.delete(table)
        except Exception as error:  # noqa: BLE001 - storage and catalogs fail in many ways
            self._rest_until_s = time.monotonic() + _PAUSE_S
            _log.warning("%s: not cleaned up for now: %r", _name(table), error)

    def finish(self, load: Callable[[], Table]) -> None:
        """Look once more after a removal that nobody confirmed. Never raises.

        Whoever loses the lead commits no more; nobody else knows of the removal.
        """
        if self._doubted is None:
            return
        try:
            self._resolve_doubt(load())
        except Exception as error:  # noqa: BLE001 - nobody is left who could try again
            _log.warning("a removal of snapshots was not looked after: %r", error)

    def _resolve_doubt(self, table: Table) -> None:
        """A removal that nobody confirmed has landed by now or never will: our tag has moved on."""
        doubted, self._doubted = self._doubted, None
        if doubted is not None and doubted.landed(table.metadata):
            doubted.set_lost_refs_again(table)

    def _expire(self, table: Table) -> None:
        due = expired(table.metadata, int(time.time() * 1000))
        if len(due) < DUE_MIN:
            return
        removed = due[:REMOVED_MAX]
        files = unreachable_files(table, removed, _READING_MAX_S)
        before = table.metadata
        self._doubted = removal = Removal(self._catalog, table, removed)
        if not removal.call(table):
            return
        self._doubted = None
        _drop_old_metadata(table, before)
        self._condemned.add(files, table.metadata)
        _log.info("%s: %d snapshots expired", _name(table), len(removed))


def _drop_old_metadata(table: Table, before: TableMetadata) -> None:
    """Delete metadata files that fell out of the log, where the table's properties ask for it."""
    if property_as_bool(
        table.properties, TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, default=False
    ):
        old = {entry.metadata_file for entry in before.metadata_log}
        kept = {entry.metadata_file for entry in table.metadata.metadata_log}
        delete_files(table.io, old - kept, "metadata")


def _name(table: Table) -> str:
    return ".".join(table.name())
