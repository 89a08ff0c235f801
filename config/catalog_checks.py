"""Refuses a catalog before anything connects to it, by its kind and by the folder of its file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.config.catalog_settings import Backend, CatalogSettings
from headgate.config.setting_types import may_look_at_this_machine
from headgate.config.table_settings import ICEBERG
from headgate.control_protocol.errors import ConfigurationError, MissingRights
from headgate.tables.iceberg.catalog_types import (
    SQL_SCHEMES,
    require_supported_java_type,
    require_supported_type,
)

if TYPE_CHECKING:
    from headgate.config.sink_settings import SinkSettings


def require_usable_catalog(settings: CatalogSettings) -> None:
    """Refuse a catalog that cannot serve as the sink's lock, or whose folder is missing.

    Raises ``CatalogRefused`` or ``ConfigurationError``.
    """
    if settings.backend is Backend.JAVA:
        require_supported_java_type(settings.name, settings.properties)
        return
    require_supported_type(settings.name, settings.properties)
    database = sqlite_file(settings) if may_look_at_this_machine() else None
    if database and _is_hidden(database):
        raise MissingRights(
            f"catalog {settings.name!r}: {database} is not found, for this user may not search its "
            "folders",
            "grant access to them, or correct catalog.properties.uri",
        )
    if database and not database.parent.is_dir():
        raise ConfigurationError(
            f"catalog {settings.name!r}: the folder {database.parent} does not exist",
            "create it, or correct catalog.properties.uri",
        )
    if database and database.exists() and not _may_be_sqlite_file(database):
        raise ConfigurationError(
            f"catalog {settings.name!r}: {database} is "
            + ("a folder" if database.is_dir() else "not a database of SQLite"),
            "correct catalog.properties.uri",
        )


def _is_hidden(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _may_be_sqlite_file(path: Path) -> bool:
    """Return whether SQLite takes it for a database of its own, or cannot look into it now."""
    if path.is_dir():
        return False
    # Asked of SQLite: whoever opens and closes such a file by other means drops each lock that
    # this process holds on it (sqlite.org/howtocorrupt.html, 2.2).
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=0)) as database:
            database.execute("PRAGMA schema_version")
    except sqlite3.DatabaseError as error:
        return error.sqlite_errorcode != sqlite3.SQLITE_NOTADB
    return True


def is_sql_catalog(settings: CatalogSettings) -> bool:
    """Return whether the catalog is a database's, by what the sink file says of it."""
    properties = settings.properties
    scheme = properties.get("uri", "").partition(":")[0].partition("+")[0]
    return str(properties.get("type", "sql")).lower() == "sql" and scheme in SQL_SCHEMES


def require_usable_iceberg_catalog(settings: SinkSettings) -> None:
    """Refuse the catalog of the sink's table, if it has one and that is not usable."""
    if settings.table.type == ICEBERG:
        require_usable_catalog(settings.catalog)


def sqlite_file(settings: CatalogSettings) -> Path | None:
    """Return the file of a SQLite catalog."""
    scheme, _, path = settings.properties.get("uri", "").partition(":///")
    if not is_sql_catalog(settings):
        return None
    if scheme.partition("+")[0] != "sqlite" or not path or path.startswith(":memory:"):
        return None
    return Path(path.partition("?")[0])
