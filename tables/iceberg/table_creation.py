"""Creates a sink's table from a declaration, or finds it there already."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import (
    UNSORTED_SORT_ORDER,
    NullOrder,
    SortDirection,
    SortField,
    SortOrder,
)
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.types import DoubleType, FloatType, NestedField, strtobool

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.errors import ConfigurationError, KeyUnfit, TableMissing
from headgate.control_protocol.table_format import TableSpec
from headgate.tables.iceberg.catalog import translate_catalog_error
from headgate.tables.iceberg.maintenance.snapshot_selection import KEEP_MIN, MAX_AGE_MS
from headgate.tables.iceberg.schema_evolution import field_ids_of, new_optional_fields
from headgate.tables.iceberg.supported_tables import FORMAT_VERSIONS, NO_PARTITION
from headgate.tables.iceberg.type_parser import parse_columns
from headgate.tables.neutral_schema import iceberg_schema_of

_TRANSFORM = re.compile(r"(\w+)\((?:\s*(\d+)\s*,)?\s*([^(),]+?)\s*\)")
_WITH_WIDTH = {"bucket": "bucket", "truncate": "trunc"}  # the suffix of the field's name, as Java's
_WIDTH_MAX = 2**31 - 1
_NO_KEY = (FloatType, DoubleType)
_BY_TIME = ("year", "month", "day", "hour")

CREATED_MS = "headgate.created-ms"
"""The property of a table; older files in its location are those of one that was there before."""

_FLAGS = {
    "commit.manifest-merge.enabled",
    "gc.enabled",
    "write.metadata.delete-after-commit.enabled",
    "write.object-storage.enabled",
    "write.object-storage.partitioned-paths",
}

_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # A commit a minute leaves 1,440 metadata files a day; the last hundred are enough to look back.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # Each kept snapshot makes each commit a little slower. A day is enough to undo a mistake, and
    # for the longest query on files that were compacted since.
    MAX_AGE_MS: str(24 * 3_600_000),
    KEEP_MIN: "100",
}


@dataclass(frozen=True, slots=True)
class TableDeclaration:
    """A table to create.

    ``columns``: per name a type text such as ``long``, ``int not null``, ``decimal(10, 2)``,
    ``list<string>``, ``map<string, long>``, ``struct<a: int, b: string>``; or ``neutral`` ones.
    ``partition_by``: ``day(pickup_at)``, ``bucket(16, id)``, ``truncate(4, zone)`` or a column's
    name. ``properties`` win over headgate's own for new tables; without ``location`` the catalog
    chooses. ``inferred``: columns that records showed, which stand before the others. ``sort_by``:
    a column's name, or ``name desc``. ``key``: the columns that become the identifier fields.
    """

    columns: Mapping[str, str]
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    location: str | None = None
    comments: Mapping[str, str] = field(default_factory=dict)
    inferred: Struct = field(default_factory=Struct)
    sort_by: Sequence[str] = ()
    key: Sequence[str] = ()
    neutral: Struct = field(default_factory=Struct)

    @classmethod
    def from_spec(cls, spec: TableSpec) -> TableDeclaration:
        """Return what a sink file declares, with the columns that records showed before others."""
        columns = spec.columns.fields
        return cls(
            columns={},
            neutral=Struct(tuple(each for each in columns if each.name not in spec.inferred)),
            partition_by=spec.partition_by,
            properties=spec.properties,
            location=spec.location or None,
            comments=spec.comments,
            inferred=Struct(tuple(each for each in columns if each.name in spec.inferred)),
            sort_by=spec.sort_by,
            key=spec.key.key if spec.key else (),
        )

    def schema(self) -> Schema:
        """Return the schema. Raises ``ConfigurationError`` for types that cannot be read."""
        declared = self._declared_fields()
        taken = {each.name.lower() for each in declared}
        own = [each for each in self.inferred.fields if each.name.lower() not in taken]
        columns = Schema(
            *new_optional_fields(Struct(tuple(own)), ids_in_use=field_ids_of(declared)), *declared
        )
        return Schema(
            *columns.fields, identifier_field_ids=require_key_field_ids(columns, self.key)
        )

    def _declared_fields(self) -> list[NestedField]:
        named = parse_columns(self.columns, self.comments)
        return named or [
            column.model_copy(update={"doc": self.comments.get(column.name)})
            for column in iceberg_schema_of(self.neutral).fields
        ]


def require_key_field_ids(schema: Schema, key: Sequence[str]) -> list[int]:
    """Return the ids of a key's columns. Raises ``KeyUnfit`` for what cannot be one (rule
    KEY-1)."""
    ids = []
    for name in key:
        column = next((column for column in schema.fields if column.name == name), None)
        if column is None:
            raise KeyUnfit(
                f"key: there is no column {name!r}", _suggest_known_names(name, schema.column_names)
            )
        unfit = not column.field_type.is_primitive or isinstance(column.field_type, _NO_KEY)
        if unfit or not column.required:
            why = f"of type {column.field_type}" if unfit else "not required"
            raise KeyUnfit(
                f"key: column {name!r} is {why}",
                "a key's columns are required, and neither float, double nor nested",
            )
        ids.append(column.field_id)
    if len(set(ids)) < len(ids):
        raise KeyUnfit("key: a column is named twice", "name each one once")
    return ids


def create_table_if_missing(
    catalog: Catalog, identifier: str, declaration: TableDeclaration | None
) -> bool:
    """Create a missing table and its namespaces, level by level; return whether this call did.

    Another process may create it at the same time. Raises ``TableMissing`` when there is neither
    table nor declaration, ``ConfigurationError``, ``MissingRights``, ``Unreachable``.
    """
    try:
        return not catalog.table_exists(identifier) and _create_table_unless_exists(
            catalog, identifier, declaration
        )
    except Exception as error:  # noqa: BLE001 - whatever a catalog raises becomes one of ours
        failure = translate_catalog_error(error, f"table {identifier} cannot be created")
        raise failure from (None if failure is error else error)


def _create_table_unless_exists(
    catalog: Catalog, identifier: str, declaration: TableDeclaration | None
) -> bool:
    if declaration is None:
        raise TableMissing(
            f"table {identifier} does not exist", "declare its columns, or create it yourself"
        )
    schema = declaration.schema()
    if not schema.fields:
        raise ConfigurationError(f"table {identifier} would have no column", "declare some")
    spec = build_partition_spec(schema, declaration.partition_by)
    order = build_sort_order(schema, declaration.sort_by)
    created = {CREATED_MS: str(int(time.time() * 1000))}
    properties = with_default_properties({**created, **declaration.properties})
    require_possible_format_version(schema, declaration.properties)
    ensure_namespaces(catalog, identifier)
    try:
        catalog.create_table(
            identifier,
            schema,
            declaration.location,
            spec,
            sort_order=order,
            properties=properties,
        )
    except TableAlreadyExistsError:
        return False
    return True


def with_default_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a new table for which a declaration has these."""
    return {**_PROPERTIES, **properties}


def require_possible_format_version(schema: Schema, properties: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` for an impossible format version, or one that lacks a type."""
    version = with_default_properties(properties)["format-version"]
    if version not in FORMAT_VERSIONS:
        raise ConfigurationError(
            f"format-version cannot be {version!r}",
            f"headgate commits to format versions {' and '.join(FORMAT_VERSIONS)} only",
        )
    for field_id in schema.field_ids:
        kind = schema.find_type(field_id)
        if kind.minimum_format_version() > int(version):
            raise ConfigurationError(
                f"column {schema.find_column_name(field_id)!r} is of type {kind}, which format "
                f"version {version} does not have",
                f"set the table's property format-version to {kind.minimum_format_version()}",
            )


def require_valid_upkeep_properties(properties: Mapping[str, str], whose: str) -> None:
    """Raise ``ConfigurationError`` for properties with which no commit can be made, or kept.

    An age or a number below 1 would keep no history at all.
    """
    for key in _FLAGS & properties.keys():
        try:
            strtobool(properties[key])
        except ValueError:
            raise ConfigurationError(
                f"{whose}: the property {key} cannot be {properties[key]!r}", "write true or false"
            ) from None
    for key in (MAX_AGE_MS, KEEP_MIN):
        value = properties.get(key, "1")
        if not (value.isdecimal() and int(value) >= 1):
            raise ConfigurationError(
                f"{whose}: the property {key} cannot be {value!r}",
                "write a whole number of at least 1, or remove the property",
            )


def ensure_namespaces(catalog: Catalog, identifier: str) -> None:
    """Make the namespaces of a table that are missing, level by level."""
    levels = Catalog.namespace_from(identifier)
    for depth in range(1, len(levels) + 1):
        namespace = levels[:depth]
        try:
            if not catalog.namespace_exists(namespace):
                catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            continue
        except Exception:
            # After a lost race SQL catalogs raise the database's own error.
            if not catalog.namespace_exists(namespace):
                raise


def build_partition_spec(schema: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    """Build the spec from texts, in their order. Raises ``ConfigurationError``."""
    fields: list[PartitionField] = []
    for number, text in enumerate(partition_by):
        fields.append(_parse_partition_field(schema, text, PARTITION_FIELD_ID_START + number))
        if fields[-1].name in {earlier.name for earlier in fields[:-1]}:
            raise ConfigurationError(f"partition {text!r} is named twice", "name each one once")
    return PartitionSpec(*fields)


def build_sort_order(schema: Schema, sort_by: Sequence[str]) -> SortOrder:
    """Build the order from texts. Raises ``ConfigurationError``."""
    if not sort_by:
        return UNSORTED_SORT_ORDER
    return SortOrder(*(_parse_sort_field(schema, text) for text in sort_by))


def _parse_sort_field(schema: Schema, text: str) -> SortField:
    column, _, direction = text.strip().partition(" ")
    down = direction.strip().lower() == "desc"
    if direction.strip().lower() not in ("", "asc", "desc"):
        raise ConfigurationError(f"sort {text!r} cannot be read", 'write "column" or "column desc"')
    known = schema.column_names
    if column not in known:
        raise ConfigurationError(
            f"sort {text!r}: there is no column {column!r}", _suggest_known_names(column, known)
        )
    source = schema.find_field(column)
    if not source.field_type.is_primitive:
        raise ConfigurationError(
            f"sort {text!r}: a column of type {source.field_type} has no order", "name another"
        )
    _require_one_value_per_row(schema, source, f"sort {text!r}")
    return SortField(
        source_id=source.field_id,
        transform=IdentityTransform(),
        direction=SortDirection.DESC if down else SortDirection.ASC,
        null_order=NullOrder.NULLS_LAST if down else NullOrder.NULLS_FIRST,
    )


def _require_one_value_per_row(schema: Schema, source: NestedField, what: str) -> None:
    try:
        schema.accessor_for_field(source.field_id)
    except ValueError:
        raise ConfigurationError(
            f"{what}: {schema.find_column_name(source.field_id)!r} is inside of a list or a map",
            "name a column, or a field of a struct",
        ) from None


def _parse_partition_field(schema: Schema, text: str, field_id: int) -> PartitionField:
    transform, width, column = _split_transform(text)
    known = schema.column_names
    if column not in known:
        raise ConfigurationError(
            f"partition {text!r}: there is no column {column!r}",
            _suggest_known_names(column, known),
        )
    source = schema.find_field(column)
    parsed = parse_transform(f"{transform}[{width}]" if width else transform)
    if not parsed.can_transform(source.field_type):
        raise ConfigurationError(
            f"partition {text!r}: {transform} does not take a column of type {source.field_type}",
            "choose another transform or column",
        )
    _require_one_value_per_row(schema, source, f"partition {text!r}")
    if isinstance(parsed.result_type(source.field_type), NO_PARTITION):
        raise ConfigurationError(
            f"partition {text!r}: a table cannot be partitioned by each {source.field_type}",
            f"write day({column}), hour({column}) or bucket(16, {column})",
        )
    if transform == "identity":
        name = column
    elif (name := f"{column}_{_WITH_WIDTH.get(transform, transform)}") in known:
        raise ConfigurationError(
            f"partition {text!r} would have the name {name!r}, and there is a column {name!r}",
            "rename the column, or choose another transform",
        )
    return PartitionField(source_id=source.field_id, field_id=field_id, transform=parsed, name=name)


class _TransformText(NamedTuple):
    transform: str
    width: str | None
    column: str


def _split_transform(text: str) -> _TransformText:
    """Split ``bucket(16, id)``, ``day(ts)`` or ``zone`` into transform, width and column."""
    match = _TRANSFORM.fullmatch(text.strip())
    if match is None:
        if not text.strip() or re.search(r"[(),]", text):
            raise ConfigurationError(
                f"partition {text!r} cannot be read",
                "write a column's name, day(column) or bucket(16, column)",
            )
        return _TransformText("identity", None, text.strip())
    transform, width, column = match[1].lower(), match[2], match[3]
    if transform not in (*_WITH_WIDTH, *_BY_TIME, "identity"):
        raise ConfigurationError(
            f"partition {text!r}: there is no transform {match[1]!r}",
            _suggest_known_names(transform, [*_WITH_WIDTH, *_BY_TIME, "identity"]),
        )
    if width and int(width) > _WIDTH_MAX:
        raise ConfigurationError(
            f"partition {text!r}: {width} is too large", f"use at most {_WIDTH_MAX}"
        )
    wide = transform in _WITH_WIDTH
    if wide != bool(width and int(width)):
        example = f"{transform}(16, {column})" if wide else f"{transform}({column})"
        raise ConfigurationError(f"partition {text!r} cannot be read", f"write {example}")
    return _TransformText(transform, width, column)


def _suggest_known_names(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"do you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
