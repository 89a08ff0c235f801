"""Real data files for tests of table commits, written and measured by pyiceberg itself."""

from __future__ import annotations

import uuid
from typing import cast

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.types import PrimitiveType

from headgate.control_protocol.events import WrittenFile
from headgate.tables.iceberg.data_file import FileDetail


def write_files(table: Table, rows: pa.Table, below: str = "") -> tuple[WrittenFile, ...]:
    """The rows as files of the table's current spec, ``below`` a folder; nothing is committed."""
    metadata = table.metadata
    if below:
        properties = {**metadata.properties, TableProperties.WRITE_DATA_PATH: below}
        metadata = metadata.model_copy(update={"properties": properties})
    written = _dataframe_to_data_files(metadata, rows, table.io, uuid.uuid4())
    return tuple(describe(table, file) for file in written)


def describe(table: Table, file: ManifestDataFile) -> WrittenFile:
    """A file of the table's current spec, as it travels in a status."""
    fields = table.spec().partition_type(table.schema()).fields
    types = [cast("PrimitiveType", field.field_type) for field in fields]
    values = [file.partition[position] for position in range(len(types))]
    partition = (
        None if value is None else to_bytes(kind, value)
        for kind, value in zip(types, values, strict=True)
    )
    detail = FileDetail(
        spec_id=table.spec().spec_id,
        partition=tuple(partition),
        column_sizes=file.column_sizes or {},
        value_counts=file.value_counts or {},
        null_value_counts=file.null_value_counts or {},
        nan_value_counts=file.nan_value_counts or {},
        lower_bounds=file.lower_bounds or {},
        upper_bounds=file.upper_bounds or {},
        split_offsets=tuple(file.split_offsets or ()),
    )
    return detail.to_written_file(file.file_path, file.record_count, file.file_size_in_bytes)
