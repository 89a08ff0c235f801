"""Turns a neutral layout into what file writers need, and a written file into what a commit needs.

Iceberg's writers make the files of every table format; this is where the two meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.io import InputStream
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType

from headgate.control_protocol.columns import Column, ListOf, MapOf, Path, Struct, Type
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.table_format import FileSchema
from headgate.tables.iceberg.data_file import FileDetail
from headgate.tables.iceberg.schema_evolution import columns_of, parse_primitive
from headgate.tables.iceberg.type_parser import parse_columns

_PARTITION_ID_MIN = 1000


def parse_declared_columns(columns: Mapping[str, str]) -> Struct:
    """Return columns that a sink file declares, by name. Raises ``ConfigurationError``."""
    return columns_of(Schema(*parse_columns(columns)))


@lru_cache(maxsize=64)
def iceberg_schema_of(columns: Struct) -> Schema:
    """Return the columns as an Iceberg schema; ids follow from their positions alone."""
    ids = count(1)
    return Schema(*(_iceberg_field(column, ids) for column in columns.fields))


def partition_spec_of(layout: FileSchema) -> PartitionSpec:
    """Return the partitioning, with the layout's own number as its id."""
    schema = iceberg_schema_of(layout.columns)
    fields = (
        PartitionField(schema.find_field(name).field_id, number, IdentityTransform(), name)
        for number, name in enumerate(layout.partition_by, _PARTITION_ID_MIN)
    )
    return PartitionSpec(*fields, spec_id=layout.schema_id)


def _iceberg_field(column: Column, ids: Iterator[int]) -> NestedField:
    field_id = next(ids)
    return NestedField(
        field_id, column.name, _iceberg_type(column.type, ids), required=column.required
    )


def _iceberg_type(column_type: Type, ids: Iterator[int]) -> IcebergType:
    match column_type:
        case Struct(fields):
            return StructType(*(_iceberg_field(each, ids) for each in fields))
        case ListOf(element):
            element_id = next(ids)
            item = _iceberg_type(element.type, ids)
            return ListType(element_id, item, element_required=element.required)
        case MapOf(key, value):
            key_id, value_id = next(ids), next(ids)
            key_type, value_type = _iceberg_type(key, ids), _iceberg_type(value.type, ids)
            return MapType(key_id, key_type, value_id, value_type, value_required=value.required)
        case _:
            return parse_primitive(column_type)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known about a written file without reading it, by the columns' paths.

    ``partition`` has every column of ``FileSchema.partition_by``. The bounds are not tight: a text
    may be truncated. Values are Python's; dates and times are whole numbers, as Iceberg counts
    them. Columns with NaN have no maximum: some readers take it for the highest value. There are no
    facts about the contents of lists and maps.
    """

    partition: Mapping[str, Any]
    nulls: Mapping[Path, int] = field(default_factory=dict)
    minimum: Mapping[Path, Any] = field(default_factory=dict)
    maximum: Mapping[Path, Any] = field(default_factory=dict)


def schema_id_of_file(file: WrittenFile) -> int:
    """Return the number of the layout under which it was written. Raises ``ValueError``."""
    return FileDetail.decode(file.detail).spec_id


def file_statistics_of(
    file: WrittenFile, columns: Struct, partition_by: tuple[str, ...]
) -> FileFacts:
    """Return what the writer measured. Raises ``ValueError`` for files of other writers."""
    detail, schema = FileDetail.decode(file.detail), iceberg_schema_of(columns)
    if len(detail.partition) != len(partition_by):
        raise ValueError(f"{file.path} has {len(detail.partition)} partition values")
    leaves = _leaf_columns_by_id(columns)
    kinds = (_require_primitive(schema.find_type(name)) for name in partition_by)
    values = zip(partition_by, kinds, detail.partition, strict=True)
    nan = {id_ for id_, count in detail.nan_value_counts.items() if count}
    return FileFacts(
        {
            name: None if held is None else from_bytes(column_type, held)
            for name, column_type, held in values
        },
        {leaves[id_][0]: n for id_, n in detail.null_value_counts.items() if id_ in leaves},
        dict(_decode_bounds(leaves, detail.lower_bounds)),
        dict(
            _decode_bounds(
                leaves, {id_: b for id_, b in detail.upper_bounds.items() if id_ not in nan}
            )
        ),
    )


def columns_of_parquet_file(stream: InputStream) -> Struct:
    """Return the columns that a file of ours was written for. Raises ``ValueError`` for any
    other file."""
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import pyarrow_to_schema  # imports pandas: not for every command

    found = pyarrow_to_schema(pq.read_schema(stream))
    columns = columns_of(found)
    if iceberg_schema_of(columns) != found:  # what was measured goes by these ids
        raise ValueError("its columns are not numbered as those of our files")
    return columns


def with_absent_columns_filled(
    rows: pa.RecordBatch, names: Sequence[str], columns: Struct, values: Mapping[str, Any]
) -> pa.RecordBatch:
    """Return rows of a file, with those of the named columns that the file lacks.

    They have the value in ``values``, or null: others may have appended before a column was added,
    and may leave partition columns to the log. Readers of files leave such columns out.
    """
    absent = [name for name in names if name not in rows.schema.names]
    if not absent:
        return rows
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # imports pandas: not for every command

    types = schema_to_pyarrow(iceberg_schema_of(columns), include_field_ids=False)
    for name in absent:
        value = pa.scalar(values.get(name), types.field(name).type)
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


_Leaves = Mapping[int, tuple[Path, PrimitiveType]]


@lru_cache(maxsize=64)
def _leaf_columns_by_id(columns: Struct) -> _Leaves:
    """Return the columns with at most one value per row, by their ids."""

    def find_leaves(
        struct: StructType, path: Path
    ) -> Iterator[tuple[int, tuple[Path, PrimitiveType]]]:
        for each in struct.fields:
            at = (*path, each.name)
            if isinstance(each.field_type, StructType):
                yield from find_leaves(each.field_type, at)
            elif isinstance(each.field_type, PrimitiveType):
                yield each.field_id, (at, each.field_type)

    return dict(find_leaves(iceberg_schema_of(columns).as_struct(), ()))


def _decode_bounds(leaves: _Leaves, bounds: Mapping[int, bytes]) -> Iterator[tuple[Path, Any]]:
    for id_, bound in bounds.items():
        if id_ not in leaves:
            continue
        path, column_type = leaves[id_]
        yield path, from_bytes(column_type, bound)


def _require_primitive(column_type: IcebergType) -> PrimitiveType:
    assert isinstance(column_type, PrimitiveType), "tables are not partitioned by nested columns"
    return column_type
