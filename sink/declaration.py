"""Translates the table that a sink file declares into the table adapter's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema

from headgate.control_protocol.errors import ConfigurationError
from headgate.data.writers.shaping import TransformPlan
from headgate.tables.iceberg.creation import (
    TableDeclaration,
    check_version,
    partition_spec,
    refuse_upkeep,
    sort_order,
)
from headgate.tables.iceberg.type_text import parse_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headgate.sink.settings import TransformSettings
    from headgate.sink.table_settings import TableSettings

_RECORD_TYPES = {
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamptz",
    "key": "binary",
    "headers": "map<string, binary>",
    "struct": "struct<topic: string, partition: int, offset: long, timestamp: timestamptz>",
}


_QUARANTINE_COLUMNS = {
    "topic": "string not null",
    "topic_id": "string",
    "partition": "int not null",
    "offset": "long not null",
    "timestamp": "timestamptz",
    "key": "binary",
    "value": "binary",
    "headers": "list<struct<key: string, value: binary>>",
    "error_class": "string",
    "table_name": "string",
    "message": "string",
    "sink": "string",
    "epoch": "long",
    "transaction": "long",
}
_QUARANTINE_COMMENTS = {
    "topic_id": "Kafka's own topic identity: a topic that is re-created gets another one",
    "timestamp": "the record's Kafka timestamp",
    "value": "as it is in the topic",
    "error_class": "what was wrong: value, key or headers, tombstone",
    "table_name": "for error_class table: the table that could not take the record",
    "transaction": "of the epoch in which the sink committed this",
}


def declaration(table: TableSettings) -> TableDeclaration | None:
    """Return what to create if the table is missing; ``None`` if the sink may not create it.

    Columns for a record's origin come last unless the file declares them itself.
    """
    return declared(table) if table.create else None


def declared(table: TableSettings) -> TableDeclaration:
    """Return the declared columns, whether or not the sink may create the table."""
    columns = {
        column.name: f"{column.type} not null" if column.required else column.type
        for column in table.columns
    }
    for what, name in table.record_columns.named().items():
        columns.setdefault(name, _RECORD_TYPES[what])
    return TableDeclaration(
        columns=columns,
        partition_by=table.partition_by,
        sort_by=table.sort_by,
        properties=table.properties,
        location=table.location or None,
        comments={column.name: column.doc for column in table.columns if column.doc},
        key=table.key,
    )


def quarantine_declaration(location: str = "") -> TableDeclaration:
    """Return what to create if the quarantine is missing.

    Its files' writer fills columns by name.
    """
    return TableDeclaration(
        columns=_QUARANTINE_COLUMNS, comments=_QUARANTINE_COMMENTS, location=location or None
    )


def transform_plan(
    transform: TransformSettings, parts: Mapping[str, str] | None = None
) -> TransformPlan | None:
    """Return the transform's plan, or ``None`` without one.

    ``parts`` maps parts of the record to the columns that take them, for a sink of many tables.
    Raises ``ConfigurationError`` for types that cannot be read.
    """
    if not transform:
        return None
    columns = {
        column.name: f"{column.type} not null" if column.required else column.type
        for column in transform.columns
    }
    for what, name in (parts or {}).items():
        columns.setdefault(name, _RECORD_TYPES[what])
    try:
        schema = Schema(*parse_columns(columns)).model_dump_json() if columns else ""
    except ConfigurationError as error:
        raise ConfigurationError(f"transform.columns: {error.message}", error.hint) from None
    return TransformPlan(transform.sql, transform.python, schema)


def column_type(name: str, kind: str) -> Any:
    """Return the Arrow field of an optional column, as records are decoded into it.

    Raises ``ConfigurationError`` for a type that cannot be read.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # imports pandas: not for every command

    return schema_to_pyarrow(Schema(*parse_columns({name: kind}))).field(0)


def check_declaration(table: TableSettings) -> None:
    """Raises ``ConfigurationError`` if types or partitioning cannot be read."""
    wanted = declared(table)
    try:
        schema = Schema(*parse_columns(wanted.columns))
    except ConfigurationError as error:
        raise ConfigurationError(f"table.columns: {error.message}", error.hint) from None
    if table.create:
        try:
            check_version(schema, wanted.properties)
        except ConfigurationError as error:
            raise ConfigurationError(f"table.properties: {error.message}", error.hint) from None
        refuse_upkeep(wanted.properties, "table.properties")
    try:
        sort_order(schema, wanted.sort_by)
    except ConfigurationError as error:
        raise ConfigurationError(f"table.sort_by: {error.message}", error.hint) from None
    try:
        partition_spec(schema, wanted.partition_by)
    except ConfigurationError as error:
        raise ConfigurationError(f"table.partition_by: {error.message}", error.hint) from None
