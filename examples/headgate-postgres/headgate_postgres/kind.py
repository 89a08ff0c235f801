"""Implements ``TableFormat`` for PostgreSQL, which the entry point names."""

from __future__ import annotations

import json
from collections.abc import Collection

import psycopg
from psycopg import errors, sql

from headgate.control_protocol.errors import ConfigurationError, TableFormatLacks, TableMissing
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import SinkTable
from headgate.control_protocol.table_format import (
    Capability,
    FileSchema,
    Guarantee,
    TableFormat,
    TableSpec,
    Use,
)
from headgate_postgres.columns import ExactValues, postgres_type, replace_unsupported
from headgate_postgres.ledger import make_ledger, one
from headgate_postgres.reader import PostgresReader
from headgate_postgres.server import Connection, Server, names_of, refuse_name, said
from headgate_postgres.staged_files import StagedFiles, address
from headgate_postgres.table import Place, PostgresTable
from headgate_postgres.time_limit import PATIENCE_MS, limit_waits

_URI = "uri"
_OURS = "headgate."
"""The prefix of properties that a table keeps; PostgreSQL has none of its own to confuse."""


class PostgresFormat(TableFormat):
    """Tables of a PostgreSQL database; ``catalog.properties.uri`` names it."""

    guarantee = Guarantee.EXACTLY_ONCE
    capabilities = frozenset(
        {
            Capability.SECONDARY_TABLES,
            Capability.KEYED_TABLES,
            Capability.KEYS,
            Capability.MANY_TABLES,
        }
    )

    def require_supported(self, spec: TableSpec) -> None:
        names_of(spec.name)
        address(spec.location)
        if not spec.storage.get(_URI):
            raise ConfigurationError(
                "catalog.properties.uri is missing: it says where PostgreSQL is",
                "write postgresql://user@host:5432/database",
            )
        if foreign := sorted(k for k in spec.storage if k != _URI and not k.startswith("s3.")):
            raise ConfigurationError(
                f"catalog.properties.{foreign[0]} is set, but a PostgreSQL table has no catalog",
                "leave uri there, and keys of an S3 store (s3....) for files below table.location",
            )
        if spec.by_spark:
            raise TableFormatLacks(
                "spark.writer: a PostgreSQL table takes no files of Spark jobs",
                'set writer = "in-process" under [spark]',
            )
        foreign = [name for name in spec.properties if not name.startswith(_OURS)]
        for setting, value in (("partition_by", spec.partition_by), ("properties", foreign)):
            if value:
                raise TableFormatLacks(f"table.{setting} is set, and is nothing for PostgreSQL")
        Server(spec.storage[_URI], spec.name)
        for column in spec.columns.fields:
            refuse_name(column.name)
            postgres_type(column)

    def create(self, spec: TableSpec) -> bool:
        server = _place(spec).server
        with server.connected() as connection:
            try:
                server.facts(connection, spec.key)
            except TableMissing:
                if not spec.create:
                    raise
                _create(connection, server, spec)
                connection.commit()
                server.facts(connection, spec.key)
                return True
        return False

    def open(self, spec: TableSpec, sink: SinkName, use: Use = Use.OPERATOR) -> SinkTable:
        del use  # nothing is read ahead
        return PostgresTable(_place(spec), sink)

    def file_schema(self, spec: TableSpec) -> FileSchema:
        place = _place(spec)
        with place.server.connected() as connection:
            facts = place.server.facts(connection, spec.key)
            properties = place.server.properties(connection, facts)
        return FileSchema(
            uuid=facts.uuid,
            schema_id=facts.schema_id,
            columns=facts.columns,
            location=place.location,
            storage={name: value for name, value in spec.storage.items() if name != _URI},
            values=ExactValues(),
            replace_unsupported=replace_unsupported,
            properties=properties,
        )

    def reader(self, spec: TableSpec, sink: SinkName) -> PostgresReader:
        return PostgresReader(_place(spec), sink)

    def list_table_names(self, beside: TableSpec) -> Collection[str]:
        server = _place(beside).server
        with server.connected() as connection:
            return server.beside(connection)


def _place(spec: TableSpec) -> Place:
    location = address(spec.location)
    server = Server(spec.storage[_URI], spec.name)
    return Place(server, location, StagedFiles(location, spec.storage), spec.key)


def _create(connection: Connection, server: Server, spec: TableSpec) -> None:
    """Create the table. Another process may be first: what exists then is checked."""
    make_ledger(connection)  # with the type of a quarantine's headers
    limit_waits(connection, PATIENCE_MS)
    columns = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            sql.SQL(postgres_type(column)),
            sql.SQL(" NOT NULL" if column.required else ""),
        )
        for column in spec.columns.fields
    ]
    if spec.key:
        names = sql.SQL(", ").join(map(sql.Identifier, spec.key.key))
        columns.append(sql.SQL("PRIMARY KEY ({})").format(names))
    schema = sql.Identifier(names_of(spec.name)[0])
    there = "SELECT to_regnamespace(%s) IS NOT NULL"
    try:
        if not one(connection, there, schema.as_string(connection)):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
                server.table, sql.SQL(", ").join(columns)
            )
        )
        if spec.properties:
            told = sql.Literal(json.dumps(dict(spec.properties)))
            connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(server.table, told))
        for name, comment in spec.comments.items():
            connection.execute(
                sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(
                    server.table, sql.Identifier(name), sql.Literal(comment)
                )
            )
    except (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateSchema):
        connection.rollback()
    except errors.InsufficientPrivilege:
        raise
    except (psycopg.ProgrammingError, errors.TooManyColumns) as error:
        raise ConfigurationError(
            f"PostgreSQL makes no table {spec.name} of these columns: {said(error)}",
            "declare others, or make the table by hand",
        ) from error
