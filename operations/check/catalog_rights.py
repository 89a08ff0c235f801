"""Asks whether the catalog lets this principal commit and create, without changing anything.

A REST server checks rights before requirements. So it gets a commit without updates that requires
another UUID than the table's: it answers conflict if the principal may commit, and forbidden if
not. A database checks rights before it looks for rows, so an update of no rows needs them as well.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID

from headgate.control_protocol.errors import CatalogRefused, HeadgateError, MissingRights
from headgate.tables.iceberg.catalog import catalog_failure, refuse_swapless
from headgate.tables.iceberg.java_catalog import JavaCatalog

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_DENIED = ("permission denied", "readonly database", "InsufficientPrivilege")
_EMPTY = ("no such table", "UndefinedTable")
_MORE_THAN_NEEDED = ("DELETE", "TRUNCATE")


class Unasked(Exception):
    """This kind of catalog cannot be asked in that way; says why."""


def may_commit(table: Table) -> str:
    """Ask for a commit.

    Raises ``MissingRights``, ``Unreachable``, ``CatalogRefused``, ``Unasked``.
    """
    name = ".".join(table.name())
    if engine := _engine(table.catalog):
        return _database_lets(engine, name, "UPDATE iceberg_tables SET table_name = table_name")
    if _metastore(table.catalog):
        try:
            refuse_swapless(table.catalog, name)
        except Exception as error:
            raise _forbidden(error, f"table {name} may not be committed") from error
        return f"{name} may be altered, and its metastore compares and sets (it was asked)"
    if not (_rest(table.catalog) or isinstance(table.catalog, JavaCatalog)):
        raise Unasked(f"whether {name} may be committed was not tried: a check changes nothing")
    try:
        table.catalog.commit_table(table, (AssertTableUUID(uuid=uuid.uuid4()),), ())
    except CommitFailedException:
        return f"{name} may be committed"
    except Exception as error:
        raise _forbidden(error, f"table {name} may not be committed") from error
    raise CatalogRefused(
        f"the catalog took a commit of {name} that required another table (it changed nothing)",
        "a catalog that does not check requirements cannot be the sink's lock",
    )


def may_create(catalog: Catalog, identifier: str) -> str:
    """Ask for a table.

    Raises as ``may_commit``. A staged table does not exist until it is committed.
    """
    if engine := _engine(catalog):
        fields = "INSERT INTO iceberg_tables SELECT * FROM iceberg_tables"
        return _database_lets(engine, identifier, fields)
    if isinstance(catalog, JavaCatalog) and catalog.kind == "hive":
        try:
            catalog.refuse_swapless_for(identifier)
        except Exception as error:
            raise _forbidden(error, f"table {identifier} may not be created") from error
        return (
            f"a view could be made and removed, and the metastore of {identifier} compares and sets"
        )
    if not _rest(catalog):
        raise Unasked(f"whether {identifier} may be created was not tried")
    try:
        catalog.create_table_transaction(identifier, Schema())
    except NoSuchNamespaceError as error:
        why = f"the namespace of {identifier} does not exist yet: the first start creates it"
        raise Unasked(why) from error
    except Exception as error:
        raise _forbidden(error, f"table {identifier} may not be created") from error
    return f"{identifier} may be created"


def _rest(catalog: Catalog) -> bool:
    from pyiceberg.catalog.rest import RestCatalog

    return isinstance(catalog, RestCatalog)


def _metastore(catalog: Catalog) -> bool:
    return isinstance(catalog, JavaCatalog) and catalog.kind == "hive"


def _engine(catalog: Catalog) -> Engine | None:
    return getattr(catalog, "engine", None)


def _forbidden(error: Exception, what: str) -> HeadgateError:
    found = catalog_failure(error, what)
    if isinstance(found, MissingRights):
        found.hint = "docs/guides/security.md names the rights of each role; check the credential"
    return found


def _database_lets(engine: Engine, name: str, statement: str) -> str:
    """Ask whether the database would run the statement, on no row, and roll it back."""
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    verb = statement.partition(" ")[0]
    try:
        with engine.connect() as connection:
            connection.execute(text(f"{statement} WHERE 1 = 0"))
            connection.rollback()
            wide = _wide(connection) if engine.dialect.name == "postgresql" else []
            connection.rollback()
    except DBAPIError as error:
        said = f"{error.orig!r} {error}"
        if any(word in said for word in _DENIED):
            raise MissingRights(
                f"{name}: the catalog's database does not let this user {verb} iceberg_tables",
                f"grant {verb} on it; docs/guides/security.md has the commands",
            ) from error
        if any(word in said for word in _EMPTY):
            raise Unasked("the catalog is empty: the first start creates its tables") from error
        raise catalog_failure(error, f"{name}: the catalog's database does not answer") from error
    if wide:
        raise Unasked(
            f"{name} may be written, and this user may {' and '.join(wide)} iceberg_tables too, "
            "which no role needs (docs/guides/security.md)"
        )
    return f"{name} may be {'committed' if verb == 'UPDATE' else 'created'}"


def _wide(connection: Connection) -> list[str]:
    from sqlalchemy import text

    asked = text("SELECT has_table_privilege('iceberg_tables', :right)")
    return [
        right for right in _MORE_THAN_NEEDED if connection.execute(asked, {"right": right}).scalar()
    ]
