"""Tells a worker how to turn ranges into files, as one value for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from headgate.control_protocol.columns import struct_from_json
from headgate.control_protocol.commit_record_codec import expired_before_ms
from headgate.control_protocol.errors import (
    ConfigurationError,
    FolderElsewhere,
    TableChanged,
    Unreachable,
)
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.control_protocol.redaction import Redaction
from headgate.control_protocol.schema_evolution import Refusal, collect_former_columns
from headgate.control_protocol.table_format import FileMarking, FileSchema, ValueCheck
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.cdc.policy import Changes, Tombstones
from headgate.data_plane.formats import field_names as names
from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.formats.field_names import with_former_names
from headgate.data_plane.formats.registry.frames import IdHeaders, schema_id_headers_of
from headgate.data_plane.quarantine.already_quarantined import (
    OffsetsByClass,
    RangesReadAgain,
    read_quarantined_from_iceberg,
    read_quarantined_offsets,
)
from headgate.data_plane.routing.routes import Routing
from headgate.data_plane.write.columns_to_add import Evolution, evolution_of
from headgate.kafka.record_fetch import Chunk
from headgate.participant.settings import SchemaPolicy, UnknownFields
from headgate.tables.iceberg.file_schema import data_location, file_schema_of
from headgate.tables.iceberg.table_creation import require_key_field_ids
from headgate.tables.neutral_schema import iceberg_schema_of, partition_spec_of
from headgate.tables.storage.object_stores import (
    credential_time_left_s,
    file_io_properties,
    has_temporary_credentials,
    renewal_age_s,
    require_no_remote_signing,
)

if TYPE_CHECKING:
    from headgate.data_plane.batch.routed_table import RoutedTable

RECORD_PARTS = ("topic", "partition", "offset", "timestamp", "key", "headers")
NO_TABLE_IS_CREATED = (
    "and none is made: tables.create.schema is off, or rows are those of a transform"
)
NONE_IS_DECLARED = "and none is declared"
STRUCT = "struct"
"""Stands, among the names of record parts, for a column that holds several of them."""


@dataclass(frozen=True, slots=True)
class Handling:
    """Says what becomes of records that are not rows.

    ``excerpts``: whether errors show their content; ``keeps_content``: whether the quarantine does,
    from which it is lost where columns are hidden. ``tag``: the sink's tag in its tables.
    ``unrouted_tombstones``: what becomes of tombstones for which no route finds a table, although
    that may be a keyed one; by default they are unmatched.
    """

    policy: Disposal = Disposal.FAIL
    tombstones: Disposal = Disposal.FAIL
    limits: BadRecordLimits = field(default_factory=BadRecordLimits)
    tag: str = ""
    excerpts: bool = True
    unmatched: Disposal = Disposal.FAIL
    unrouted_tombstones: Disposal | None = None
    keeps_content: bool = True

    @property
    def keeps_rejected_records(self) -> bool:
        """Return whether some of them go into the quarantine."""
        return Disposal.QUARANTINE in (self.policy, self.tombstones, self.unmatched)


class RecordIdHeaders(NamedTuple):
    """Holds which headers have the ids of schemas, of values and of keys."""

    of_values: IdHeaders
    of_keys: IdHeaders


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """Says where records come from and how to read their values.

    ``topic_ids``: the topics' expected ids; a topic without one is not checked. ``record_columns``:
    from a part of the record (``RECORD_PARTS``) to its column. ``format_options``: the format's
    own, and those of every one (``ValueOptions``). ``rules``: by column. ``key_format_name``: empty
    for text in a text column, else bytes. ``redaction`` masks in messages about records what
    ``kafka`` and the options hold of secrets, and no other: all of this travels to executors.
    ``routing``: how rows go to tables that no START names; ``creates_tables``: some of these are
    created if missing. ``schema_policy``: what becomes of fields without a column. ``changes``:
    what records do to the rows of a keyed table.
    """

    kafka: Mapping[str, str] = field(repr=False)
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    format_name: str = "json"
    format_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    record_columns: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, ColumnRule] = field(default_factory=dict)
    key_format_name: str = ""
    key_format_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    handling: Handling = field(default_factory=Handling)
    sink: str = ""
    redaction: Redaction = field(default_factory=Redaction)
    schema_policy: SchemaPolicy = field(default_factory=SchemaPolicy)
    routing: Routing | None = None
    creates_tables: bool = False
    changes: Changes | None = None

    @property
    def feeds_keyed_tables(self) -> bool:
        """Return whether a table that takes its records has a key."""
        return self.changes is not None or bool(self.routing and self.routing.keys)

    @property
    def columns_not_from_value(self) -> frozenset[str]:
        """Return the columns that no field of a value fills."""
        marks = (self.changes.deleted_at,) if self.changes and self.changes.deleted_at else ()
        return frozenset((*self.record_columns.values(), *marks))

    @property
    def schema_id_headers(self) -> RecordIdHeaders:
        """Return the headers that hold the ids of values' and keys' schemas; empty where values and
        keys are whole."""
        of_keys: Mapping[str, str] = self.key_format_options if self.key_format_name else {}
        column = self.record_columns.get("key", "")
        alike = self.changes and self.changes.reads_keys_like_values(self.format_name, column)
        if alike and not self.key_format_name:
            of_keys = self.format_options
        return RecordIdHeaders(
            schema_id_headers_of(self.format_options, "value"), schema_id_headers_of(of_keys, "key")
        )

    def with_schema_ids_prepended(self, chunk: Chunk) -> Chunk:
        """Return the records as formats read them: behind the ids that their headers hold.

        Only for reading: what is kept of a record is as it came.
        """
        of_values, of_keys = self.schema_id_headers
        if of_values:
            chunk = replace(chunk, values=of_values.framed_values(chunk.values, chunk.headers))
        if of_keys and chunk.keys is not None:
            chunk = replace(chunk, keys=of_keys.framed_values(chunk.keys, chunk.headers))
        return chunk

    @property
    def primary_deletes_by_tombstone(self) -> bool:
        """Return whether records without a value delete rows of START's table."""
        return self.changes is not None and self.changes.tombstones is Tombstones.DELETE


@dataclass(frozen=True, slots=True)
class TableShape:
    """Describes what a table's files are like and where they go; no secret is in it.

    The ``*_json`` are the table format's own. ``sort_order_json``: the table's default order when
    the plan was made; a transaction does not fix it, since each file states its own order.
    ``older_schemas``: those before it, the oldest first, as far as their names matter.
    ``marking``: additions to files with commit tokens (TOKEN-2).
    """

    schema_json: str
    spec_json: str
    sort_order_json: str
    table_properties: Mapping[str, str]
    location: str
    older_schemas: tuple[str, ...] = ()
    marking: FileMarking | None = None

    @property
    def data_location(self) -> str:
        """Return where the table wants its data files, without a slash at its end."""
        return data_location(self.table_properties, self.location)

    def __hash__(self) -> int:
        """Hash the texts that distinguish tables; equality compares everything."""
        return hash((self.schema_json, self.spec_json, self.location))

    def schema(self) -> Schema:
        return Schema.model_validate_json(self.schema_json)

    def spec(self) -> PartitionSpec:
        return PartitionSpec.model_validate_json(self.spec_json)

    def sort_order(self) -> SortOrder:
        return SortOrder.model_validate_json(self.sort_order_json)

    def arrow_schema(self) -> pa.Schema:
        return schema_to_pyarrow(self.schema())

    def name_mapping(self) -> str | None:
        """Return the table's name mapping, with the former names of its columns."""
        columns = struct_from_json(self.schema_json)
        past = collect_former_columns(columns, map(struct_from_json, self.older_schemas))
        mapping = self.table_properties.get(names.MAPPING_PROPERTY)
        return with_former_names(mapping, columns, past)


@dataclass(frozen=True, slots=True)
class WriterPlan:
    """Holds all that a task needs to write a batch, and nothing else; picklable throughout.

    No ``repr`` shows what is secret: ``io_properties``, for the table's object store, and parts of
    ``source``. ``quarantine`` is the plan for the quarantine's files; ``already_quarantined`` the
    offsets that it has, by ``error_class``, if a range is read again (rule QUARANTINE-3).
    ``poison_records``: those found to make the batch fail, by offset with the reason
    (``poison_search``). ``tables``: recently used tables that routes name; ``listed_tables``: by
    namespace, the tables that exist; ``no_creation_reason``: why no table is created for names in
    records. ``values`` checks whether the table can hold a record's values;
    ``replace_unsupported`` replaces those that a quarantine cannot.
    """

    source: SourcePlan
    shape: TableShape
    io_properties: Mapping[str, str] = field(repr=False)
    quarantine: WriterPlan | None = None
    already_quarantined: Mapping[TopicPartition, OffsetsByClass] = field(default_factory=dict)
    poison_records: Mapping[TopicPartition, Mapping[int, str]] = field(default_factory=dict)
    shaping: Shaping = field(default_factory=Shaping)
    tables: Mapping[str, RoutedTable] = field(default_factory=dict)
    listed_tables: Mapping[str, frozenset[str]] = field(default_factory=dict)
    no_creation_reason: str = NO_TABLE_IS_CREATED
    values: ValueCheck | None = None
    replace_unsupported: Callable[[Any], Any] | None = None

    def wanted_record_parts(self) -> set[str]:
        """Return the parts of records that are wanted beside the value, also inside of a struct."""
        if self.source.routing is not None and self.shaping.transform is None:
            return {p for t in self.tables.values() if t.plan for p in t.plan.wanted_record_parts()}
        columns = self.source.record_columns
        result = set(columns)
        if STRUCT in columns:
            column = self.decoded_schema().field(columns[STRUCT])
            result |= {column.type.field(at).name for at in range(column.type.num_fields)}
        return result

    def name_mapping(self) -> str | None:
        """Return the table's name mapping; it does not cover columns that a transform declares."""
        transform = self.shaping.transform
        return None if transform and transform.schema_json else self.shape.name_mapping()

    def evolution(self, refused: tuple[Refusal, ...]) -> Evolution:
        """Return how to treat fields that the table lacks."""
        policy, changes = self.source.schema_policy, self.source.changes
        made = evolution_of(self.shape.schema_json, self.shape.older_schemas, policy, refused)
        return made.with_key(changes.key) if changes else made

    def evolution_unless_ignored(self, refused: tuple[Refusal, ...]) -> Evolution | None:
        """Do as ``evolution``; ``None`` where they are ignored, so that nothing is spent on it."""
        ignored = self.source.schema_policy.unknown_fields is UnknownFields.IGNORE
        return None if ignored else self.evolution(refused)

    def decoded_schema(self) -> pa.Schema:
        """Return the columns that records are decoded into: the table's, or those that a transform
        declares; with many tables it declares those of the record's parts, too."""
        table = self.shape.arrow_schema()
        transform = self.shaping.transform
        if transform is None or not transform.schema_json:
            return table
        declared = schema_to_pyarrow(Schema.model_validate_json(transform.schema_json))
        parts = set(self.source.record_columns.values())
        values = [column for column in declared if column.name not in parts]
        typed = table if self.source.routing is None else declared
        return pa.schema([*values, *(column for column in typed if column.name in parts)])


def quarantine_source_of(source: SourcePlan) -> SourcePlan:
    """Return how to read records that become rows of the quarantine."""
    return replace(source, record_columns={}, rules={}, schema_policy=SchemaPolicy(), changes=None)


class Plans:
    """Keeps plans for the tables of one catalog, by (UUID, schema, spec).

    A plan is renewed after ``age_ms_max``; one with credentials that expire after half of their
    life, or five minutes before its end. A batch takes them along as they are.
    """

    def __init__(
        self,
        catalog: Catalog,
        shaping: Shaping | None = None,
        *,
        age_ms_max: int = 600_000,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._catalog = catalog
        self.shaping = shaping or Shaping()
        self._age_s_max = age_ms_max / 1000
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._kept: dict[tuple[str, int, int], tuple[float, WriterPlan]] = {}

    def load_plan(self, batch: Batch, source: SourcePlan) -> WriterPlan:
        """Return the plan for both tables of a batch. Raises as ``load_table_and_plan``, and
        ``FolderElsewhere`` for folders that no coordinator of these tables issues."""
        return self.add_quarantine_plan(
            self._plan_with_current_folder(batch.table, source), batch, source
        )

    def add_quarantine_plan(self, plan: WriterPlan, batch: Batch, source: SourcePlan) -> WriterPlan:
        """Return the plan of a batch's table with its quarantine's. Raises as ``load_plan``."""
        if batch.quarantine is None or not source.handling.keeps_rejected_records:
            return plan
        quarantine = self._plan_with_current_folder(batch.quarantine, quarantine_source_of(source))
        known = read_quarantined_offsets(batch, source, self._read_quarantine_rows)
        return replace(plan, quarantine=quarantine, already_quarantined=known)

    def _read_quarantine_rows(
        self, start: TableStart, source: SourcePlan, again: RangesReadAgain
    ) -> list[dict[str, Any]]:
        return read_quarantined_from_iceberg(_load_table(self._catalog, start), source, again)

    def _plan_with_current_folder(self, start: TableStart, source: SourcePlan) -> WriterPlan:
        """Return the plan, renewed where the table may want its files elsewhere by now."""
        plan = self.plan_for_start(start, source)
        if not _is_folder_inside(start, plan.shape.data_location):
            self._kept.pop((start.uuid, start.schema_id, start.spec_id), None)
            plan = self.plan_for_start(start, source)
        require_own_folder(start, plan.shape.data_location)
        return plan

    def plan_for_start(self, start: TableStart, source: SourcePlan) -> WriterPlan:
        """Plan for the table. Raises ``TableChanged``, ``ConfigurationError``, ``Unreachable``."""
        key = (start.uuid, start.schema_id, start.spec_id)
        until_s, plan = self._kept.get(key, (0.0, None))
        now_s = self._monotonic_s()
        if plan is None or plan.source != source or now_s > until_s:
            plan = load_table_and_plan(self._catalog, start, source, self.shaping)
            good_s = credential_time_left_s(plan.io_properties, int(self._wall_s() * 1000))
            # Old ones go: some are of schemas that no START names again.
            for old, (good_until_s, _) in list(self._kept.items()):
                if now_s > good_until_s:
                    self._kept.pop(old, None)
            self._kept[key] = (now_s + min(self._age_s_max, renewal_age_s(good_s)), plan)
        return plan

    def drop_plans_with_temporary_credentials(self) -> bool:
        """Forget plans with temporary keys; return whether there were any."""
        mortal = [
            key
            for key, (_, plan) in self._kept.items()
            if has_temporary_credentials(plan.io_properties)
        ]
        for key in mortal:
            del self._kept[key]
        return bool(mortal)


def load_table_and_plan(
    catalog: Catalog, start: TableStart, source: SourcePlan, shaping: Shaping | None = None
) -> WriterPlan:
    """Load the table, and plan for the schema and spec that START names."""
    table = _load_table(catalog, start)
    require_no_remote_signing(start.table, table.io.properties)
    return plan_of_table(table, start, source, shaping)


def plan_of_table(
    table: Table, start: TableStart, source: SourcePlan, shaping: Shaping | None = None
) -> WriterPlan:
    """Plan for a loaded table with the start's schema and spec. Raises ``ConfigurationError``."""
    layout = file_schema_of(table, start.schema_id, start.spec_id)
    return plan_of_file_schema(layout, start.table, source, shaping)


def plan_of_file_schema(
    layout: FileSchema, table: str, source: SourcePlan, shaping: Shaping | None = None
) -> WriterPlan:
    """Plan for a layout. Raises ``ConfigurationError`` for record columns that the table lacks."""
    native = layout.native
    schema = (
        Schema.model_validate_json(native.schema_json)
        if native
        else iceberg_schema_of(layout.columns)
    )
    require_record_columns(table, schema, source.record_columns)
    if native is None:
        properties: Mapping[str, str] = {}
        order, spec_json = UNSORTED_SORT_ORDER, partition_spec_of(layout).model_dump_json()
    else:
        if source.changes:
            require_key_field_ids(schema, source.changes.key)
        properties, spec_json = dict(layout.properties), native.spec_json
        order = _sort_order_or_unsorted(
            SortOrder.model_validate_json(native.sort_order_json), schema
        )
    shaping = _shaping_with_row_age_limit(shaping or Shaping(), source.sink, schema, properties)
    named = source.schema_policy.unknown_fields is not UnknownFields.IGNORE
    shape = TableShape(
        schema_json=native.schema_json if native else schema.model_dump_json(),
        spec_json=spec_json,
        sort_order_json=order.model_dump_json(),
        table_properties=properties,
        location=layout.location,
        older_schemas=native.older_schemas() if native and named else (),
        marking=layout.marking,
    )
    return WriterPlan(
        source=source,
        shape=shape,
        io_properties=file_io_properties(dict(layout.storage), shape.data_location),
        shaping=shaping.with_resolved_distribution(table, properties),
        values=layout.values,
        replace_unsupported=layout.replace_unsupported,
    )


def _shaping_with_row_age_limit(
    shaping: Shaping, sink: str, schema: Schema, properties: Mapping[str, str]
) -> Shaping:
    """EXPIRY-1: leave rows out that are below the limit that the table stores, where that is
    wanted. The plan's limit may be minutes old, which lets a late row in."""
    rules = shaping.rules
    limit_ms = expired_before_ms(SinkName(sink), properties) if rules and rules.late_by else None
    if rules is None or limit_ms is None:
        return shaping
    from headgate.tables.iceberg.maintenance.row_expiry import (
        limit_as_filter_literal,
    )  # reads files

    kept = rules.with_row_age_limit(
        limit_as_filter_literal(limit_ms, schema.find_field(rules.late_by))
    )
    return replace(shaping, rules=kept)


def _is_folder_inside(start: TableStart, data_location: str) -> bool:
    inside = start.file_prefix.removeprefix(f"{data_location}/")
    return inside != start.file_prefix and not {"", ".", ".."} & set(inside.split("/"))


def require_own_folder(start: TableStart, data_location: str) -> None:
    """TOKEN-1: refuse a folder outside the table's own data, wherever else the credentials reach.

    It is no reason to stop: the next START may be the coordinator's again.
    """
    if not _is_folder_inside(start, data_location):
        raise FolderElsewhere(
            f"{start.table}: a START on the control topic names the folder {start.file_prefix}, "
            f"which is not below {data_location}/",
            "if the table's owner has moved its data (write.data.path, or its location), the "
            "coordinator looks, and the next START names the new folder; if not, look who may "
            "write to the control topic (docs/guides/security.md)",
        )


def _sort_order_or_unsorted(order: SortOrder, schema: Schema) -> SortOrder:
    """Return the order, unless the transaction's schema is too old to have its columns."""
    known = all(field.source_id in schema.field_ids for field in order.fields)
    return order if known else UNSORTED_SORT_ORDER


def _load_table(catalog: Catalog, start: TableStart) -> Table:
    try:
        table = catalog.load_table(start.table)
    except NoSuchTableError as error:
        raise TableChanged(f"{start.table} does not exist any more") from error
    except OSError as error:
        raise Unreachable(f"{start.table} cannot be loaded: {error}") from error
    if str(table.metadata.table_uuid) != start.uuid:
        raise TableChanged(
            f"{start.table} is another table now: UUID {table.metadata.table_uuid}, "
            f"not {start.uuid}",
            "it was dropped and created again",
        )
    return table


def require_record_columns(table: str, schema: Schema, record_columns: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` unless the table has a column for each part that is wanted."""
    unknown = sorted(set(record_columns) - {*RECORD_PARTS, STRUCT})
    if unknown:
        raise ConfigurationError(
            f"record columns {unknown} are no parts of a record",
            f"known are: {', '.join(RECORD_PARTS)}",
        )
    names = {column.name for column in schema.fields}
    missing = sorted(set(record_columns.values()) - names)
    if missing:
        raise ConfigurationError(f"{table} has no columns {missing} for parts of the records")
