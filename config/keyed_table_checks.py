"""Checks a sink file's settings for keyed tables (rules KEY-1, KEY-12)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from headgate.config.cdc_settings import OnPartitionsAdded
from headgate.config.column_rules import rules_of_columns, value_format_of
from headgate.config.routed_tables import schema_policy_of
from headgate.config.table_declaration import arrow_schema_of, declaration_of
from headgate.config.table_settings import SchemaSettings, TableSettings
from headgate.control_protocol.errors import KeyUnfit
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.coordinator.settings import OffsetPolicy, RollbackPolicy
from headgate.data_plane.cdc.policy import Envelope, Tombstones, stable_fields_instead_of
from headgate.data_plane.formats.column_options import FROM, parse_path
from headgate.data_plane.routing.keyed_routes import (
    may_lead_to_keyed_table,
    may_lead_to_keyed_table_from,
)
from headgate.data_plane.routing.routes import Route, Routing
from headgate.participant.settings import Distribution, Incompatible, UnknownFields

if TYPE_CHECKING:
    from headgate.config.cdc_settings import ChangesSettings
    from headgate.config.sink_sections import SinkSections

_ENCLOSED = frozenset({"connect-json", "avro-registry", "glue-registry", "protobuf-registry"})
"""Formats that put a schema, or its id, next to each key: the bytes are not the key's text."""


def require_valid_keyed_tables(settings: SinkSections) -> None:
    """Raises ``KeyUnfit`` for settings that do not go together with a table's key."""
    from headgate.data_plane.cdc.unavailable_values import placeholder_of

    changes = settings.changes
    if changes.index_memory_bytes < 1:
        raise KeyUnfit("changes.index_memory_bytes is below 1", "leave it out for 4 GiB")
    if changes.growth_ms < 1:
        raise KeyUnfit("changes.growth_ms is below 1", "leave it out for 10 minutes")
    try:
        placeholder_of(changes.unavailable_placeholder)
    except ValueError as error:
        raise KeyUnfit(
            f"changes.unavailable_placeholder: {error}",
            "give it the text of the connector's unavailable.value.placeholder, or leave it out",
        ) from None
    if not changes.marks_deleted_rows and changes.deleted_at != type(changes)().deleted_at:
        raise KeyUnfit(
            "changes.deleted_at is set, and deletes mark no rows",
            'set changes.on_delete = "mark", or leave it out',
        )
    if not settings.has_keyed_table:
        _require_default_changes_section(changes)
    elif settings.tables:
        _require_valid_routed_keys(settings)
    else:
        _require_valid_keyed_table(settings, settings.table)
        if settings.quarantine.tombstones is not Disposal.FAIL:
            raise KeyUnfit(
                "quarantine.tombstones is set together with table.key",
                "changes.tombstones says what a record without a value does",
            )


def _require_valid_routed_keys(settings: SinkSections) -> None:
    tables = settings.tables
    routing = tables.routing
    for number, route in enumerate(routing.routes):
        if route.is_by_record_value and may_lead_to_keyed_table_from(routing, number):
            _require_one_table_per_key(settings, route, number + 1)
    for each in tables.table:
        if not each.key:
            continue
        policy = schema_policy_of(tables, each)
        table = TableSettings(
            identifier=each.match,
            columns=each.columns,
            key=each.key,
            properties=tables.create.properties,
            record_columns=tables.record_columns,
            shared_with=tables.shared_with,
            schema=SchemaSettings(
                unknown_fields=policy.unknown_fields, incompatible=policy.incompatible
            ),
        )
        try:
            _require_valid_keyed_table(settings, table)
        except KeyUnfit as error:
            where = f"tables.table {each.match!r}"
            raise KeyUnfit(f"{where}: {error.message}", error.hint) from None


def _require_one_table_per_key(settings: SinkSections, route: Route, route_number: int) -> None:
    """All records of a key have to go to one table, those that delete it too."""
    changes = settings.changes
    where = f"route {route_number} looks at the value of records that may be of a table with a key"
    if changes.tombstones is Tombstones.DELETE:
        raise KeyUnfit(
            f"{where}, and records without a value delete rows there: nothing says of which table",
            'set changes.tombstones = "skip" where another record says each delete, as Debezium\'s '
            "do; or let the route look at a header; or give each table a topic of its own",
        )
    if instead := route.field and stable_fields_instead_of(
        changes.envelope, parse_path(route.field)
    ):
        raise KeyUnfit(
            f"{where}: not every event has {route.field}, or has the same there",
            f"look at {instead}, or at a header; or give each table a topic of its own",
        )


def _require_valid_keyed_table(settings: SinkSections, table: TableSettings) -> None:
    if table.columns:
        from headgate.tables.iceberg.table_creation import require_key_field_ids

        require_key_field_ids(declaration_of(table).schema(), table.key)
    if settings.changes.marks_deleted_rows:
        _require_table_can_mark_deletes(settings, table)
    if settings.changes.history:
        _require_settings_keep_version_order(settings)
    _require_readable_envelope_and_key(settings, table)
    _require_record_coordinate_columns(settings, table)
    _require_settings_fit_keyed_table(settings, table)
    _require_message_key_format(settings, table)


def _require_table_can_mark_deletes(settings: SinkSections, table: TableSettings) -> None:
    """KEY-13: refuse what cannot keep rows that were deleted."""
    changes = settings.changes.change_rules_for_key(table.key)
    assert changes is not None, "the table has a key"
    if settings.shape.where:
        raise KeyUnfit(
            f"{changes.delete_marking_setting} is set together with shape.where",
            "a row that does not match would be kept, marked, with all its values; leave one out",
        )
    for column in table.columns:
        if column.name == changes.deleted_at and rules_of_columns("table.columns", [column]):
            raise KeyUnfit(
                f"the column {column.name!r} marks rows that were deleted, and has a rule",
                "leave from, unit, value and default out: no field of a record fills it",
            )
    if not table.columns:
        return
    from headgate.data_plane.write.delete_marking import require_markable

    schema = arrow_schema_of(table)
    require_markable(table.identifier, schema, changes, table.record_columns.columns_by_part())


def _require_settings_keep_version_order(settings: SinkSections) -> None:
    """KEY-16: refuse what would take the order from the versions of a key, or some of them."""
    if settings.changes.on_partitions_added is not OnPartitionsAdded.FAIL:
        raise KeyUnfit(
            "changes.on_partitions_added is set together with changes.history",
            "no row tells which partition is younger: leave it out; once partitions are added, the "
            "sink stops, and a new table takes the topic written anew",
        )
    if settings.coordinator.on_topic_recreated is not OffsetPolicy.FAIL:
        raise KeyUnfit(
            "coordinator.on_topic_recreated is set together with changes.history",
            "offsets begin anew there, and versions would go before those they follow: leave it "
            "out, and fill a new table",
        )
    if settings.maintenance.rows_after_ms:
        raise KeyUnfit(
            "maintenance.rows_after_ms is set together with changes.history",
            "a delete's row could go before the version that it ends, which would be valid again: "
            "leave it out; headgate delete takes out all versions of a key",
        )


@dataclass(frozen=True, slots=True)
class KeysByRoute:
    """Implements ``RoutedKeys`` for a sink's routes.

    ``history``: records add versions, and replace no rows (KEY-14); ``single``: of the one table.
    """

    routing: Routing
    history: bool = False
    single: bool = False

    @classmethod
    def from_settings(cls, settings: SinkSections) -> KeysByRoute:
        history = settings.changes.history
        return cls(settings.tables.routing, history, history and bool(settings.table.key))

    def replaces_rows_of(self, table: str) -> bool:
        return not self.history and bool(self.routing.key_of(table))

    def may_feed_keyed_table(self, topic: str) -> bool:  # keys may move all the same (KEY-16)
        return self.single or may_lead_to_keyed_table(self.routing, topic)


def find_added_keyed_partitions(
    settings: SinkSections, stored: Collection[TopicPartition], requested: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """Return requested partitions that are not stored, of known topics that may feed a keyed table
    (KEY-8)."""
    known, routed = {at.topic for at in stored}, KeysByRoute(settings.tables.routing)
    return [
        at
        for at in requested
        if at not in stored
        and at.topic in known
        and (settings.table.key or routed.may_feed_keyed_table(at.topic))
    ]


def _require_default_changes_section(changes: ChangesSettings) -> None:
    """Refuse settings of row changes without a key, because they would have no effect."""
    for each in fields(changes):
        if getattr(changes, each.name) != each.default:
            raise KeyUnfit(
                f"changes.{each.name} is set, but table.key is not",
                "name the columns of the key, or leave [changes] out: every record adds a row",
            )


def _require_readable_envelope_and_key(settings: SinkSections, table: TableSettings) -> None:
    """Require a format that can look into the envelope, and key columns without a default."""
    envelope, wanted = settings.changes.envelope, settings.format
    made = value_format_of(settings)
    if envelope is not Envelope.PLAIN and FROM not in getattr(made, "rules", ()):
        raise KeyUnfit(
            f'changes.envelope = "{envelope}", and values of the format {wanted.type} have no '
            "fields inside of fields",
            'use json, connect-json or a format of Avro or Protobuf; or envelope = "plain"',
        )
    for column in table.columns:
        if column.name in table.key and column.default is not None:
            raise KeyUnfit(
                f"the column {column.name!r} of the key has a default",
                "a record that lacks its key identifies no row; leave the default out",
            )


def _require_record_coordinate_columns(settings: SinkSections, table: TableSettings) -> None:
    places, topics = table.record_columns, settings.source.topics
    section = "tables" if settings.tables else "table"
    if not (places.partition and places.offset):
        raise KeyUnfit(
            "table.key is set, but no column says which record a row comes from",
            f"set {section}.record_columns.partition and .offset",
        )
    several = bool(settings.tables) or len(topics) > 1 or any(t.startswith("^") for t in topics)
    if several and not places.topic:
        raise KeyUnfit(
            "table.key is set, and records of several topics may go into the table",
            f"set {section}.record_columns.topic",
        )
    wanted = {places.partition: "int", places.offset: "long", places.topic: "string"}
    for column in table.columns:
        if column.name and wanted.get(column.name, column.type) != column.type:
            raise KeyUnfit(
                f"table.key is set, and the column {column.name!r} is of type {column.type}",
                f"a keyed table needs {wanted[column.name]} there",
            )


def _require_settings_fit_keyed_table(settings: SinkSections, table: TableSettings) -> None:
    """Name each setting that keyed tables do not support."""
    from headgate.data_plane.cdc.unwrap import ROW_PLACES

    schema = table.schema
    if settings.transform:
        raise KeyUnfit(
            "table.key is set together with a transform",
            "a keyed table takes records as they are; remove [transform], or the key",
        )
    if table.shared_with:
        raise KeyUnfit(
            "table.key is set together with table.shared_with",
            "a keyed table is filled by one sink; give each sink a table of its own",
        )
    watched = schema.unknown_fields is not UnknownFields.IGNORE
    if watched and settings.changes.envelope not in ROW_PLACES:
        raise KeyUnfit(
            f'table.schema.unknown_fields = "{schema.unknown_fields}" does not go with '
            f'changes.envelope = "{settings.changes.envelope}"',
            "its rows are in one of two places; add the columns by hand, and leave it out",
        )
    if schema.incompatible is not Incompatible.QUARANTINE:
        raise KeyUnfit(
            f'table.schema.incompatible = "{schema.incompatible}" does not go with table.key',
            "a value that does not fit makes its record a bad one; leave it out",
        )
    if settings.spark.distribution in (Distribution.HASH, Distribution.RANGE):
        raise KeyUnfit(
            f'spark.distribution = "{settings.spark.distribution}" does not go with table.key',
            "changes are written where they are read; leave it out",
        )
    if settings.coordinator.on_rollback is RollbackPolicy.KEEP_OFFSETS:
        raise KeyUnfit(
            'coordinator.on_rollback = "keep-offsets" does not go with table.key',
            'a keyed table is rolled back with its offsets: "follow-table", or "fail"',
        )


def _require_message_key_format(settings: SinkSections, table: TableSettings) -> None:
    """Require a key format: a tombstone is recognized by its message's key."""
    changes = settings.changes.change_rules_for_key(table.key)
    if changes is None or changes.tombstones is not Tombstones.DELETE:
        return
    values, own = settings.format, table.record_columns.key
    if values.key_type or changes.reads_keys_like_values(values.type, own):
        return
    if len(table.key) > 1:
        raise KeyUnfit(
            "table.key has several columns, and nothing says how message keys are read",
            'set format.key_type, for example "json"; or changes.tombstones = "fail"',
        )
    if values.type in _ENCLOSED and own not in table.key:
        raise KeyUnfit(
            f"nothing says whether the keys of {values.type} records are encoded like their values",
            f'set format.key_type: "{values.type}" with its key_options; or "string" where a key '
            "is nothing but its text",
        )
