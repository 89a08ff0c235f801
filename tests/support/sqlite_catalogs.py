"""SQLite catalogs whose frequent statements are sent as text, in the processes of the tests.

pyiceberg has SQLAlchemy's ORM build and compile each of them anew: a quarter of the processor time
of the tests that need no broker, for nothing that this project could get wrong. Here the same
statements go over the same connections. What finds nothing, and what another database holds, is
asked by pyiceberg's own methods. ``test_sqlite_catalogs.py`` compares the two; the processes that
tests start have pyiceberg's methods alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table

PROBES = (
    "SELECT iceberg_type FROM iceberg_tables LIMIT 0",
    "SELECT 1 FROM iceberg_namespace_properties LIMIT 0",
)
NAMESPACES = (
    "SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ? LIMIT 1"
)
ONE_TABLE = "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
LOCATION = (
    f"SELECT metadata_location FROM iceberg_tables {ONE_TABLE} "
    "AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
)
SWAP = (
    "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? "
    f"{ONE_TABLE} AND metadata_location = ?"
)


class AskTheirs(Exception):
    """The answer is that of pyiceberg's own method."""


def send_as_text() -> None:
    """Replace the methods of pyiceberg's class, once in a process."""
    for method in REPLACED:
        theirs = getattr(SqlCatalog, method.__name__)
        if not hasattr(theirs, "__wrapped__"):
            setattr(SqlCatalog, method.__name__, _ours_or(theirs, method))


def _ours_or(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def method(catalog: SqlCatalog, *arguments: Any, **named: Any) -> Any:
        if catalog.engine.dialect.name == "sqlite":
            try:
                return ours(catalog, *arguments, **named)
            except AskTheirs:
                pass
        return theirs(catalog, *arguments, **named)

    return method


def _init_catalog(catalog: SqlCatalog) -> None:
    try:
        for probe in PROBES:
            _ask(catalog, probe)
    except Exception as error:
        raise AskTheirs from error
    catalog._schema_version = "v1"


def namespace_exists(catalog: SqlCatalog, identifier: Any) -> bool:
    _ask(catalog, NAMESPACES, catalog.name, _text(Catalog.identifier_to_tuple(identifier)))
    return True


def load_table(catalog: SqlCatalog, identifier: Any) -> Table:
    *namespace, name = Catalog.identifier_to_tuple(identifier)
    if catalog._schema_version != "v1":
        raise AskTheirs
    found = _ask(catalog, LOCATION, catalog.name, _text(namespace), name)
    row = SimpleNamespace(
        metadata_location=found, table_namespace=_text(namespace), table_name=name
    )
    return catalog._convert_orm_to_iceberg(row)  # type: ignore[arg-type]


def commit_table(
    catalog: SqlCatalog, table: Table, requirements: Any, updates: Any
) -> CommitTableResponse:
    *namespace, name = table.name()
    try:
        before = catalog.load_table(table.name())
    except NoSuchTableError as error:
        raise AskTheirs from error
    staged = catalog._update_and_stage_table(before, table.name(), requirements, updates)
    if staged.metadata == before.metadata:
        return CommitTableResponse(
            metadata=before.metadata, metadata_location=before.metadata_location
        )
    catalog._write_metadata(staged.metadata, staged.io, staged.metadata_location)
    places = (staged.metadata_location, before.metadata_location)
    of_table = (catalog.name, _text(namespace), name, before.metadata_location)
    with catalog.engine.begin() as connection:
        if connection.exec_driver_sql(SWAP, (*places, *of_table)).rowcount < 1:
            whole = f"{_text(namespace)}.{name}"
            raise CommitFailedException(f"Table has been updated by another process: {whole}")
    return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)


def _ask(catalog: SqlCatalog, statement: str, *values: str) -> Any:
    """The first column of the first row. Raises ``AskTheirs`` if one is asked for in vain."""
    with catalog.engine.connect() as connection:
        row = connection.exec_driver_sql(statement, values).first()
    if values and row is None:
        raise AskTheirs
    return row and row[0]


def _text(namespace: Sequence[str]) -> str:
    return ".".join(namespace)


REPLACED = (_init_catalog, namespace_exists, load_table, commit_table)
