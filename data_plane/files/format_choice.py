"""Chooses the format that a table wants for its data files (``write.format.default``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import TimestampNanoType, TimestamptzNanoType

from headgate.control_protocol.errors import ConfigurationError, KeyUnfit
from headgate.data_plane.files.file_format import (
    Encoding,
    read_boolean,
    read_choice,
    read_positive_number,
)
from headgate.data_plane.files.metrics import Leaf, leaves_of, metrics_modes
from headgate.data_plane.files.parquet import ParquetEncoding

FORMAT = "write.format.default"
_TARGET = "write.target-file-size-bytes"

_EncodingClass = Callable[[Schema, Mapping[str, str], Sequence[Leaf]], Encoding]


def file_format_name(properties: Mapping[str, str]) -> str:
    """Return the format's name. Raises ``ConfigurationError`` for one that is not written."""
    return read_choice(properties, FORMAT, {name: name for name in _FORMATS}, "parquet")


def require_parquet_for_keyed_table(table: str, properties: Mapping[str, str]) -> None:
    """Raise ``KeyUnfit`` where the coordinator could not read keys from the table's files."""
    if file_format_name(properties) != ParquetEncoding.name:
        raise KeyUnfit(
            f"{table} has a key, and wants its files in {file_format_name(properties)}",
            f"set the table's property {FORMAT} to parquet",
        )


def file_format_encoding_of(
    schema: Schema, properties: Mapping[str, str], leaves: Sequence[Leaf]
) -> Encoding:
    """Return how the table's files are made. Raises ``ConfigurationError``."""
    name = file_format_name(properties)
    if name != ParquetEncoding.name:
        _require_no_nanoseconds(name, leaves)
    return _FORMATS[name]()(schema, properties, leaves)


def _require_no_nanoseconds(name: str, leaves: Sequence[Leaf]) -> None:
    for leaf in leaves:
        if isinstance(leaf.kind, TimestampNanoType | TimestamptzNanoType):
            raise ConfigurationError(
                f"the table's {FORMAT} is {name!r}, and its column {leaf.name} is of type "
                f"{leaf.kind}: nobody was seen to read such a column of such a file",
                f"set {FORMAT} = parquet, or use a column of microseconds",
            )


def target_file_size_bytes(properties: Mapping[str, str]) -> int:
    """Return the size on disk at which the table wants its files closed; 0 if it sets none."""
    return read_positive_number(properties, _TARGET, 0)


def object_storage_choices(properties: Mapping[str, str]) -> tuple[bool, bool]:
    """Return whether files are spread, and whether the partition is in the path of those.

    Raises ``ConfigurationError``.
    """
    return read_boolean(
        properties,
        TableProperties.OBJECT_STORE_ENABLED,
        default=TableProperties.OBJECT_STORE_ENABLED_DEFAULT,
    ), read_boolean(
        properties,
        TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS,
        default=TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS_DEFAULT,
    )


def require_usable_write_properties(
    schema: Schema, properties: Mapping[str, str], order: SortOrder
) -> None:
    """Raise ``ConfigurationError`` for table properties whose files cannot be written."""
    target_file_size_bytes(properties)
    object_storage_choices(properties)
    file_format_encoding_of(
        schema, properties, leaves_of(schema, metrics_modes(schema, properties, order))
    )


def _parquet_encoding_class() -> _EncodingClass:
    return ParquetEncoding


def _orc_encoding_class() -> _EncodingClass:
    from headgate.data_plane.files.orc import OrcEncoding  # only if a table asks for it

    return OrcEncoding


def _avro_encoding_class() -> _EncodingClass:
    from headgate.data_plane.files.avro import AvroEncoding

    return AvroEncoding


_FORMATS: dict[str, Callable[[], _EncodingClass]] = {
    "parquet": _parquet_encoding_class,
    "orc": _orc_encoding_class,
    "avro": _avro_encoding_class,
}
