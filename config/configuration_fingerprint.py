"""Selects the parts of a sink file that all participants of the sink must share (rule CONFIG-1).

These parts decide which records become which rows, and where the rows go. Everything else may
differ between machines, or while settings are rolled out one participant at a time: addresses,
credentials, intervals, sizes, limits, the writer. Control topic, table and consumer group are
compared elsewhere: nothing is heard on another control topic, START names the table, and the commit
record names the group.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, astuple

from headgate.config.column_rules import rules_of_decoded_columns
from headgate.config.setting_types import Properties
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_settings import ICEBERG, SchemaSettings
from headgate.control_protocol.events import DIGEST
from headgate.data_plane.cdc.policy import PLACEHOLDER
from headgate.participant.settings import Incompatible

_DIGEST_CHARS, _KEY_CHARS = 16, 8
_PLAIN_CHARS_MAX = 200
_ADDRESSES = "registry."
"""Options that locate a schema registry or authenticate to it."""

_WHERE_USED = (
    "table.type",
    "table.key",
    "changes",
    "quarantine.type",
    "shape",
    "maintenance.rows_late",
    "tables.route",
    "tables.unmatched",
    "tables.record_columns",
    "tables.table",
    "tables.schema",
    "tables.create.schema",
)
"""Keys that are empty where a sink file does not use what they stand for."""


def settings_to_agree_on(settings: SinkSettings) -> Mapping[str, str]:
    """Return what START carries about this file: short values as text, long ones as digests.

    Participants of two releases compare these (CONFIG-1). So what a release adds must leave them
    as they were where it is not used: a key of ``_WHERE_USED``, or no further element of a digest.
    A field more in a rule that is digested whole would stop a fleet in the middle of an upgrade.
    A key is never absent: one that only one of two files has would not be compared.
    """
    return {**dict.fromkeys(_WHERE_USED, ""), **_used_settings_to_agree_on(settings)}


def configuration_digest(settings: SinkSettings) -> str:
    """Return what differs whenever two sink files differ in what all participants must share.

    What a file does not use is no part of it: a key that a release adds leaves it as it was.
    """
    return hash_of_value(_used_settings_to_agree_on(settings))


def _used_settings_to_agree_on(settings: SinkSettings) -> Mapping[str, str]:
    quarantine, form = settings.quarantine, settings.format
    late_by = _text_or_digest(settings.maintenance.column_for_skipping_late_rows)
    rules = rules_of_decoded_columns(settings)
    return {
        "source.topics": _text_or_digest(", ".join(settings.source.topics)),
        "table.branch": _text_or_digest(settings.table.branch),
        "table.record_columns": _text_or_digest(
            json.dumps(settings.table.record_columns.columns_by_part())
        ),
        "table.columns": _prefixed_hash({name: astuple(rule) for name, rule in rules.items()})
        if rules
        else "",
        "table.schema": _schema_policy_text(settings.table.schema),
        **({"table.type": settings.table.type} if settings.table.type != ICEBERG else {}),
        **_keyed_settings_to_compare(settings),
        "format": _prefixed_hash(
            [
                form.type,
                _options_to_compare(form.options),
                form.key_type,
                _options_to_compare(form.key_options),
            ]
        ),
        "quarantine.policy": quarantine.policy.value,
        "quarantine.tombstones": quarantine.tombstones.value,
        "quarantine.table": _text_or_digest(
            quarantine.table if quarantine.keeps_rejected_records else ""
        ),
        **({"quarantine.type": quarantine.type} if settings.has_quarantine_of_other_format else {}),
        "transform": _transform_digest(settings),
        **({"shape": _shape_digest(settings)} if settings.shape else {}),
        **({"maintenance.rows_late": f"skip by {late_by}"} if late_by else {}),
        **_route_settings_to_compare(settings),
    }


def _transform_digest(settings: SinkSettings) -> str:
    """Return a digest; one function gets other rows from Spark than in process."""
    transform = asdict(settings.transform)
    if not settings.transform:
        return ""
    return _prefixed_hash(
        [transform, "in-process"] if settings.transforms_in_process else transform
    )


def _keyed_settings_to_compare(settings: SinkSettings) -> Mapping[str, str]:
    """Return the settings that decide which row a record changes; empty without a key."""
    changes, key = settings.changes, settings.table.key
    if not settings.has_keyed_table:
        return {}
    values: list[str] = [
        *(changes.envelope, changes.tombstones, changes.on_truncate, changes.unavailable_value)
    ]
    if changes.unavailable_placeholder != PLACEHOLDER:
        values.append(_text_or_digest(changes.unavailable_placeholder))
    if changes.history:
        values.append(f"history, deletes in {changes.deleted_at}")
    elif changes.marks_deleted_rows:
        values.append(f"{changes.on_delete} in {changes.deleted_at}")
    named = {"table.key": _text_or_digest(", ".join(key))} if key else {}
    return {**named, "changes": ", ".join(values)}


def _shape_digest(settings: SinkSettings) -> str:
    """Return a digest of the rules; of the key it tells only whether it is the same."""
    shape = settings.shape
    key = hmac.digest(shape.hash_key.text.encode(), b"headgate", "sha256").hex()[:_KEY_CHARS]
    rules = [shape.where, shape.hash, shape.tables, key if shape.hash else ""]
    lists = [*(astuple(each) for each in shape.expect), *(astuple(each) for each in shape.mask)]
    return _prefixed_hash([*rules, *lists])


def _route_settings_to_compare(settings: SinkSettings) -> Mapping[str, str]:
    """Return the settings that decide which table takes a record; empty for a single table."""
    tables = settings.tables
    if not tables:
        return {}
    rules = [
        (
            each.match,
            [astuple(column) for column in each.columns],
            each.unknown_fields,
            each.incompatible,
            *([each.key] if each.key else []),
        )
        for each in tables.table
    ]
    return {
        "tables.route": _prefixed_hash([asdict(route) for route in tables.route]),
        "tables.unmatched": tables.unmatched.value,
        "tables.record_columns": _text_or_digest(
            json.dumps(tables.record_columns.columns_by_part())
        ),
        "tables.table": _prefixed_hash(rules) if rules else "",
        "tables.schema": _schema_policy_text(tables.schema),
        "tables.create.schema": tables.create.schema.value,
    }


def _schema_policy_text(schema: SchemaSettings) -> str:
    readded = ", readd_dropped" if schema.readd_dropped else ""
    kept = schema.incompatible is Incompatible.QUARANTINE
    return schema.unknown_fields + readded + ("" if kept else f", {schema.incompatible}")


def _options_to_compare(options: Properties) -> Mapping[str, str]:
    """Return the options without addresses, with secrets masked; a schema read from a file is not a
    secret."""
    return {
        name: options[name] if name in ("schema", "descriptor") else shown
        for name, shown in options.masked_values().items()
        if not name.startswith(_ADDRESSES)
    }


def _text_or_digest(text: str) -> str:
    return text if len(text) <= _PLAIN_CHARS_MAX else _prefixed_hash(text)


def hash_of_value(value: object) -> str:
    """Return a short text that differs whenever the value differs."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]


def _prefixed_hash(value: object) -> str:
    return DIGEST + hash_of_value(value)
