"""Checks before a start creates anything: the source topics, and the table as it is."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from headgate.control_protocol.errors import MissingRights, TableMissing, Unreachable
from headgate.data.writers.encodings import format_of, refuse_files
from headgate.sink.gone import PATIENCE_S, opened_topics, patiently, refuse_gone
from headgate.sink.preconditions import future_location, refuse_place, refuse_table
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import catalog_failure, refuse_swapless
from headgate.tables.iceberg.joint import JointPayments
from headgate.tables.iceberg.supported import refuse_unread
from headgate.tables.stores.object_stores import temporary

_MISSING_MAX_S = 5.0


def require_sources(settings: SinkSettings) -> None:
    """Raises ``ConfigurationError`` for a topic that is missing, and not just new to a broker.

    Waits for a leader election under way; raises ``Unreachable`` if that takes too long.
    """
    with opened_topics(settings, _MISSING_MAX_S) as topics:
        patiently(topics.describe, PATIENCE_S)


def refuse_apart(catalog: Catalog, settings: SinkSettings) -> None:
    """Raise ``NotAtomic`` if tables must be paid together, and the catalog cannot do that."""
    if settings.tables.atomic:
        JointPayments(catalog)


def refuse_start(catalog: Catalog, settings: SinkSettings) -> None:
    """Raises if the table, or the place where it would be created, cannot take the records."""
    refuse_apart(catalog, settings)
    patience_s = PATIENCE_S if temporary(settings.catalog.properties) else 0.0
    try:
        patiently(lambda: refuse_there(catalog, settings), patience_s)
    except TableMissing:
        refuse_gone(settings, PATIENCE_S)
        refuse_new(settings)


def refuse_there(catalog: Catalog, settings: SinkSettings) -> None:
    """Raises if the table cannot take the records, and ``TableMissing`` if there is none.

    Temporary credentials may have expired and be renewable: then ``Unreachable``.
    """
    identifier = settings.table.identifier
    try:
        table = catalog.load_table(identifier)
    except Exception as error:
        refuse_unread(identifier, error)
        failure = catalog_failure(error, f"table {identifier} cannot be read")
        if isinstance(failure, MissingRights) and temporary(settings.catalog.properties):
            failure = Unreachable(failure.message, failure.hint)
        raise failure from error
    refuse_swapless(catalog, identifier)
    refuse_table(table, settings)
    refuse_files(table.schema(), table.properties, table.sort_order())
    refuse_place(table.location())


def refuse_new(settings: SinkSettings) -> None:
    """Raises if no table could be created that takes the records."""
    refuse_place(future_location(settings))
    format_of(settings.table.properties)
