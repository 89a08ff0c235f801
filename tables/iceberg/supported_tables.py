"""Decides which tables headgate commits to; others are refused before anything is written."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.types import (
    GeographyType,
    GeometryType,
    TimestampNanoType,
    TimestamptzNanoType,
    UnknownType,
)

from headgate.control_protocol.errors import StopSink

FORMAT_VERSIONS = ("2", "3")

_ENCRYPTION_KEY = "encryption.key-id"
_NOT_WRITTEN = (GeographyType, GeometryType, UnknownType)

NO_PARTITION = (TimestampNanoType, TimestamptzNanoType)
"""pyiceberg 0.12 cannot read a manifest whose partition values are of these types."""


def raise_if_metadata_not_understood(identifier: str, error: Exception) -> None:
    """Raise ``StopSink`` if metadata arrived and holds what pyiceberg does not know.

    A variant, say, or a later version: asking again would not help, as it does with broken JSON.
    """
    text = str(error)
    known = type(error).__name__ in ("ValidationError", "TypeError")  # pyiceberg's, or pydantic's
    if not known or "json_invalid" in text:
        return
    lines = text.splitlines() or [type(error).__name__]
    reason = next((line for line in lines if " [type=" in line), lines[0]).partition(" [type=")[0]
    raise StopSink(
        f"table {identifier} has metadata that is not understood: {reason.strip()}",
        f"headgate commits to format versions {' and '.join(FORMAT_VERSIONS)}, and to columns of "
        "the types that docs/guides/data-files.md names",
    ) from error


def require_supported(identifier: str, metadata: TableMetadata) -> None:
    """Raise ``StopSink`` for a table that cannot be appended to as the specification asks."""
    if str(metadata.format_version) not in FORMAT_VERSIONS:
        raise StopSink(
            f"table {identifier} has format version {metadata.format_version}",
            f"headgate commits to format versions {' and '.join(FORMAT_VERSIONS)} only",
        )
    if not isinstance(metadata, TableMetadataV3):
        return
    if metadata.next_row_id is None:
        raise StopSink(
            f"table {identifier} has no next-row-id, which format version 3 requires",
            "whoever wrote its metadata left it out; let an engine that knows version 3 mend it",
        )
    if _ENCRYPTION_KEY in metadata.properties:
        raise StopSink(
            f"table {identifier} is encrypted ({_ENCRYPTION_KEY})",
            "headgate writes no encrypted files; use a table without encryption",
        )
    _require_supported_columns(identifier, metadata.schema())
    for spec in metadata.partition_specs:
        _require_supported_partitions(identifier, spec, metadata.schema())


def _require_supported_columns(identifier: str, schema: Schema) -> None:
    for field_id in schema.field_ids:
        column = schema.find_field(field_id)
        name = schema.find_column_name(field_id)
        if isinstance(column.field_type, _NOT_WRITTEN):
            raise StopSink(
                f"table {identifier}: column {name} is of type {column.field_type}",
                "headgate does not write this type; drop the column, or use another table",
            )
        if column.write_default is not None:
            raise StopSink(
                f"table {identifier}: column {name} has a write default",
                "headgate writes null where a record has no value, and no default; drop the "
                "column's default",
            )


def _require_supported_partitions(identifier: str, spec: PartitionSpec, schema: Schema) -> None:
    for field in spec.fields:
        if field.source_id in schema.field_ids:  # nothing is known of a dropped column
            kind = field.transform.result_type(schema.find_type(field.source_id))
            if isinstance(kind, NO_PARTITION):
                raise StopSink(
                    f"table {identifier}: its partition field {field.name} is of type {kind}",
                    "partition by year, month, day, hour or bucket of the column instead",
                )
