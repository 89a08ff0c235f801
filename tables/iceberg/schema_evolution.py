"""Adds the columns that records need to a table's schema: the content of one catalog call
(SCHEMA-3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import parse_mapping_from_json, update_mapping
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from headgate.control_protocol.columns import (
    Column,
    ListOf,
    MapOf,
    Path,
    Struct,
    Type,
    describe_schema_growth,
    struct_from_json,
)
from headgate.control_protocol.schema_evolution import (
    Former,
    Refusal,
    collect_former_columns,
    grow_columns,
)
from headgate.tables.iceberg.type_parser import parse_columns

_ROOT = -1
"""pyiceberg's id for the table itself, as the parent of a field."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """``schema`` is the new one, or ``None`` where the table has everything already."""

    metadata: TableMetadata
    schema: Schema | None
    changes: tuple[str, ...]
    refused: tuple[Refusal, ...]
    added: dict[int, list[NestedField]] = field(default_factory=dict)

    def requirements(self, *refs: str) -> tuple[TableRequirement, ...]:
        """Require UUID, refs, current schema and last column id as they were read."""
        # For an empty table, catalogs accept no ref but main.
        named = refs if self.metadata.snapshots else (MAIN_BRANCH,)
        held = {name: self.metadata.refs.get(name) for name in named}
        return (
            AssertTableUUID(uuid=self.metadata.table_uuid),
            *(
                AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id if ref else None)
                for name, ref in held.items()
            ),
            AssertCurrentSchemaId(current_schema_id=self.metadata.current_schema_id),
            AssertLastAssignedFieldId(last_assigned_field_id=self.metadata.last_column_id),
        )

    def updates(self) -> tuple[TableUpdate, ...]:
        assert self.schema is not None, "nothing is to be done"
        updates: tuple[TableUpdate, ...] = (
            AddSchemaUpdate(schema_=self.schema),
            SetCurrentSchemaUpdate(schema_id=-1),
        )
        mapping = self.metadata.properties.get(TableProperties.DEFAULT_NAME_MAPPING)
        if mapping is None:
            return updates
        named = update_mapping(parse_mapping_from_json(mapping), {}, self.added)
        text = named.model_dump_json()
        renamed = SetPropertiesUpdate(updates={TableProperties.DEFAULT_NAME_MAPPING: text})
        return (*updates, renamed)


def plan_evolution(metadata: TableMetadata, columns: Struct, *, readd_dropped: bool) -> Evolution:
    """Return what the table needs for these columns, as far as it may have it."""
    schema = metadata.schema()
    now = columns_of(schema)
    past = find_former_column_names(metadata)
    if readd_dropped:
        past = Former(past.renamed)
    growth = grow_columns(now, columns, past, nanoseconds=metadata.format_version >= 3)
    building = _Building(metadata)
    struct = building.build_struct(schema.as_struct(), growth.columns, _ROOT, ())
    refused = (*growth.refused, *building.refused)
    if struct == schema.as_struct():
        return Evolution(metadata, None, (), refused)
    newest = max(each.schema_id for each in metadata.schemas)
    new = Schema(
        *struct.fields,
        schema_id=newest + 1,
        identifier_field_ids=list(schema.identifier_field_ids),
    )
    changes = describe_schema_growth(now, columns_of(new))
    return Evolution(metadata, new, changes, refused, building.added)


def columns_of(schema: Schema) -> Struct:
    return struct_from_json(schema.model_dump_json())


def find_former_column_names(metadata: TableMetadata) -> Former:
    """SCHEMA-6: return the former names of columns, from the table's older schemas."""
    older = sorted(metadata.schemas, key=lambda schema: schema.schema_id)
    current = metadata.current_schema_id
    return collect_former_columns(
        columns_of(metadata.schema()),
        [columns_of(each) for each in older if each.schema_id != current],
    )


class _Building:
    """Builds Iceberg's types from the grown columns, which keep all else of the old ones."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._ids = count(metadata.last_column_id + 1)
        self._new_types = _New(self._ids)
        # A file's partition values would be stored differently with another type of the source.
        self._sources = {f.source_id for spec in metadata.partition_specs for f in spec.fields}
        self._schema = metadata.schema()
        self._names = frozenset(self._schema.column_names)
        self._identifiers = set(self._schema.identifier_field_ids)
        self.added: dict[int, list[NestedField]] = {}
        self.refused: list[Refusal] = []

    def build_struct(
        self, old: StructType, columns: Struct, parent_id: int, path: Path
    ) -> StructType:
        before = {each.name: each for each in old.fields}
        fields = []
        for column in columns.fields:
            if column.name in before:
                fields.append(self._build_field(before[column.name], column, (*path, column.name)))
                continue
            new = self._new_types.new_optional_field(column)
            if name := self._find_name_in_use(new, parent_id):
                reason = f"the table has another column with the name {name}"
                self.refused.append(Refusal((*path, column.name), reason))
                continue
            self.added.setdefault(parent_id, []).append(new)
            fields.append(new)
        return StructType(*fields)

    def _find_name_in_use(self, new: NestedField, parent_id: int) -> str:
        """Return the full name of the new column, or of a field in it, that another column has.

        Empty if there is none. ``s.a`` is a field of ``s``, or a column with a dot in its name; no
        schema has both.
        """
        above = "" if parent_id == _ROOT else f"{self._schema.find_column_name(parent_id)}."
        full_names = (f"{above}{name}" for name in Schema(new).column_names)
        return next((name for name in full_names if name in self._names), "")

    def _build_field(self, old: NestedField, column: Column, path: Path) -> NestedField:
        required = old.required and (column.required or old.field_id in self._identifiers)
        column_type = self._build_type(old, column.type, path)
        return old.model_copy(update={"field_type": column_type, "required": required})

    def _build_type(self, old: NestedField, grown: Type, path: Path) -> IcebergType:
        match old.field_type, grown:
            case StructType() as struct, Struct() as columns:
                return self.build_struct(struct, columns, old.field_id, path)
            case ListType() as items, ListOf(element):
                new = self._build_field(items.element_field, element, path)
                return ListType(items.element_id, new.field_type, element_required=new.required)
            case MapType() as items, MapOf(_, value):
                new = self._build_field(items.value_field, value, path)
                ids = (items.key_id, items.key_type, items.value_id)
                return MapType(*ids, new.field_type, value_required=new.required)
            case kind, str(text):
                return self._grow_primitive_or_keep(old, kind, text, path)
            case kind, _:
                return kind

    def _grow_primitive_or_keep(
        self, old: NestedField, old_type: IcebergType, grown_type: str, path: Path
    ) -> IcebergType:
        grown = parse_primitive(grown_type)
        if grown == old_type:
            return old_type
        if old.field_id in self._sources:
            self.refused.append(Refusal(path, f"partitions the table as {old_type}"))
            return old_type
        return grown


class _New:
    """Builds optional columns with ids of their own, and all that is in them."""

    def __init__(self, ids: Iterator[int]) -> None:
        self._ids = ids

    def new_optional_field(self, column: Column) -> NestedField:
        field_id = next(self._ids)
        return NestedField(field_id, column.name, self._new_type(column.type), required=False)

    def _new_type(self, column_type: Type) -> IcebergType:
        match column_type:
            case Struct(fields):
                return StructType(*map(self.new_optional_field, fields))
            case ListOf(element):
                return ListType(
                    next(self._ids), self._new_type(element.type), element_required=False
                )
            case MapOf(key, value):
                ids = next(self._ids), next(self._ids)
                made = self._new_type(key), self._new_type(value.type)
                return MapType(ids[0], made[0], ids[1], made[1], value_required=False)
            case _:
                return parse_primitive(column_type)


def new_optional_fields(columns: Struct, ids_in_use: Iterable[int]) -> list[NestedField]:
    """Return the columns of a new table, with ids above those of ``ids_in_use``."""
    new = _New(count(max(ids_in_use, default=0) + 1))
    return [
        new.new_optional_field(column) for column in grow_columns(Struct(), columns).columns.fields
    ]


def field_ids_of(fields: Iterable[NestedField]) -> Iterable[int]:
    return Schema(*fields).field_ids


def parse_primitive(text: str) -> IcebergType:
    """Return the type that a text names, as ``columns`` writes it."""
    (field_,) = parse_columns({"column": text.replace("[", "(").replace("]", ")")})
    return field_.field_type


_SQL_TYPES = {
    **{kind: kind.upper() for kind in ("boolean", "int", "float", "double", "string", "date")},
    "long": "BIGINT",
    "binary": "BINARY",
    "timestamptz": "TIMESTAMP",
    "timestamp": "TIMESTAMP_NTZ",
}


def spark_sql_type_or_empty(column_type: Type) -> str:
    """Return the type as Spark's SQL writes it; empty for one that Spark does not have."""
    match column_type:
        case Struct(fields):
            named = [(column.name, spark_sql_type_or_empty(column.type)) for column in fields]
            inside = ", ".join(f"`{name}`: {text}" for name, text in named)
            return f"STRUCT<{inside}>" if all(text for _, text in named) else ""
        case ListOf(element):
            item = spark_sql_type_or_empty(element.type)
            return f"ARRAY<{item}>" if item else ""
        case MapOf(key, value):
            parts = spark_sql_type_or_empty(key), spark_sql_type_or_empty(value.type)
            return f"MAP<{', '.join(parts)}>" if all(parts) else ""
        case _:
            text = str(column_type)
            return text.upper() if text.startswith("decimal") else _SQL_TYPES.get(text, "")
