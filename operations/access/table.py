"""Opens the sink's tables for commands; creates nothing, not even a catalog's own tables.

``opened_table`` and ``opened_catalog`` are for commands that only Iceberg supports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import cast

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import ICEBERG
from headgate.control_protocol.commit_record import refuse_unfinished
from headgate.control_protocol.errors import (
    ConfigurationError,
    KindLacks,
    RetryLater,
    StopSink,
    TableMissing,
)
from headgate.control_protocol.ports import PrimaryTable, Secondaries
from headgate.control_protocol.table_history import TableReader
from headgate.coordinator.recovery import record_to_resume
from headgate.runtime.missing_tables import refuse_vanished
from headgate.runtime.sink_tables import SinkTables, look_at_tables
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.table_format import IcebergFormat


@contextmanager
def opened_reader(settings: SinkSettings) -> Iterator[SinkTables]:
    """Yield the sink's tables, its own opened for reading.

    Raises what opening that one raises; ``TableMissing`` without one.
    """
    with look_at_tables(settings) as tables:
        assert tables.reader is not None, "opened here, so that the caller need not expect errors"
        yield tables


@contextmanager
def opened_evidence(settings: SinkSettings, *, asks_group: bool) -> Iterator[SinkTables]:
    """Yield the sink's tables for an examination.

    Raises as ``opened_reader``. If the sink has filled a table that is gone, as the notes next to
    the group's offsets show, raises what a start would stop with.
    """
    with ExitStack() as opening:
        try:
            tables = opening.enter_context(opened_reader(settings))
        except TableMissing as error:
            raise (vanished(settings) if asks_group else None) or error from error
        yield tables  # what else is missing there is another table


@contextmanager
def opened_catalog(settings: SinkSettings) -> Iterator[Catalog]:
    """Yield the catalog, as it is.

    Raises what ``load_catalog`` raises, ``TableMissing`` if its file does not exist, and
    ``KindLacks`` for a table of another kind.
    """
    with _iceberg(settings, settings.table.identifier) as tables:
        yield tables.catalog


@contextmanager
def opened_aside(settings: SinkSettings) -> Iterator[Catalog]:
    """Yield the catalog of an Iceberg quarantine. Raises as ``opened_catalog``."""
    with _iceberg(settings, settings.quarantine.table) as tables:
        yield tables.catalog


@contextmanager
def opened_table(settings: SinkSettings) -> Iterator[Table]:
    """Yield the sink's table. Raises as ``opened_catalog``; ``TableMissing`` without one."""
    with _iceberg(settings, settings.table.identifier) as tables:
        yield tables.load(settings.table.identifier)


@contextmanager
def _iceberg(settings: SinkSettings, name: str) -> Iterator[IcebergFormat]:
    refuse_other_kind(settings, name)
    with look_at_tables(settings) as tables:
        yield cast("IcebergFormat", tables.of(name))


def refuse_other_kind(settings: SinkSettings, name: str = "") -> None:
    """Raise ``KindLacks`` for commands that only work on Iceberg tables, like the sink's own."""
    name = name or settings.table.identifier
    kind = settings.type_of(name)
    if kind != ICEBERG:
        raise KindLacks(
            f"this works with Iceberg tables only, and {name} is a table of kind {kind}",
            "use the tools of its own format",
        )


def iceberg_of(reader: TableReader) -> IcebergReader:
    """Return the reader as Iceberg's, which it must be."""
    assert isinstance(reader, IcebergReader)
    return reader


@contextmanager
def opened_tables(settings: SinkSettings) -> Iterator[tuple[PrimaryTable, Secondaries]]:
    """Yield the sink's table and its secondary tables, for a person's claim."""
    with (
        look_at_tables(settings) as tables,
        closing(tables.open_primary()) as primary,
        closing(tables.secondaries()) as secondaries,
    ):
        yield primary, secondaries


@contextmanager
def open_primary(settings: SinkSettings) -> Iterator[PrimaryTable]:
    """Yield the sink's table alone."""
    with look_at_tables(settings) as tables, closing(tables.open_primary()) as table:
        yield table


def refusal(settings: SinkSettings, reader: TableReader) -> StopSink | None:
    """Return the error with which a coordinator would stop at this table, if it would."""
    try:
        refuse_unfinished(record_to_resume(reader.view(), settings.coordinator), settings.name)
    except StopSink as error:
        return error
    return None


def vanished(settings: SinkSettings) -> StopSink | None:
    """Return the error with which a start would stop if there is no table, if it would.

    ``None`` too if Kafka does not answer or lacks something: that is reported by itself.
    """
    try:
        refuse_vanished(settings)
    except StopSink as error:
        return error
    except (RetryLater, ConfigurationError):
        pass
    return None
