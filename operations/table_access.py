"""Opens the sink's table for reading; creates nothing, not even a catalog's own tables.

``opened_reader`` and ``opened_tables`` open a table of any kind, the others only Iceberg.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

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
from headgate.control_protocol.followers import Followers
from headgate.control_protocol.going_back import refuse_unfinished
from headgate.control_protocol.kind_errors import KindLacks
from headgate.control_protocol.ports import Lead
from headgate.control_protocol.table_history import TableReader
from headgate.coordinator.recovery import recorded
from headgate.sink.catalog_place import refuse_catalog, sqlite_file
from headgate.sink.catalog_settings import CatalogSettings
from headgate.sink.catalogs import open_catalog
from headgate.sink.gone import refuse_gone
from headgate.sink.kind_lead import kind_followers, kind_lead
from headgate.sink.kinds import other_kind, wanted_table
from headgate.sink.routing import follower_names
from headgate.sink.settings import SinkSettings
from headgate.sink.table_settings import ICEBERG
from headgate.tables.followers import FollowerTables
from headgate.tables.iceberg.catalog import catalog_failure
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.stores.object_stores import refused_operation

ANSWER_S_MAX = 5.0


@contextmanager
def opened_catalog(settings: SinkSettings) -> Iterator[Catalog]:
    """Yield the catalog, as it is.

    Raises what ``load_catalog`` raises, ``TableMissing`` if its file does not exist, and
    ``KindLacks`` for a table of another kind.
    """
    refuse_other_kind(settings)
    with _looked_at(settings, settings.catalog) as catalog:
        yield catalog


@contextmanager
def opened_aside(settings: SinkSettings) -> Iterator[Catalog]:
    """Yield the catalog of an Iceberg quarantine, which has its own beside a table of another kind.

    Raises as ``opened_catalog``.
    """
    if not settings.apart:
        with opened_catalog(settings) as catalog:
            yield catalog
        return
    with _looked_at(settings, settings.quarantine.catalog) as catalog:
        yield catalog


@contextmanager
def _looked_at(settings: SinkSettings, wanted: CatalogSettings) -> Iterator[Catalog]:
    refuse_catalog(wanted)
    database = sqlite_file(wanted)
    if database and not database.exists():  # connecting to SQLite would create it
        raise TableMissing(
            f"catalog {wanted.name!r}: the database {database} does not exist yet",
            "the first start creates it, or correct catalog.properties.uri",
        )
    catalog = open_catalog(settings, ANSWER_S_MAX, of=wanted, looking=True)
    try:
        yield catalog
    finally:
        catalog.close()


@contextmanager
def opened_table(settings: SinkSettings) -> Iterator[Table]:
    """Yield the sink's table. Raises as ``opened_catalog``; ``TableMissing`` without one."""
    with opened_catalog(settings) as catalog:
        try:
            table = catalog.load_table(settings.table.identifier)
        except Exception as error:
            raise _failure(error, settings.table.identifier) from error
        yield table


def refuse_other_kind(settings: SinkSettings) -> None:
    """Raise ``KindLacks`` for commands that only work on Iceberg tables."""
    if settings.table.type != ICEBERG:
        raise KindLacks(
            f"this works with Iceberg tables only, and {settings.table.identifier} is a table of "
            f"kind {settings.table.type}",
            "use the tools of its own format",
        )


@contextmanager
def opened_reader(settings: SinkSettings) -> Iterator[TableReader]:
    """Yield the sink's table as it is now, of any kind. Raises as ``opened_table``."""
    if kind := other_kind(settings):
        with closing(kind.reader(wanted_table(settings), settings.name)) as reader:
            yield reader
        return
    with opened_table(settings) as table:
        yield IcebergReader(table, settings.name, settings.table.branch)


@contextmanager
def opened_evidence(settings: SinkSettings, *, asks_group: bool) -> Iterator[TableReader]:
    """Yield the sink's table for an examination.

    Raises as ``opened_reader``. If the sink has filled a table that is gone, as the notes next to
    the group's offsets show, raises what a start would stop with.
    """
    with ExitStack() as opening:
        try:
            reader = opening.enter_context(opened_reader(settings))
        except TableMissing as error:
            raise (vanished(settings) if asks_group else None) or error from error
        yield reader  # what else is missing there is another table


def iceberg_of(reader: TableReader) -> IcebergReader:
    """Return the reader as Iceberg's, which it must be."""
    assert isinstance(reader, IcebergReader)
    return reader


@contextmanager
def opened_tables(settings: SinkSettings) -> Iterator[tuple[Lead, Followers]]:
    """Yield the sink's table and its followers, for a person's claim.

    Raises as ``opened_table``.
    """
    if kind := other_kind(settings):
        with ExitStack() as opening:
            lead = opening.enter_context(closing(kind_lead(settings, kind)))
            aside = None
            if settings.apart:
                from headgate.sink.aside import IcebergAside  # it imports what writes files

                catalog = opening.enter_context(opened_aside(settings))
                aside = IcebergAside(settings, catalog).follower
            followers = kind_followers(settings, kind, aside=aside)
            opening.callback(followers.close)
            yield lead, followers
        return
    with ExitStack() as opening:
        catalog = opening.enter_context(opened_catalog(settings))

        def opened(identifier: str) -> IcebergTable:
            return IcebergTable(catalog, identifier, settings.name, settings.table.branch)

        named = follower_names(settings) if settings.tables else None
        followers = FollowerTables(opened, required=named)
        opening.callback(followers.close)
        yield opened(settings.table.identifier), followers


@contextmanager
def opened_lead(settings: SinkSettings) -> Iterator[Lead]:
    """Yield the sink's table alone."""
    if kind := other_kind(settings):
        with closing(kind_lead(settings, kind)) as table:
            yield table
        return
    with opened_tables(settings) as (lead, _):
        yield lead


def refusal(settings: SinkSettings, reader: TableReader) -> StopSink | None:
    """Return the error with which a coordinator would stop at this table, if it would."""
    try:
        refuse_unfinished(recorded(reader.view(), settings.coordinator), settings.name)
    except StopSink as error:
        return error
    return None


def vanished(settings: SinkSettings) -> StopSink | None:
    """Return the error with which a start would stop if there is no table, if it would.

    ``None`` too if Kafka does not answer or lacks something: that is reported by itself.
    """
    try:
        refuse_gone(settings)
    except StopSink as error:
        return error
    except (RetryLater, ConfigurationError):
        pass
    return None


def _failure(error: Exception, identifier: str) -> HeadgateError:
    what = f"table {identifier} cannot be read"
    if isinstance(error, PermissionError) and refused_operation(error) == "access":
        return MissingRights(f"{what}: {error}", "grant read access to its metadata")
    # A SQL catalog that was never written to does not have its own tables yet.
    if type(error).__name__ in ("OperationalError", "ProgrammingError") and (
        "no such table: iceberg_tables" in str(error) or "UndefinedTable" in str(error)
    ):
        return TableMissing(f"{what}: the catalog is empty")
    return catalog_failure(error, what)
