"""What a sink file says of a keyed table: whether it can be (rules U1, U12)."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from headgate.control_protocol.bad_records import Disposal
from headgate.control_protocol.errors import KeyUnfit
from headgate.coordinator.settings import RollbackPolicy
from headgate.data.envelopes.changes import Envelope, Tombstones
from headgate.data.formats.column_rules import FROM
from headgate.data.formats.registry import ValueOptions, record_format
from headgate.participant.settings import Distribution, Incompatible, UnknownFields
from headgate.sink.declaration import declared
from headgate.tables.iceberg.creation import key_ids

if TYPE_CHECKING:
    from headgate.sink.changes_settings import ChangesSettings
    from headgate.sink.settings import SinkSettings

_ENCLOSED = frozenset({"connect-json", "avro-registry", "protobuf-registry"})
"""Formats that write a schema, or its number, beside each key: its bytes are not the key's text."""


def check_keyed(settings: SinkSettings) -> None:
    """Raises ``KeyUnfit`` for what does not go together with a key of the table."""
    table, changes = settings.table, settings.changes
    if changes.index_memory_bytes < 1:
        raise KeyUnfit("changes.index_memory_bytes is below 1", "leave it out for 4 GiB")
    if not table.key:
        _refuse_changes(changes)
        return
    if settings.tables:
        raise KeyUnfit("table.key is set beside [tables]", "routed tables have no key yet")
    if table.columns:
        key_ids(declared(table).schema(), table.key)
    _check_envelope(settings)
    _check_coordinates(settings)
    _check_policies(settings)
    _check_message_keys(settings)


def _refuse_changes(changes: ChangesSettings) -> None:
    """What says how records change rows says nothing without a key."""
    for each in fields(changes):
        if getattr(changes, each.name) != each.default:
            raise KeyUnfit(
                f"changes.{each.name} is set, but table.key is not",
                "name the columns of the key, or leave [changes] out: every record adds a row",
            )


def _check_envelope(settings: SinkSettings) -> None:
    """The row is found inside of the record, and the key of the row before beside it."""
    envelope, wanted = settings.changes.envelope, settings.format
    made = record_format(wanted.type, ValueOptions.taken(wanted.options).of_format)
    if envelope is not Envelope.PLAIN and FROM not in getattr(made, "rules", ()):
        raise KeyUnfit(
            f'changes.envelope = "{envelope}", and values of the format {wanted.type} have no '
            "fields inside of fields",
            'use json, connect-json or a format of Avro or Protobuf; or envelope = "plain"',
        )
    for column in settings.table.columns:
        if column.name in settings.table.key and column.default is not None:
            raise KeyUnfit(
                f"the column {column.name!r} of the key has a default",
                "a record that lacks its key names no row; leave the default out",
            )


def _check_coordinates(settings: SinkSettings) -> None:
    places, topics = settings.table.record_columns, settings.source.topics
    if not (places.partition and places.offset):
        raise KeyUnfit(
            "table.key is set, but no column says which record a row is of",
            "set table.record_columns.partition and .offset",
        )
    if not places.topic and (len(topics) > 1 or any(name.startswith("^") for name in topics)):
        raise KeyUnfit(
            "table.key is set, and records of several topics go into the table",
            "set table.record_columns.topic",
        )
    wanted = {places.partition: "int", places.offset: "long", places.topic: "string"}
    for column in settings.table.columns:
        if column.name and wanted.get(column.name, column.type) != column.type:
            raise KeyUnfit(
                f"table.key is set, and the column {column.name!r} is of type {column.type}",
                f"a keyed table has {wanted[column.name]} there",
            )


def _check_policies(settings: SinkSettings) -> None:
    """Name each setting that keyed tables do not have."""
    table, schema = settings.table, settings.table.schema
    if settings.transform:
        raise KeyUnfit(
            "table.key is set beside a transform",
            "a keyed table takes records as they are; remove [transform], or the key",
        )
    if table.shared_with:
        raise KeyUnfit(
            "table.key is set beside table.shared_with",
            "a keyed table is filled by one sink; give each sink a table of its own",
        )
    if schema.unknown_fields is not UnknownFields.IGNORE:
        raise KeyUnfit(
            f'table.schema.unknown_fields = "{schema.unknown_fields}" does not go with table.key',
            "the columns of a keyed table are added by hand; leave it out",
        )
    if schema.incompatible is not Incompatible.QUARANTINE:
        raise KeyUnfit(
            f'table.schema.incompatible = "{schema.incompatible}" does not go with table.key',
            "a value that does not fit makes its record a bad one; leave it out",
        )
    if settings.quarantine.tombstones is not Disposal.FAIL:
        raise KeyUnfit(
            "quarantine.tombstones is set beside table.key",
            "changes.tombstones says what a record without a value does",
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


def _check_message_keys(settings: SinkSettings) -> None:
    """A tombstone is known by its message's key, of which something has to say how it is read."""
    table, changes = settings.table, settings.changes.of(settings.table.key)
    if changes is None or changes.tombstones is not Tombstones.DELETE:
        return
    values, own = settings.format, table.record_columns.key
    if values.key_type or changes.keys_like_values(values.type, own):
        return
    if len(table.key) > 1:
        raise KeyUnfit(
            "table.key has several columns, and nothing says how keys of messages are read",
            'set format.key_type, for example "json"; or changes.tombstones = "fail"',
        )
    if values.type in _ENCLOSED and own not in table.key:
        raise KeyUnfit(
            f"nothing says whether the keys of {values.type} records are written as their values",
            f'set format.key_type: "{values.type}" with its key_options; or "string" where a key '
            "is nothing but its text",
        )
