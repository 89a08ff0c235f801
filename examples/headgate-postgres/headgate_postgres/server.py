"""Accesses one PostgreSQL server: connections, tables, and failures by headgate's names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import (
    ConfigurationError,
    MissingRights,
    TableMissing,
    TableUnfit,
    Unreachable,
)
from headgate.control_protocol.table_format import RowKey, schema_id_of_text
from headgate_postgres.columns import HEADERS_TYPE, Found, columns_of
from headgate_postgres.time_limit import TRANSACTION_S, at_most

Connection = psycopg.Connection[tuple[Any, ...]]

_DEFAULTS: Mapping[str, Any] = {
    "target_session_attrs": "read-write",  # of several hosts, the one that is not a replica
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "client_encoding": "UTF8",
    "application_name": "headgate",
}
_TABLE = """
SELECT c.oid::bigint, c.relkind::text, (SELECT system_identifier::text FROM pg_control_system())
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT attname, CASE WHEN atttypid = to_regtype(%(headers)s) THEN %(headers)s
    ELSE format_type(atttypid, atttypmod) END, attnotnull
FROM pg_attribute
WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped
    AND attgenerated = '' AND attidentity = ''
ORDER BY attnum
"""
_RULES = """
SELECT 'constraint ' || conname FROM pg_constraint
WHERE conrelid = %(oid)s AND contype IN ('c', 'f', 'x')
UNION ALL
SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal
UNION ALL
SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = %(oid)s
"""
_UNIQUE = """
SELECT indexrelid::regclass::text, ARRAY(
    SELECT attname::text FROM pg_attribute WHERE attrelid = indrelid AND attnum = ANY (indkey)),
    indimmediate AND indpred IS NULL AND indexprs IS NULL, indisvalid
FROM pg_index
WHERE indrelid = %s AND indisunique
"""
"""The last columns: whether ``ON CONFLICT`` can take the index, and may by now: REINDEX makes one
that is not valid yet. Any other may refuse a row."""
_BESIDE = """
SELECT relname::text FROM pg_class
WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_COMMENT = "SELECT obj_description(%s::oid, 'pg_class')"
_NAME_BYTES_MAX = 63


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table as it is now. ``uuid`` changes when it is dropped and re-created."""

    oid: int
    uuid: str
    columns: Struct
    schema_id: int


class Server:
    """Where one table is. Connections are opened when they are needed, and not kept."""

    def __init__(self, uri: str, identifier: str) -> None:
        self.identifier = identifier
        self.table = sql.Identifier(*names_of(identifier))
        self.locking = sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(self.table)
        try:
            self._parameters = {**_DEFAULTS, **conninfo_to_dict(uri)}
        except psycopg.ProgrammingError:
            raise ConfigurationError(
                "catalog.properties.uri is not the address of a PostgreSQL server",
                "write postgresql://user@host:5432/database",
            ) from None

    @contextmanager
    def connected(self, within_s: float = TRANSACTION_S) -> Iterator[Connection]:
        """Yield a transaction, which only ``Connection.commit`` commits, for so long.

        Raises ``Unreachable``, ``MissingRights``; PostgreSQL's other errors pass through.
        """
        connection: Connection | None = None
        try:
            connection = psycopg.connect(**self._parameters)
            with at_most(within_s, connection):
                yield connection
        except errors.InsufficientPrivilege as error:
            raise MissingRights(
                f"PostgreSQL table {self.identifier}: {said(error)}",
                "README.md of headgate-postgres says what the sink's role needs",
            ) from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise Unreachable(
                f"PostgreSQL did not answer for table {self.identifier}: {said(error)}"
            ) from error
        finally:
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.close()  # what was not committed is rolled back

    def facts(self, connection: Connection, key: RowKey | None) -> TableFacts:
        """Raises ``TableMissing``, and ``TableUnfit`` for a table that refuses or alters rows."""
        row = connection.execute(_TABLE, (self.table.as_string(connection),)).fetchone()
        if row is None:
            raise TableMissing(
                f"there is no PostgreSQL table {self.identifier}",
                "correct table.identifier, or set table.create with its columns",
            )
        oid, kind, cluster = row
        if kind != "r":
            raise TableUnfit(
                f"{self.identifier} is not an ordinary PostgreSQL table",
                "name one: values may have no place in a view, or in a table's partitions",
            )
        self._refuse_rules(connection, oid, key)
        asked = {"oid": oid, "headers": HEADERS_TYPE}
        found = [Found(*column) for column in connection.execute(_COLUMNS, asked)]
        columns = columns_of(self.identifier, found)
        return TableFacts(oid, f"{cluster}/{oid}", columns, schema_id_of_text(repr((columns, key))))

    def beside(self, connection: Connection) -> list[str]:
        """Return the names of everything in the schema that rows are read from."""
        schema = sql.Identifier(names_of(self.identifier)[0]).as_string(connection)
        return [name for (name,) in connection.execute(_BESIDE, (schema,))]

    def properties(self, connection: Connection, facts: TableFacts) -> Mapping[str, str]:
        """Return what a new table was given to keep, from its comment.

        A person may have replaced the comment.
        """
        row = connection.execute(_COMMENT, (facts.oid,)).fetchone()
        try:
            found = json.loads(row[0] if row and row[0] else "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _refuse_rules(self, connection: Connection, oid: int, key: RowKey | None) -> None:
        rules = [name for (name,) in connection.execute(_RULES, {"oid": oid})]
        wanted, keyed = set(key.key) if key else None, False
        for name, columns, is_plain, is_valid in connection.execute(_UNIQUE, (oid,)).fetchall():
            if is_plain and set(columns) == wanted:
                keyed = keyed or is_valid
            else:
                rules.append(f"unique index {name}")
        if rules:
            raise TableUnfit(
                f"PostgreSQL table {self.identifier} has the {rules[0]}, by which it could refuse "
                "or alter a record when it is committed",
                "drop it, or fill a table without",
            )
        if wanted and not keyed:
            raise TableUnfit(
                f"PostgreSQL table {self.identifier} has no primary key of {', '.join(wanted)}",
                "add one over exactly the columns of table.key",
            )


def names_of(identifier: str) -> tuple[str, str]:
    """Return schema and table. Raises ``ConfigurationError``."""
    schema, dot, table = identifier.partition(".")
    if not (schema and dot and table) or "." in table:
        raise ConfigurationError(
            f"table.identifier {identifier!r} names no PostgreSQL table", "write schema.table"
        )
    for name in (schema, table):
        refuse_name(name)
    return schema, table


def refuse_name(name: str) -> None:
    """Raise ``ConfigurationError`` for a name that PostgreSQL would truncate: two could collide."""
    if len(name.encode()) > _NAME_BYTES_MAX or "\0" in name:
        raise ConfigurationError(
            f"the name {name!r} is longer than {_NAME_BYTES_MAX} bytes, or has a NUL",
            "PostgreSQL has no such names; choose another one",
        )


def said(error: psycopg.Error) -> str:
    """Return the first line, which says what was wrong."""
    return str(error).partition("\n")[0]
