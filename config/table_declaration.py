"""Translates the table that a sink file declares into the table adapter's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.batch.transform_and_distribution import TransformPlan

if TYPE_CHECKING:  # pyiceberg takes half a second: other mistakes are reported before that
    from collections.abc import Mapping, Sequence

    from pyiceberg.schema import Schema

    from headgate.config.sink_sections import TransformSettings
    from headgate.config.table_settings import ColumnSettings, RecordColumns, TableSettings
    from headgate.tables.iceberg.table_creation import TableDeclaration

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


def declaration_if_creation_allowed(table: TableSettings) -> TableDeclaration | None:
    """Return what to create if the table is missing; ``None`` if the sink may not create it.

    Columns for a record's origin come last unless the file declares them itself.
    """
    return declaration_of(table) if table.create else None


def declaration_of(table: TableSettings) -> TableDeclaration:
    """Return the declared columns, whether or not the sink may create the table."""
    from headgate.tables.iceberg.table_creation import TableDeclaration

    return TableDeclaration(
        columns=_types_by_column(table),
        partition_by=table.partition_by,
        sort_by=table.sort_by,
        properties=table.properties,
        location=table.location or None,
        comments={column.name: column.doc for column in table.columns if column.doc},
        key=table.key,
    )


def _types_by_column(table: TableSettings) -> dict[str, str]:
    columns = {
        column.name: f"{column.type} not null" if column.required else column.type
        for column in table.columns
    }
    for what, name in table.record_columns.columns_by_part().items():
        columns.setdefault(name, _RECORD_TYPES[what])
    return columns


def quarantine_declaration(location: str = "") -> TableDeclaration:
    """Return what to create if the quarantine is missing.

    Its files' writer fills columns by name.
    """
    from headgate.tables.iceberg.table_creation import TableDeclaration

    return TableDeclaration(
        columns=_QUARANTINE_COLUMNS, comments=_QUARANTINE_COMMENTS, location=location or None
    )


def transform_plan(
    transform: TransformSettings,
    columns_by_part: Mapping[str, str] | None = None,
    *,
    in_process: bool = False,
) -> TransformPlan | None:
    """Return the transform's plan, or ``None`` without one.

    ``columns_by_part`` maps parts of the record to the columns that take them, for a sink of many
    tables.
    Raises ``ConfigurationError`` for types that cannot be read.
    """
    if not transform:
        return None
    if not transform.columns and not columns_by_part:
        return TransformPlan(transform.sql, transform.python, in_process=in_process)
    from pyiceberg.schema import Schema

    from headgate.tables.iceberg.type_parser import parse_columns

    columns = {
        column.name: f"{column.type} not null" if column.required else column.type
        for column in transform.columns
    }
    for what, name in (columns_by_part or {}).items():
        columns.setdefault(name, _RECORD_TYPES[what])
    try:
        schema = Schema(*parse_columns(columns)).model_dump_json()
    except ConfigurationError as error:
        raise ConfigurationError(f"transform.columns: {error.message}", error.hint) from None
    return TransformPlan(transform.sql, transform.python, schema, in_process)


def arrow_schema_of(table: TableSettings) -> Any:
    """Return the declared columns as Arrow has them."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # imports pandas: not for every command

    return schema_to_pyarrow(declaration_of(table).schema())


def arrow_field_of(name: str, type_name: str) -> Any:
    """Return the Arrow field of an optional column, as records are decoded into it.

    Raises ``ConfigurationError`` for a type that cannot be read.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # imports pandas: not for every command
    from pyiceberg.schema import Schema

    from headgate.tables.iceberg.type_parser import parse_columns

    return schema_to_pyarrow(Schema(*parse_columns({name: type_name}))).field(0)


def parse_declared_schema(table: TableSettings) -> Schema | None:
    """Return the declared columns. Raises ``ConfigurationError`` if their types cannot be read."""
    if not table.columns:
        return None
    from pyiceberg.schema import Schema

    from headgate.tables.iceberg.type_parser import parse_columns

    try:
        return Schema(*parse_columns(_types_by_column(table)))
    except ConfigurationError as error:
        raise ConfigurationError(f"table.columns: {error.message}", error.hint) from None


def require_consistent_columns(section: str, table: TableSettings) -> None:
    """Refuse columns that have no name, that readers take for one, or that are filled twice.

    ``section``: where the file declares the table. Raises ``ConfigurationError``.
    """
    parts = "tables" if section.startswith("tables.") else section
    columns = [column.name for column in table.columns]
    filled = list(table.record_columns.columns_by_part().values())
    for where, names in ((f"{section}.columns", columns), (f"{parts}.record_columns", filled)):
        if len(set(names)) < len(names) or "" in names:
            raise ConfigurationError(
                f"{where} has a column without a name, or names one twice", "name each once"
            )
    require_columns_fit_record_columns(
        f"{section}.columns", table.columns, parts, table.record_columns
    )
    first: dict[str, str] = {}
    for name in (*columns, *filled):
        if first.setdefault(name.lower(), name) != name:
            raise ConfigurationError(
                f"the columns {first[name.lower()]!r} and {name!r} of {section} differ only in "
                "case",
                "rename one: Spark and other readers cannot tell them apart",
            )


def require_columns_fit_record_columns(
    where: str, columns: Sequence[ColumnSettings], section: str, filled: RecordColumns
) -> None:
    """Refuse a column filled from the value and from another part, and a ``from_record`` column
    that the section's ``record_columns`` do not name. Raises ``ConfigurationError``."""
    parts = {column: what for what, column in filled.columns_by_part().items()}
    for column in columns:
        part = parts.get(column.name)
        if part and not column.from_record:
            raise ConfigurationError(
                f"{section}.record_columns.{part} = {column.name!r} would overwrite the data of "
                f"the column {column.name!r} in {where}",
                "give it a name of its own; or, if the column is meant for it, remove it from "
                f"{where} or declare it with from_record = true",
            )
        if column.from_record and not part:
            raise ConfigurationError(
                f"{where}: {column.name!r} is from_record, but {section}.record_columns does not "
                "name it",
                "name it there, or remove from_record",
            )


def require_valid_declaration(table: TableSettings) -> None:
    """Raises ``ConfigurationError`` if types or partitioning cannot be read."""
    schema = parse_declared_schema(table)
    if schema is None:
        return
    from headgate.tables.iceberg.table_creation import (
        build_partition_spec,
        build_sort_order,
        require_possible_format_version,
        require_valid_upkeep_properties,
    )

    if table.create:
        try:
            require_possible_format_version(schema, table.properties)
        except ConfigurationError as error:
            raise ConfigurationError(f"table.properties: {error.message}", error.hint) from None
        require_valid_upkeep_properties(table.properties, "table.properties")
    try:
        build_sort_order(schema, table.sort_by)
    except ConfigurationError as error:
        raise ConfigurationError(f"table.sort_by: {error.message}", error.hint) from None
    try:
        build_partition_spec(schema, table.partition_by)
    except ConfigurationError as error:
        raise ConfigurationError(f"table.partition_by: {error.message}", error.hint) from None
