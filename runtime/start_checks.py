"""Checks what ``headgate check`` and every start require before anything is created.

Each refusal is named. Nothing here writes. Brokers are asked once: whether the topics exist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io import SCHEMA_TO_FILE_IO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, NestedField

from headgate.config.catalog_checks import is_sql_catalog, sqlite_file
from headgate.config.catalog_settings import CatalogSettings
from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import (
    declaration_if_creation_allowed,
    declaration_of,
    quarantine_declaration,
)
from headgate.config.table_settings import TableSettings
from headgate.control_protocol.errors import (
    ConfigurationError,
    MissingRights,
    RowExpiryUnfit,
    TableChanged,
    TableMissing,
    TableUnfit,
    Unreachable,
)
from headgate.control_protocol.table_format import FileSchema
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import RECORD_PARTS, STRUCT
from headgate.data_plane.files.format_choice import (
    file_format_name,
    require_parquet_for_keyed_table,
    require_usable_write_properties,
)
from headgate.data_plane.files.metrics import leaves_of, metrics_modes
from headgate.data_plane.files.partitioning import Partitioner
from headgate.runtime.dropped_table_detection import (
    PATIENCE_S,
    call_with_retries,
    open_source_topics,
    require_table_never_filled_before,
)
from headgate.tables.iceberg.catalog import require_atomic_swap, translate_catalog_error
from headgate.tables.iceberg.schema_evolution import columns_of, spark_sql_type_or_empty
from headgate.tables.iceberg.supported_tables import raise_if_metadata_not_understood
from headgate.tables.iceberg.table_creation import (
    build_partition_spec,
    build_sort_order,
    require_key_field_ids,
    require_valid_upkeep_properties,
    with_default_properties,
)
from headgate.tables.iceberg.type_parser import parse_columns
from headgate.tables.storage.store_write_check import require_writable_store

if TYPE_CHECKING:
    from headgate.runtime.sink_tables import SinkTables
from headgate.tables.neutral_schema import iceberg_schema_of
from headgate.tables.storage.file_io import needs_timeouts
from headgate.tables.storage.local_file_io import local_path_of_encoded_uri
from headgate.tables.storage.object_stores import (
    file_io_properties,
    has_temporary_credentials,
    require_no_remote_signing,
)

_NO_STORAGE = ("/proc", "/sys", "/dev")
_IN_MEMORY = "/dev/shm"  # noqa: S108 - somebody may really keep files there
_PLACES = ("topic", "partition", "offset")
_PARTS = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}


def require_known_scheme_or_writable_folder(location: str) -> None:
    """Raises if no file could be written: the scheme is unknown, or the folder is not one."""
    scheme, separator, _ = location.partition("://")  # a REST server's warehouse may be any name
    if separator and scheme not in SCHEMA_TO_FILE_IO:
        raise ConfigurationError(
            f"headgate cannot write to a {scheme} address",
            f"warehouse and table.location may begin with {', '.join(SCHEMA_TO_FILE_IO)}",
        )
    folder = local_path_of_encoded_uri(location)
    if folder is None:
        return
    real = str(folder.resolve())
    if _is_within(real, *_NO_STORAGE) and not _is_within(real, _IN_MEMORY):
        raise ConfigurationError(
            f"{folder} is not storage: the system shows its own state there",
            "choose another warehouse or table.location",
        )
    for place in (folder, folder / "data", folder / "metadata"):
        # ``Path.exists`` raises where this user may not search a folder.
        nearest = next(p for p in (place, *place.parents) if os.path.exists(p))  # noqa: PTH110
        if not nearest.is_dir() or not is_writable(nearest):
            raise MissingRights(
                f"files cannot be written under {place}: {nearest} "
                f"{'may not be written' if nearest.is_dir() else 'is not a folder'}",
                "grant write access, or choose another location",
            )


def require_writable_sqlite_catalog(catalog: CatalogSettings) -> None:
    """Raises ``MissingRights`` for a SQLite catalog whose file exists and may not be written."""
    database = sqlite_file(catalog)
    if database and database.exists() and not is_writable(database):
        raise MissingRights(
            f"catalog {catalog.name!r}: {database} may not be written", "grant write access"
        )


def require_fillable_table(
    table: Table, settings: SinkSettings, schema: Schema | None = None
) -> None:
    """Raises ``TableChanged`` or ``KeyUnfit`` if records could never become files of the table.

    ``schema``: the table's after a start, if that completes it.
    """
    identifier = settings.table.identifier
    require_no_remote_signing(identifier, table.io.properties)
    require_fitting_schema(schema or table.schema(), settings)
    Partitioner(table.spec(), table.schema())
    require_known_distribution(settings, table.properties)
    require_valid_upkeep_properties(table.properties, f"table {identifier}")
    require_expirable_rows_if_expiring(settings, table, schema or table.schema())
    if settings.table.key:
        require_key_field_ids(table.schema(), settings.table.key)
        require_parquet_for_keyed_table(identifier, table.properties)
        key = settings.table.key
        require_markable_table_if_marking(settings, identifier, key, schema or table.schema())


def require_expirable_rows_if_expiring(
    settings: SinkSettings, table: Table, schema: Schema
) -> None:
    """Raises ``RowExpiryUnfit`` if rows are to expire, and cannot by their column (EXPIRY-1)."""
    if not settings.maintenance.rows_after_ms:
        return
    from headgate.tables.iceberg.maintenance import row_expiry  # reads files

    identifier, column = settings.table.identifier, settings.maintenance.rows_by
    field_id = row_expiry.require_expiry_time_column(identifier, schema, column).field_id
    modes = metrics_modes(schema, table.properties, table.sort_order())
    if not next(leaf for leaf in leaves_of(schema, modes) if leaf.field_id == field_id).has_bounds:
        raise RowExpiryUnfit(
            f"{identifier}: by the table's properties write.metadata.metrics.*, or their defaults, "
            f"files keep no bounds of the column {column!r}, so each would be read again and again "
            "to expire rows by it",
            f"set write.metadata.metrics.column.{column} = full for the table",
        )


def require_markable_table_if_marking(
    settings: SinkSettings, identifier: str, key: tuple[str, ...], schema: Schema
) -> None:
    """Raises ``KeyUnfit`` if deletes are to mark rows, and cannot (KEY-13)."""
    changes = settings.changes.change_rules_for_key(key)
    if changes is None or not changes.deleted_at:
        return
    from headgate.data_plane.write.delete_marking import require_markable  # reads records

    places = (settings.tables or settings.table).record_columns.columns_by_part()
    require_markable(identifier, schema_to_pyarrow(schema), changes, places)


def require_known_distribution(settings: SinkSettings, properties: Mapping[str, str]) -> None:
    """Raises ``ConfigurationError`` if the table's own distribution is none that there is."""
    Shaping(distribution=settings.spark.distribution).with_resolved_distribution(
        settings.table.identifier, properties
    )


def require_fitting_schema(schema: Schema, settings: SinkSettings) -> None:
    """Raises ``TableChanged`` if the columns cannot take what the sink file declares for them."""
    identifier = settings.table.identifier
    require_declared_columns(schema, settings.table)
    columns = schema_to_pyarrow(schema)
    for part, name in settings.table.record_columns.columns_by_part().items():
        if name not in columns.names:
            raise TableChanged(
                f"{identifier} has no column {name!r} for the records' {part}",
                "add it, or correct table.record_columns",
            )
        if part == STRUCT:
            _require_struct_of_record_parts(identifier, columns.field(name))
        else:
            _require_column_holds_record_part(identifier, part, columns.field(name))


def _require_struct_of_record_parts(identifier: str, column: pa.Field) -> None:
    fields = list(column.type) if pa.types.is_struct(column.type) else []
    if not fields or not {field.name for field in fields} <= set(RECORD_PARTS):
        raise TableChanged(
            f"column {column.name!r} of {identifier} is {column.type}, which cannot hold parts of "
            "the records",
            f"make it a struct with fields from {', '.join(RECORD_PARTS)}",
        )
    for field in fields:
        inside = field.with_name(f"{column.name}.{field.name}")
        _require_column_holds_record_part(identifier, field.name, inside)


def _require_column_holds_record_part(identifier: str, part: str, column: pa.Field) -> None:
    try:
        pa.array([], _PARTS.get(part, pa.null())).cast(column.type)
    except pa.ArrowNotImplementedError as error:
        raise TableChanged(
            f"column {column.name!r} of {identifier} is {column.type}, which cannot hold the "
            f"records' {part}",
            "name another column in table.record_columns",
        ) from error


def require_declared_columns(schema: Schema, table: TableSettings) -> None:
    """Raises ``TableChanged`` unless every declared column exists with the declared type."""
    identifier = table.identifier
    there = {field.name: field.field_type for field in schema.fields}
    for field in parse_columns(declaration_of(table).columns):
        if field.name not in there:
            raise TableChanged(
                f"{identifier} has no column {field.name!r}",
                f"{_advice_to_add_column(identifier, field)}, or remove it from the sink file",
            )
        if _type_text_without_ids(field.field_type) != _type_text_without_ids(there[field.name]):
            raise TableChanged(
                f"column {field.name!r} of {identifier} is "
                f"{there[field.name]}, the sink file says {field.field_type}",
                "correct the sink file, or change the table",
            )


def _advice_to_add_column(identifier: str, field: NestedField) -> str:
    kind = spark_sql_type_or_empty(columns_of(Schema(field)).fields[0].type)
    if not kind:
        return f"add it as {field.field_type}"
    return f"add it, as with Spark: ALTER TABLE {identifier} ADD COLUMN `{field.name}` {kind}"


def require_quarantine_columns(identifier: str, schema: Schema) -> None:
    """Raises ``TableUnfit`` for a quarantine that cannot say where its records were, or that has
    columns which its rows do not fit."""
    wanted = {field.name: field.field_type for field in quarantine_declaration().schema().fields}
    there = {field.name: field.field_type for field in schema.fields}
    missing = [name for name in (*_PLACES, "sink") if name not in there]
    other = [
        f"{name} is {there[name]}, not {kind}"
        for name, kind in wanted.items()
        if name in there and _type_text_without_ids(there[name]) not in _types_that_hold(kind)
    ]
    full = [f.name for f in schema.fields if f.required and f.name not in _PLACES]
    if missing or other or full:
        faults = [f"no column {name}" for name in missing] + other
        faults += [f"{name} is required" for name in full]
        raise TableUnfit(
            f"{identifier} cannot be a quarantine: {', '.join(faults)}",
            "name another one in quarantine.table, and the sink creates it",
        )


def _types_that_hold(iceberg_type: IcebergType) -> tuple[str, ...]:
    """The types of columns that hold all values of this one."""
    text = _type_text_without_ids(iceberg_type)
    return (text, "long") if text == "int" else (text,)


def _type_text_without_ids(iceberg_type: IcebergType) -> str:
    """Return the type as text, without the ids of nested fields, which only the table knows."""
    return re.sub(r"\b\d+: ", "", str(iceberg_type))


def _is_within(path: str, *folders: str) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def location_or_warehouse_of_new_table(settings: SinkSettings) -> str:
    """Return where a missing table would be created; empty if the catalog chooses."""
    return settings.table.location or settings.catalog.properties.get("warehouse", "")


def is_writable(path: Path) -> bool:
    """Check with the effective user, who is the one that would write."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return False
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def require_fit_quarantine_layout(layout: FileSchema, quarantine: QuarantineSettings) -> None:
    """Raise ``TableUnfit`` for a table that cannot keep the sink's bad records."""
    require_known_scheme_or_writable_folder(layout.location)
    require_quarantine_columns(quarantine.table, iceberg_schema_of(layout.columns))


def require_fitting_file_schema(layout: FileSchema, settings: SinkSettings) -> None:
    """Raise ``TableChanged`` or ``KeyUnfit`` if records could never become files of the layout."""
    schema = iceberg_schema_of(layout.columns)
    require_fitting_schema(schema, settings)
    require_key_field_ids(schema, settings.table.key)
    require_known_scheme_or_writable_folder(layout.location)


# Checks before a start creates anything: the source topics, and the table as it is.


_MISSING_MAX_S = 5.0
_NAME_BYTES_MAX = 255


def require_existing_source_topics(settings: SinkSettings) -> None:
    """Raises ``ConfigurationError`` for a topic that is missing, and not just new to a broker.

    Waits for a leader election under way; raises ``Unreachable`` if that takes too long.
    """
    with open_source_topics(settings, _MISSING_MAX_S) as topics:
        call_with_retries(topics.describe, PATIENCE_S)


def require_fit_table(tables: SinkTables) -> None:
    """Raise if the sink's table, as it is, cannot take the records; ``TableMissing``."""
    settings = tables.settings
    if found := tables.catalog_format_of():
        tables.atomic_commits()
        require_fit_iceberg_table(found.catalog, settings)
    else:
        require_fitting_file_schema(tables.file_schema(tables.name), settings)


def require_fit_or_creatable_and_exists(tables: SinkTables) -> bool:
    """Return whether the sink's table exists.

    Raises if it, or the place where it would be created, cannot take the records.
    """
    # Keys that come with the table may have expired just now, and are renewed.
    settings, found = tables.settings, tables.catalog_format_of()
    renewable = found is not None and has_temporary_credentials(settings.catalog.properties)
    try:
        call_with_retries(lambda: require_fit_table(tables), PATIENCE_S if renewable else 0.0)
    except TableMissing:
        spec = tables.table_spec_of(tables.name)
        if found is not None:
            require_table_never_filled_before(settings, PATIENCE_S)
            require_creatable_table(settings, found.catalog)
            require_answering_store(settings)
        elif spec.create:
            require_table_never_filled_before(settings, PATIENCE_S)
            require_known_scheme_or_writable_folder(spec.location)
        else:
            raise
        return False
    return True


def require_answering_store(settings: SinkSettings) -> None:
    """Raise in time if the store of a new table does not answer; creating it would hang there.

    Only where its client has no time-out, and where keys do not come with the table.
    """
    location = location_or_warehouse_of_new_table(settings)
    if is_sql_catalog(settings.catalog) and needs_timeouts(location):
        require_writable_store(file_io_properties(settings.catalog.properties, location), location)


def require_fit_iceberg_table(catalog: Catalog, settings: SinkSettings) -> None:
    """Raises if the table cannot take the records, and ``TableMissing`` if there is none.

    Temporary credentials may have expired and be renewable: then ``Unreachable``.
    """
    identifier = settings.table.identifier
    try:
        table = catalog.load_table(identifier)
    except Exception as error:
        raise_if_metadata_not_understood(identifier, error)
        failure = translate_catalog_error(error, f"table {identifier} cannot be read")
        if isinstance(failure, MissingRights) and has_temporary_credentials(
            settings.catalog.properties
        ):
            failure = Unreachable(failure.message, failure.hint)
        raise failure from error
    require_atomic_swap(catalog, identifier)
    require_fillable_table(table, settings)
    require_usable_write_properties(table.schema(), table.properties, table.sort_order())
    require_known_scheme_or_writable_folder(table.location())


def require_creatable_table(settings: SinkSettings, catalog: Catalog | None = None) -> None:
    """Raises if no table could be created that takes the records.

    Without a ``catalog`` there is none yet, and the first start creates it.
    """
    location, wanted = (
        location_or_warehouse_of_new_table(settings),
        declaration_if_creation_allowed(settings.table),
    )
    require_known_scheme_or_writable_folder(location)
    file_format_name(settings.table.properties)
    if wanted is None:
        return
    require_known_distribution(settings, wanted.properties)
    _require_short_folder_names(settings, location)
    if not location and is_sql_catalog(settings.catalog):
        _require_creation_location(settings.table, catalog)
    schema = wanted.schema()
    if schema.fields:
        Partitioner(build_partition_spec(schema, wanted.partition_by), schema)
        require_usable_write_properties(
            schema,
            with_default_properties(wanted.properties),
            build_sort_order(schema, wanted.sort_by),
        )


def _require_short_folder_names(settings: SinkSettings, location: str) -> None:
    """Raises where the folders of a new table would have names that no disk takes."""
    folder = local_path_of_encoded_uri(location)
    if folder is None or not is_sql_catalog(settings.catalog):
        return
    # A namespace of several parts is one folder to PyIceberg's SQL catalog.
    namespace, _, table = settings.table.identifier.rpartition(".")
    below = () if settings.table.location else (namespace, table)
    longest = max((*folder.parts, *below), key=lambda name: len(name.encode()))
    if len(longest.encode()) > _NAME_BYTES_MAX:
        raise ConfigurationError(
            f"table {settings.table.identifier[:40]} cannot be created: no folder may be named "
            f"{longest[:40]}... ({len(longest.encode())} bytes)",
            f"use names of at most {_NAME_BYTES_MAX} bytes in table.identifier and table.location",
        )


def _require_creation_location(table: TableSettings, catalog: Catalog | None) -> None:
    namespace = table.identifier.rpartition(".")[0]
    with suppress(Exception):  # neither the namespace nor the catalog's own tables need be there
        if catalog is not None and catalog.load_namespace_properties(namespace).get("location"):
            return
    raise ConfigurationError(
        f"nothing says where table {table.identifier} would be created",
        "set catalog.properties.warehouse, or table.location",
    )
