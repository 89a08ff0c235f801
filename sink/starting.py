"""Checks before a start creates anything: the source topics, and the table as it is."""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.catalog import Catalog

from headgate.control_protocol.errors import (
    ConfigurationError,
    MissingRights,
    TableMissing,
    Unreachable,
)
from headgate.data.writers.encodings import format_of, refuse_files
from headgate.data.writers.partitioning import Partitioner
from headgate.data.writers.store_trial import try_store
from headgate.sink.catalog_place import is_sql
from headgate.sink.declaration import declaration
from headgate.sink.gone import PATIENCE_S, opened_topics, patiently, refuse_gone
from headgate.sink.preconditions import (
    future_location,
    refuse_distribution,
    refuse_place,
    refuse_table,
)
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.catalog import catalog_failure, refuse_swapless
from headgate.tables.iceberg.creation import partition_spec, sort_order, with_defaults
from headgate.tables.iceberg.joint import JointPayments
from headgate.tables.iceberg.supported import refuse_unread
from headgate.tables.stores.files import is_far
from headgate.tables.stores.local import local_path
from headgate.tables.stores.object_stores import for_files, temporary

_MISSING_MAX_S = 5.0
_NAME_BYTES_MAX = 255


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
        refuse_new(settings, catalog)
        refuse_silent_store(settings)


def refuse_silent_store(settings: SinkSettings) -> None:
    """Raise in time if the store of a new table does not answer; creating it would hang there.

    Only where its client has no time-out, and where keys do not come with the table.
    """
    location = future_location(settings)
    if is_sql(settings.catalog) and is_far(location):
        try_store(for_files(settings.catalog.properties, location), location)


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


def refuse_new(settings: SinkSettings, catalog: Catalog | None = None) -> None:
    """Raises if no table could be created that takes the records.

    Without a ``catalog`` there is none yet, and the first start creates it.
    """
    location, wanted = future_location(settings), declaration(settings.table)
    refuse_place(location)
    format_of(settings.table.properties)
    if wanted is None:
        return
    refuse_distribution(settings, wanted.properties)
    _refuse_long_names(settings, location)
    if not location and is_sql(settings.catalog):
        _refuse_nowhere(settings, catalog)
    schema = wanted.schema()
    if schema.fields:
        Partitioner(partition_spec(schema, wanted.partition_by), schema)
        refuse_files(schema, with_defaults(wanted.properties), sort_order(schema, wanted.sort_by))


def _refuse_long_names(settings: SinkSettings, location: str) -> None:
    """Raises where the folders of a new table would have names that no disk takes."""
    folder = local_path(location)
    if folder is None or not is_sql(settings.catalog):
        return
    below = () if settings.table.location else settings.table.identifier.split(".")
    longest = max((*folder.parts, *below), key=len, default="")
    if len(longest.encode()) > _NAME_BYTES_MAX:
        raise ConfigurationError(
            f"table {settings.table.identifier[:40]} cannot be created: no folder may be named "
            f"{longest[:40]}... ({len(longest.encode())} bytes)",
            f"use names of at most {_NAME_BYTES_MAX} bytes in table.identifier and table.location",
        )


def _refuse_nowhere(settings: SinkSettings, catalog: Catalog | None) -> None:
    namespace = settings.table.identifier.rpartition(".")[0]
    with suppress(Exception):  # neither the namespace nor the catalog's own tables need be there
        if catalog is not None and catalog.load_namespace_properties(namespace).get("location"):
            return
    raise ConfigurationError(
        f"nothing says where table {settings.table.identifier} would be created",
        "set catalog.properties.warehouse, or table.location",
    )
