"""The tables that a ledger has paid, for commands that add rows to one of them (rule I6)."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from headgate.control_protocol.ports import Lineage, TableView
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.replay_errors import ReplayRefused
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import catalog_failure
from headgate.tables.iceberg.table import IcebergTable


class PaidTables:
    """``ledger`` is as it was read when this was made."""

    def __init__(self, settings: SinkSettings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog
        self.ledger = self.table(settings.tables.ledger).read()

    def table(self, name: str) -> IcebergTable:
        return IcebergTable(self._catalog, name, self._settings.name, self._settings.table.branch)

    def parked(self) -> Mapping[str, str]:
        """Why each table is parked that is."""
        record = self.ledger.record
        return {each.table: each.why for each in record.parked} if record else {}

    def in_order(self, name: str) -> tuple[Table, TableView]:
        """The table as the ledger left it. Raises ``ReplayRefused``, and as loading tables does."""
        if why := self.parked().get(name):
            raise ReplayRefused(
                f"{name} is parked: {why}",
                "headgate tables SINK resume TABLE, with --replay or --reread, opens it",
            )
        try:
            table = self._catalog.load_table(name)
        except Exception as error:
            raise catalog_failure(error, f"table {name} cannot be read") from error
        view = self.table(name).seen(table)
        paid = view.record is not None and view.record.lead == self.ledger.uuid
        if view.lineage is not Lineage.CONTAINS_TAG or not paid:
            raise ReplayRefused(
                f"{name} is not as sink {self._settings.name} left it, or has not been paid yet",
                "start the sink: it pays the table, or parks it and says why (headgate tables "
                "SINK); then ask again",
            )
        return table, view


def record_of(view: TableView) -> CommitRecord:
    """Of a table that is in order."""
    assert view.record is not None, "refused before"
    return view.record
