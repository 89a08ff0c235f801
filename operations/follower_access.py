"""Opens tables that follow the sink's own, of any kind, for reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.record import CommitRecord, Debt
from headgate.control_protocol.table_history import FileRows, TableReader
from headgate.coordinator.debts import unpaid
from headgate.operations.table_access import opened_aside
from headgate.sink.kind_lead import drafts_of, kind_follower
from headgate.sink.kinds import kind_of, wanted_follower
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import catalog_failure
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable


@dataclass(frozen=True, slots=True)
class FollowerReader:
    """A follower as it is now.

    ``drafted`` reads what it is owed by a debt's manifest, with these columns. It raises
    ``FileNotFoundError``.
    """

    reader: TableReader
    drafted: Callable[[str, Sequence[str]], Iterator[FileRows]]
    schema_id: int


@contextmanager
def opened_follower(
    settings: SinkSettings, lead: TableReader, name: str
) -> Iterator[FollowerReader]:
    """Open a follower. ``lead`` reads the sink's own table. Raises what loading a table raises."""
    if kind := kind_of(settings, name):
        drafts = drafts_of(settings, name)
        with closing(kind.reader(wanted_follower(settings, name), settings.name)) as reader:
            yield FollowerReader(reader, drafts.rows, reader.view().schema_id)
        return
    with catalog_of(settings, lead, name) as catalog:
        try:
            table = catalog.load_table(name)
        except Exception as error:
            raise catalog_failure(error, f"table {name} cannot be read") from error
        yield iceberg_follower(settings, table)


@contextmanager
def catalog_of(settings: SinkSettings, lead: TableReader, name: str) -> Iterator[Catalog]:
    """Return the catalog of an Iceberg table that follows. Raises as ``opened_aside``."""
    if isinstance(lead, IcebergReader):
        yield lead.table.catalog
        return
    assert settings.apart, f"{name} is of the lead's kind"
    with opened_aside(settings) as catalog:
        yield catalog


def iceberg_follower(settings: SinkSettings, table: Table) -> FollowerReader:
    """Return a reader for a loaded table."""
    reader = IcebergReader(table, settings.name, settings.table.branch)
    return FollowerReader(reader, reader.drafted, table.schema().schema_id)


def unpaid_debts(
    settings: SinkSettings, lead: TableReader, record: CommitRecord | None
) -> tuple[Debt, ...]:
    """Return what the table still owes its followers, as far as they can be read (rule D7)."""
    if record is None or not record.debts:
        return ()
    followers = dict[str, TableView]()
    for name in {debt.table for debt in record.debts}:
        try:
            followers[name] = _view(settings, lead, name)
        except HeadgateError:
            continue
    return unpaid(record.debts, followers, lead.view().uuid)


def _view(settings: SinkSettings, lead: TableReader, name: str) -> TableView:
    if kind := kind_of(settings, name):
        with closing(kind_follower(settings, kind, name)) as follower:
            return follower.read()
    with catalog_of(settings, lead, name) as catalog:
        return IcebergTable(catalog, name, settings.name, settings.table.branch).read()
