"""Asks the question of ``headgate check`` about records: how they look, and what fits them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headgate.config.cdc_settings import ChangesSettings
from headgate.config.multi_table_settings import OneTableSettings
from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.routed_tables import section_of_table
from headgate.config.sink_sections import FormatSettings
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_format_registry import plugin_format
from headgate.config.table_settings import TableSettings
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import EnvelopeUnfit, RecordsWouldStop
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.cdc.detection import ENVELOPE_FIELDS, EnvelopeCounts, count_envelopes
from headgate.data_plane.cdc.policy import Envelope, Tombstones
from headgate.data_plane.formats.column_options import FROM
from headgate.data_plane.formats.format_registry import ValueOptions, create_record_format
from headgate.data_plane.formats.record_format import DefaultingFormat
from headgate.data_plane.formats.registry.frames import framer_of_keys_and_values, has_glue_frame
from headgate.data_plane.quarantine.rejected_records import ROUTE, TABLE, TOMBSTONE
from headgate.data_plane.routing.keyed_routes import may_lead_to_keyed_table
from headgate.kafka.record_samples import read_newest_records
from headgate.operations.access.kafka_connection import open_reachable_source_topics
from headgate.operations.dry_run import DryRun, dry_run_newest_records

SAMPLE_RECORDS = 200
_TOPICS_MAX = 3
_FRAME_BYTES = 5
_FRAMED = {
    "connect-json": "a schema and a payload in each record",
    "avro-registry": "a schema's id in front, as Avro of a registry has it",
    "json-registry": "a schema's id in front of JSON",
    "glue-registry": "the id of a schema version in front, as AWS Glue's serializers write it",
}


def can_describe_records(settings: SinkSettings) -> bool:
    """Return whether the sink's format has fields that show what its records are."""
    wanted = settings.format
    made = create_record_format(wanted.type, ValueOptions.from_options(wanted.options).of_format)
    shows = not settings.tables or settings.tables.has_keyed_table
    return shows and FROM in getattr(made, "rules", ())


def check_records(settings: SinkSettings) -> str:
    """Describe the newest records of the first topics. Raises ``EnvelopeUnfit``.

    With routes, looks at topics that go to keyed tables.
    """
    with open_reachable_source_topics(settings) as topics:
        known = sorted(topics.describe())
    routing = settings.tables.routing
    names = [n for n in known if not settings.tables or may_lead_to_keyed_table(routing, n)][
        :_TOPICS_MAX
    ]
    descriptions = []
    for name in names:
        reading = framer_of_keys_and_values(settings.format.options, settings.format.key_options)
        records = read_newest_records(settings.kafka, name, SAMPLE_RECORDS, reading)
        descriptions.append(
            check_envelopes_of_values(settings, name, [value for _, value in records])
        )
        require_keys_not_all_json_objects(
            settings, name, [key for key, value in records if value is None]
        )
    return "; ".join(descriptions)


def check_envelopes_of_values(
    settings: SinkSettings, topic: str, values: Sequence[bytes | None]
) -> str:
    """Describe these values. Raises ``EnvelopeUnfit`` if no change among them fits."""
    counts = _count_envelopes(settings.format, settings.format.type, values)
    if not counts.record_count:
        return f"{topic} has no records yet"
    if other := _guess_other_format(settings.format, values, counts):
        raise EnvelopeUnfit(
            f"{topic}: {count_of(counts.record_count, 'record was', 'records were')} looked at, "
            f"and none is read as {settings.format.type}: they have {_FRAMED[other]}",
            f'set format.type = "{other}"',
        )
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.envelopes.items()))
    text = (
        f"{topic}: of {count_of(counts.record_count, 'record')} {found or 'no value can be read'}"
    )
    text += f", {counts.tombstones} without a value" if counts.tombstones else ""
    why = "" if settings.shape.hidden_columns else f": {counts.why}"  # it may show what is hidden
    text += f", {counts.unreadable} not to be read{why}" if counts.unreadable else ""
    text += describe_disposal_of_bad_records(
        settings.quarantine, counts.unreadable, counts.record_count
    )
    text += _describe_columns_with_replaced_nulls(settings.format, values)
    envelope = counts.most_common_envelope
    table = declaration_of_topic_or_empty(settings, topic)
    if envelope is None or not table.key or _does_any_change_fit(settings.changes, table, counts):
        _require_counts_let_sink_start(settings, table, counts, text)
    if envelope is None or _does_any_change_fit(settings.changes, table, counts):
        return text
    if not table.key:
        if envelope is Envelope.PLAIN:
            return text
        return (
            f"{text}; they are changes: with table.key and changes.envelope = "
            f'"{envelope}" they replace and delete rows (docs/guides/upserts-and-deletes.md)'
        )
    raise EnvelopeUnfit(
        f"{text}; changes.envelope is {settings.changes.envelope}",
        f'set changes.envelope = "{envelope}" (docs/guides/upserts-and-deletes.md)',
    )


def describe_disposal_of_bad_records(quarantine: QuarantineSettings, bad: int, records: int) -> str:
    """Say what the sink does with bad records like these, and whether it would put up with them.

    Nothing of a policy that stops before them: that is an error here.
    """
    if not bad or quarantine.policy is Disposal.FAIL:
        return ""
    kept = quarantine.policy is Disposal.QUARANTINE
    text = f"; the sink {f'puts them into {quarantine.table}' if kept else 'leaves them out'}"
    most = quarantine.per_thousand_max
    if bad * 1_000 > records * most:
        text += (
            f", but stops with HG-211 where more than quarantine.per_thousand_max = {most} of a "
            "thousand are bad, as they are here"
        )
    return text


def _require_counts_let_sink_start(
    settings: SinkSettings,
    table: TableSettings | OneTableSettings,
    counts: EnvelopeCounts,
    text: str,
) -> None:
    """Raise ``RecordsWouldStop`` where a start would stop, or keep not one record."""
    quarantine = settings.quarantine
    if counts.unreadable and not counts.envelopes:
        raise RecordsWouldStop(
            text, f"{settings.format.type} reads none of them: correct format.type or its options"
        )
    if counts.unreadable and quarantine.policy is Disposal.FAIL:
        raise RecordsWouldStop(
            f"{text}; quarantine.policy is fail, so the sink would stop there",
            'set quarantine.policy = "quarantine", or mend the producer',
        )
    unkeyed = not settings.tables and not table.key
    if counts.tombstones and unkeyed and quarantine.tombstones is Disposal.FAIL:
        raise RecordsWouldStop(
            f"{text}; quarantine.tombstones is fail, so the sink would stop there",
            'set quarantine.tombstones = "skip" or "quarantine"',
        )


def _describe_columns_with_replaced_nulls(
    declared: FormatSettings, values: Sequence[bytes | None]
) -> str:
    """Say of which columns the records' own schemas let a converter replace the nulls."""
    options = ValueOptions.from_options(declared.options).of_format
    records = create_record_format(declared.type, options)
    if not isinstance(records, DefaultingFormat):
        return ""
    found = records.nullable_fields_with_default([value for value in values if value is not None])
    if not found:
        return ""
    return (
        f"; a null in {', '.join(found)} may have become the column's default before it got here: "
        f"set {records.keeps_nulls} in Kafka Connect (docs/guides/upserts-and-deletes.md)"
    )


def require_keys_not_all_json_objects(
    settings: SinkSettings, topic: str, keys: Sequence[bytes | None]
) -> None:
    """Refuse keys of deleting records that are records themselves, if the sink reads them as text.

    The sink would take each for the value of its only key column. Raises ``EnvelopeUnfit``.
    """
    table = declaration_of_topic_or_empty(settings, topic)
    alike = settings.changes.change_rules_for_key(table.key)
    own = (settings.tables or settings.table).record_columns.key
    if settings.format.key_type or not alike or alike.tombstones is not Tombstones.DELETE:
        return
    if alike.reads_keys_like_values(settings.format.type, own):
        return
    there = [key for key in keys if key is not None]
    if there and all(map(_is_json_object, there)):
        raise EnvelopeUnfit(
            f"{topic}: the keys of all {len(there)} records without a value are JSON objects, and "
            f"are taken for {table.key[0]} as they are",
            'set format.key_type = "json"',
        )


def _is_json_object(key: bytes) -> bool:
    try:
        return isinstance(json.loads(key), dict)
    except (ValueError, RecursionError):  # not UTF-8, for example
        return False


def _count_envelopes(
    declared: FormatSettings, format_name: str, values: Sequence[bytes | None]
) -> EnvelopeCounts:
    own = format_name == declared.type
    options = ValueOptions.from_options(declared.options).of_format if own else {}
    return count_envelopes(values, lambda: create_record_format(format_name, options))


def declaration_of_topic_or_empty(
    settings: SinkSettings, topic: str
) -> TableSettings | OneTableSettings:
    """Return what the sink file declares about the table that takes the topic's records.

    Of several tables it is the first one with a key.
    """
    tables = settings.tables
    if not tables:
        return settings.table
    if target := tables.routing.table_of_topic(topic):
        section = section_of_table(tables, target.table)
    else:
        changed = may_lead_to_keyed_table(tables.routing, topic)
        section = next((each for each in tables.table if each.key and changed), None)
    return section or OneTableSettings(match="")


def _does_any_change_fit(
    changes: ChangesSettings, table: TableSettings | OneTableSettings, counts: EnvelopeCounts
) -> bool:
    """Return whether any value is what the settings say.

    A flattened row may lack its marks, and a plain one may have columns with their names.
    """
    if not table.key:
        return False
    envelope = changes.envelope
    if envelope is Envelope.PLAIN and ENVELOPE_FIELDS & {column.name for column in table.columns}:
        return True
    plain = counts.envelopes[Envelope.PLAIN] if envelope is Envelope.FLATTENED else 0
    return counts.envelopes[envelope] + plain > 0


def _guess_other_format(
    declared: FormatSettings, values: Sequence[bytes | None], counts: EnvelopeCounts
) -> str | None:
    """Return the format that reads all of the values if the declared one reads none."""
    if declared.type != "json":
        return None
    there = [value for value in values if value is not None]
    if there and all(map(has_glue_frame, there)):
        return "glue-registry"
    if there and all(value[:1] == b"\0" for value in there):
        is_json = all(value[_FRAME_BYTES : _FRAME_BYTES + 1] == b"{" for value in there)
        return "json-registry" if is_json else "avro-registry"
    if there and counts.envelopes[Envelope.PLAIN] == len(there):
        enclosed = _count_envelopes(declared, "connect-json", values)
        return "connect-json" if enclosed.envelopes.total() == len(there) else None
    return None


# Asks the question of ``headgate check`` about rows: whether the newest records become some.


def can_dry_run(settings: SinkSettings) -> bool:
    """Return whether records can be tried here: Iceberg's tables, and no transform by Spark."""
    here = not settings.transform or settings.transforms_in_process
    return plugin_format(settings) is None and here


def check_by_dry_run(settings: SinkSettings) -> str:
    """Take some of the newest records through the sink, as ``run --dry-run`` does.

    Raises ``RecordsWouldStop``, and what a batch of these records would raise.
    """
    with open_reachable_source_topics(settings) as topics:
        partitions = sum(len(topic.partitions) for topic in topics.describe().values())
    return check_dry_run_result(
        settings, dry_run_newest_records(settings, max(1, SAMPLE_RECORDS // max(1, partitions)))
    )


def check_dry_run_result(settings: SinkSettings, seen: DryRun) -> str:
    """Describe what the records would become. Raises ``RecordsWouldStop``."""
    accepted = sum(each.records for each in seen.partitions.values())
    quarantine = sum(each.quarantined + each.skipped for each in seen.partitions.values())
    records, bad = accepted + quarantine, seen.bad_record_count
    if not records:
        return "there are no records yet"
    text = f"the {records} newest records fit the columns"
    if bad:
        unlike = (f"{TOMBSTONE}:", f"{ROUTE}:", f"{TABLE}:")
        found = [each for each in seen.misfits if not each.reason.startswith(unlike)]
        first = "".join(f": {each.at} at {each.offset}, {each.reason}" for each in found[:1])
        text = f"of the {records} newest records {bad} do not fit the columns{first}"
        text += describe_disposal_of_bad_records(settings.quarantine, bad, records)
    if left_out := seen.filtered_record_count:
        text += f"; {left_out} are left out by shape.where, maintenance.rows_late or the transform"
    if others := quarantine - bad - left_out:
        text += f"; {others} have no value, or no table"
    _require_dry_run_lets_sink_start(settings, seen, text, none_fits=bad == records)
    return text


def _require_dry_run_lets_sink_start(
    settings: SinkSettings, seen: DryRun, text: str, *, none_fits: bool
) -> None:
    """Raise ``RecordsWouldStop`` where a start would stop, or keep not one record."""
    quarantine = settings.quarantine
    if seen.bad_record_count and quarantine.policy is Disposal.FAIL:
        raise RecordsWouldStop(
            f"{text}; quarantine.policy is fail, so the sink would stop there",
            'set quarantine.policy = "quarantine", correct the columns, or mend the producer',
        )
    if none_fits:
        raise RecordsWouldStop(text, "correct [[table.columns]], or format.type and its options")
    if seen.tombstones and seen.stops_at_tombstone:
        raise RecordsWouldStop(
            f"{text}; quarantine.tombstones is fail, so the sink would stop there",
            'set quarantine.tombstones = "skip" or "quarantine"',
        )
