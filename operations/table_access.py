"""Opening the sink's table to look at it; nothing is created, not even a catalog's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    RetryLater,
    StopSink,
    TableMissing,
)
from headgate.control_protocol.going_back import refuse_unfinished
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.record import CommitRecord, Debt
from headgate.coordinator.debts import unpaid
from headgate.coordinator.recovery import recorded
from headgate.sink.catalog_place import refuse_catalog, sqlite_file
from headgate.sink.catalogs import open_catalog
from headgate.sink.gone import refuse_gone
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import catalog_failure
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.stores.object_stores import refused_operation

ANSWER_S_MAX = 5.0


@contextmanager
def opened_catalog(settings: SinkSettings) -> Iterator[Catalog]:
    """The catalog, as it is. Raises what ``load_catalog`` raises, ``TableMissing`` for no file."""
    refuse_catalog(settings.catalog)
    database = sqlite_file(settings.catalog)
    if database and not database.exists():  # connecting to SQLite would create it
        raise TableMissing(
            f"catalog {settings.catalog.name!r}: the database {database} does not exist yet",
            "the first start makes it, or correct catalog.properties.uri",
        )
    catalog = open_catalog(settings, ANSWER_S_MAX, looking=True)
    try:
        yield catalog
    finally:
        catalog.close()


@contextmanager
def opened_table(settings: SinkSettings) -> Iterator[Table]:
    """The sink's table as it is now. Raises as ``opened_catalog``; ``TableMissing`` without one."""
    with opened_catalog(settings) as catalog:
        try:
            table = catalog.load_table(settings.table.identifier)
        except Exception as error:
            raise _failure(error, settings.table.identifier) from error
        yield table


def refusal(settings: SinkSettings, table: Table) -> StopSink | None:
    """Return the error with which a coordinator would stop at this table, if it would."""
    sink = IcebergTable(
        table.catalog, settings.table.identifier, settings.name, settings.table.branch
    )
    try:
        refuse_unfinished(recorded(sink.seen(table), settings.coordinator), settings.name)
    except StopSink as error:
        return error
    return None


def vanished(settings: SinkSettings) -> StopSink | None:
    """Return the error with which a start would stop where there is no table, if it would.

    ``None`` too where Kafka does not answer, or lacks something: that is told by itself.
    """
    try:
        refuse_gone(settings)
    except StopSink as error:
        return error
    except (RetryLater, ConfigurationError):
        pass
    return None


def stored_record(settings: SinkSettings, table: Table) -> CommitRecord | None:
    """Return the sink's state by its table. Raises ``RecordUnreadable``."""
    sink = IcebergTable(
        table.catalog, settings.table.identifier, settings.name, settings.table.branch
    )
    return sink.seen(table).record


def unpaid_debts(
    settings: SinkSettings, table: Table, record: CommitRecord | None
) -> tuple[Debt, ...]:
    """Return what the table owes its followers still, as far as they can be read (rule D7)."""
    if record is None or not record.debts:
        return ()
    followers: dict[str, TableView] = {}
    for name in {debt.table for debt in record.debts}:
        follower = IcebergTable(table.catalog, name, settings.name, settings.table.branch)
        try:
            followers[name] = follower.read()
        except HeadgateError:
            continue
    return unpaid(record.debts, followers, str(table.metadata.table_uuid))


def _failure(error: Exception, identifier: str) -> HeadgateError:
    what = f"table {identifier} cannot be read"
    if isinstance(error, PermissionError) and refused_operation(error) == "access":
        return MissingRights(f"{what}: {error}", "grant read access to its metadata")
    # A SQL catalog that nobody has written to yet has no tables of its own either.
    if type(error).__name__ in ("OperationalError", "ProgrammingError") and (
        "no such table: iceberg_tables" in str(error) or "UndefinedTable" in str(error)
    ):
        return TableMissing(f"{what}: the catalog is empty")
    return catalog_failure(error, what)
