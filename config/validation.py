"""Checks the relations between a sink's settings. Each violation names the key and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from headgate.config.catalog_settings import Backend
from headgate.config.column_rules import (
    create_format_or_class,
    require_valid_sink_column_rules,
    value_format_of,
)
from headgate.config.kafka_auth_settings import KafkaAuthSettings, require_valid_auth
from headgate.config.keyed_table_checks import require_valid_keyed_tables
from headgate.config.maintenance_settings import require_valid_maintenance
from headgate.config.registry_auth_settings import require_valid_registry_auth
from headgate.config.report_settings import require_valid_reports
from headgate.config.routed_tables import require_valid_routed_tables
from headgate.config.setting_types import Secret, holds_stand_in
from headgate.config.shape_checks import require_valid_shape
from headgate.config.table_declaration import (
    parse_declared_schema,
    require_columns_fit_record_columns,
    require_consistent_columns,
    require_valid_declaration,
    transform_plan,
)
from headgate.config.table_format_registry import require_format_support
from headgate.config.table_settings import ICEBERG, SchemaSettings
from headgate.config.telemetry_and_http_settings import require_valid_observability
from headgate.control_protocol.errors import (
    ColumnsCannotEvolve,
    ConfigurationError,
    JvmMissing,
    MaintenanceUnfit,
    NameReserved,
    ReportUnfit,
    TablesUnfit,
)
from headgate.control_protocol.event_codec import NUMBER_MAX
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.control_protocol.schema_evolution import RESERVED
from headgate.control_protocol.signatures import KEY_CHARACTERS_MIN
from headgate.kafka import client_settings as kafka_keys
from headgate.kafka.authentication import AUTH
from headgate.participant.settings import Incompatible, UnknownFields
from headgate.tables.jvm_start_hiding_secrets import require_no_secret_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.config.sink_sections import SinkSections
    from headgate.config.table_settings import ColumnSettings, RecordColumns, TableSettings


# Refuses column names that Iceberg reserves: engines could not read a table that has one.


def require_no_reserved_columns(settings: SinkSections) -> None:
    """Raises ``NameReserved`` if a table of the sink would have such a column."""
    table, tables = settings.table, settings.tables
    _require_unreserved_columns("table.columns", _column_names(table.columns))
    _require_unreserved_columns("table.record_columns", _record_column_names(table.record_columns))
    _require_unreserved_columns(
        "tables.record_columns", _record_column_names(tables.record_columns)
    )
    for each in tables.table:
        _require_unreserved_columns("tables.table.columns", _column_names(each.columns))


def _column_names(columns: Iterable[ColumnSettings]) -> list[str]:
    return [column.name for column in columns]


def _record_column_names(columns: RecordColumns) -> Iterable[str]:
    return columns.columns_by_part().values()


def _require_unreserved_columns(section: str, names: Iterable[str]) -> None:
    for name in names:
        if name.lower() in RESERVED:
            raise NameReserved(
                f"{section}: the column name {name!r} is reserved by Iceberg",
                f"choose another name, for example kafka{name.lower()}",
            )


# Checks whether a sink file's policy for fields without a column can be carried out.


_Choice = TypeVar("_Choice", UnknownFields, Incompatible)


def require_valid_schema_policy(settings: SinkSections) -> None:
    """Raises ``ColumnsCannotEvolve``, ``ConfigurationError``."""
    if settings.tables:
        if settings.table.schema != SchemaSettings():
            raise TablesUnfit("table.schema is set", "with many tables, use tables.schema")
        _require_valid_schema_settings(settings, "tables.schema", settings.tables.schema)
        for each in settings.tables.table:
            where = f"tables.table {each.match!r}"
            if each.unknown_fields:
                wanted = _parse_choice(
                    f"{where}: unknown_fields", UnknownFields, each.unknown_fields
                )
                _require_unknown_fields_policy_supported(settings, f"{where}: ", wanted)
            if each.incompatible:
                chosen = _parse_choice(f"{where}: incompatible", Incompatible, each.incompatible)
                _require_incompatible_policy_supported(settings, f"{where}: ", chosen)
        return
    _require_valid_schema_settings(settings, "table.schema", settings.table.schema)


def _require_valid_schema_settings(
    settings: SinkSections, section: str, schema: SchemaSettings
) -> None:
    ones = [each.unknown_fields for each in settings.tables.table]
    if schema.readd_dropped and UnknownFields.EVOLVE not in (schema.unknown_fields, *ones):
        raise ConfigurationError(
            f"{section}.readd_dropped is set, but no columns are added",
            f'set {section}.unknown_fields = "evolve", or leave it out',
        )
    _require_unknown_fields_policy_supported(settings, f"{section}.", schema.unknown_fields)
    _require_incompatible_policy_supported(settings, f"{section}.", schema.incompatible)


def _require_incompatible_policy_supported(
    settings: SinkSections, where: str, wanted: Incompatible
) -> None:
    """Require a format that knows field names: only it can read a record again column by column."""
    if wanted is not Incompatible.IGNORE:
        return
    name = settings.format.type
    made = value_format_of(settings)
    if not hasattr(made, "unknown_columns_of_last_decode"):
        raise ColumnsCannotEvolve(
            f'{where}incompatible = "{wanted}": the format {name} does not know fields by name',
            "use json, connect-json, or a format of Avro or Protobuf; or quarantine",
        )


def _parse_choice(where: str, kind: type[_Choice], text: str) -> _Choice:
    try:
        return kind(text)
    except ValueError:
        raise ConfigurationError(
            f"{where} cannot be {text!r}", f"it is one of {', '.join(kind)}"
        ) from None


def _require_unknown_fields_policy_supported(
    settings: SinkSections, where: str, wanted: UnknownFields
) -> None:
    if wanted is UnknownFields.IGNORE:
        return
    described = f'{where}unknown_fields = "{wanted}"'
    if settings.transform:
        raise ColumnsCannotEvolve(
            f"{described} and a transform cannot be combined",
            "a transform declares its own result: leave the transform out, or ignore",
        )
    name = settings.format.type
    made = value_format_of(settings)
    if not hasattr(made, "unknown_columns_of_last_decode"):
        raise ColumnsCannotEvolve(
            f"{described}: the format {name} does not report fields that a table lacks",
            "use json, connect-json, or a format of Avro or Protobuf; or ignore",
        )
    if wanted is UnknownFields.QUARANTINE and settings.quarantine.policy is Disposal.FAIL:
        raise ConfigurationError(
            f"{described}, but quarantine.policy stops the sink at a bad record",
            'set quarantine.policy = "quarantine", or unknown_fields = "fail"',
        )


_SINK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TOPIC_CHARACTERS = "use 1 to 249 of the letters A to Z, digits, '.', '_' and '-'"
_MASTER = re.compile(r"local(\[.+\]|-cluster\[.+\])?|spark://.+|yarn|k8s://.+")
_REMOTE = re.compile(r"local(\[.+\])?|sc://[^/]+.*")
_DURATION_MS_MAX = 366 * 24 * 3_600_000
_MAX_POLL_INTERVAL_MS = 300_000
_SESSION_TIMEOUT_MS = 45_000
"""Both are librdkafka's defaults."""
_ROUNDS_MIN = 4
"""Two rounds and a time-out can pass before a late status is validated; ageing adds a quarter."""


def require_valid_sink(settings: SinkSections) -> None:
    """Raises ``ConfigurationError`` for the first contradiction.

    What needs no library comes first: such mistakes are reported at once. Then the formats of
    records and of tables are asked, and each of them imports what it is made of.
    """
    _require_settings_valid_without_libraries(settings)
    iceberg = settings.table.type == ICEBERG
    if iceberg:
        parse_declared_schema(settings.table)
    require_valid_schema_policy(settings)
    require_valid_routed_tables(settings)
    _require_valid_formats(settings)
    if iceberg:
        require_valid_declaration(settings.table)
    require_valid_sink_column_rules(settings)
    transform_plan(settings.transform)
    require_valid_keyed_tables(settings)
    require_valid_shape(settings)
    require_format_support(settings)


def _require_settings_valid_without_libraries(settings: SinkSections) -> None:
    _require_valid_name_and_source(settings)
    require_valid_signing_keys("control", settings.control.key, settings.control.accepted_key)
    on_executors = settings.spark.is_writer
    require_valid_kafka_settings(settings.kafka, settings.kafka_auth, on_executors=on_executors)
    _require_valid_table(settings.table)
    require_no_reserved_columns(settings)
    _require_numbers_in_range(settings)
    _require_consistent_times(settings)
    if settings.spark.master and settings.spark.remote:
        _raise_wrong_setting("spark.master and spark.remote are both set", "keep one of them")
    _require_valid_spark_address(settings)
    _require_jvm_for_java_catalog(settings)
    for section, named in (
        ("spark.conf", settings.spark.conf),
        ("catalog.properties", settings.catalog.properties),
    ):
        require_no_secret_arguments(named, named.secret_names, section)
    _require_valid_quarantine(settings)
    _require_valid_transform(settings)
    require_valid_observability(settings.telemetry, settings.http)
    require_valid_reports(settings.lineage, settings.signal)
    _require_separate_report_topics(settings)
    require_valid_maintenance(settings.maintenance, settings.coordinator.claim_age_max_ms)
    _require_valid_row_expiry(settings)


def _raise_wrong_setting(message: str, hint: str) -> None:
    raise ConfigurationError(message, hint)


def _require_valid_spark_address(settings: SinkSections) -> None:
    spark = settings.spark
    if spark.master and not (_MASTER.fullmatch(spark.master) or holds_stand_in(spark.master)):
        _raise_wrong_setting(
            f"spark.master cannot be {spark.master!r}",
            'write "local[*]", "spark://HOST:PORT", "yarn" or "k8s://..."',
        )
    if spark.remote and not (_REMOTE.fullmatch(spark.remote) or holds_stand_in(spark.remote)):
        _raise_wrong_setting(
            "spark.remote is no address of Spark Connect", 'write "sc://HOST:PORT"'
        )


def _require_jvm_for_java_catalog(settings: SinkSections) -> None:
    spark = settings.spark
    if settings.catalog.backend is Backend.JAVA and (spark.writer == "in-process" or spark.remote):
        without = "spark.writer is in-process" if not spark.remote else "spark.remote is set"
        raise JvmMissing(
            f"catalog.backend is java, and {without}: this process has no JVM",
            "use a Spark of this process (spark.master), or remove catalog.backend",
        )


def _require_valid_name_and_source(settings: SinkSections) -> None:
    source = settings.source
    if not _SINK_NAME.fullmatch(settings.name):
        _raise_wrong_setting(
            f"name cannot be {settings.name!r}",
            "use up to 63 letters, digits, '-' and '_', beginning with a letter or digit",
        )
    if not source.topics:
        _raise_wrong_setting("source.topics is empty", "name at least one topic")
    # The election topic must be a single topic, so only the later ones may be patterns.
    for topic in (source.topics[0], settings.control.topic):
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            pattern = topic.startswith("^")
            _raise_wrong_setting(
                f"{topic!r} cannot be a Kafka topic" + (" here" if pattern else ""),
                "a pattern may only follow the first" if pattern else _TOPIC_CHARACTERS,
            )
    for topic in source.topics[1:]:
        if not (
            _is_regular_expression(topic) if topic.startswith("^") else _TOPIC.fullmatch(topic)
        ):
            _raise_wrong_setting(
                f"{topic!r} is neither a Kafka topic nor a pattern",
                f'patterns begin with "^"; else {_TOPIC_CHARACTERS}',
            )
    if kafkas := sorted({*source.topics, settings.control.topic} & kafka_keys.TOPICS_OF_KAFKA):
        _raise_wrong_setting(f"{kafkas[0]} is a topic of Kafka's own", "name a topic of yours")
    if source.group_id != source.group_id.strip() or not source.group_id.isprintable():
        _raise_wrong_setting(
            f"source.group_id cannot be {source.group_id!r}",
            "use no blank at its ends and no control characters; leave it out for headgate-NAME",
        )
    if len(set(source.topics)) < len(source.topics):
        _raise_wrong_setting("source.topics names a topic twice", "name each topic once")
    _require_control_topic_is_no_source(source.topics, settings.control.topic)
    if source.start_at not in ("earliest", "latest") and not holds_stand_in(source.start_at):
        assert source.start_at_ms is not None  # the property raises for an invalid time


def _require_control_topic_is_no_source(topics: Iterable[str], control: str) -> None:
    """Refuse a sink that would read its own events, and say more of each, for ever."""
    if control in topics:
        _raise_wrong_setting(
            f"control.topic {control!r} is also a source topic",
            "give the control topic a name of its own",
        )
    if pattern := _pattern_that_matches(topics, control):
        _raise_wrong_setting(
            f"the source's pattern {pattern!r} matches control.topic {control!r}",
            f"leave it out: a pattern may begin with ^(?!{control}$)",
        )


def _pattern_that_matches(topics: Iterable[str], name: str) -> str:
    """Return the first pattern that matches the topic's name; empty if none does."""
    return next((topic for topic in topics if topic.startswith("^") and re.search(topic, name)), "")


def require_valid_signing_keys(section: str, key: Secret, accepted: Secret) -> None:
    """Raise ``ConfigurationError`` for signing keys that are too short, or a second one alone."""
    if accepted and not key:
        _raise_wrong_setting(
            f"{section}.accepted_key is set without {section}.key", f"set {section}.key as well"
        )
    for name, each in (("key", key), ("accepted_key", accepted)):
        if each and len(each.text) < KEY_CHARACTERS_MIN:
            _raise_wrong_setting(
                f"{section}.{name} has {len(each.text)} characters",
                f"use at least {KEY_CHARACTERS_MIN}, such as openssl rand -hex 32 prints",
            )


def _is_regular_expression(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, OverflowError):
        return False
    return True


def require_valid_kafka_settings(
    kafka: Mapping[str, str], auth: KafkaAuthSettings, *, on_executors: bool
) -> None:
    """Raise ``ConfigurationError`` for client settings that no client of headgate may have."""
    if not kafka.get("bootstrap.servers"):
        _raise_wrong_setting(
            'kafka."bootstrap.servers" is missing', 'write "bootstrap.servers" = "host:port"'
        )
    for key in kafka:
        if key == AUTH:
            continue
        reason = kafka_keys.why_key_refused(key)
        if reason is not None:
            _raise_wrong_setting(
                f'kafka."{key}" may not be set', reason or "headgate does not know this key"
            )
        if kafka[key] != "" and not kafka[key].strip():
            _raise_wrong_setting(f'kafka."{key}" is blank', "write its value, or remove the key")
    protocol = kafka.get("security.protocol", "").lower()
    mechanisms = {"sasl.mechanism", "sasl.mechanisms"} & {*kafka}
    if protocol.startswith("sasl") and not mechanisms and not auth:
        _raise_wrong_setting(
            f'kafka."security.protocol" is {protocol}, and kafka."sasl.mechanism" is not set',
            'set it to what the brokers offer, such as "SCRAM-SHA-512" or "PLAIN", or write '
            "[kafka.auth]",
        )
    require_valid_auth(kafka, auth, on_executors=on_executors)


def _require_valid_row_expiry(settings: SinkSections) -> None:
    """EXPIRY-1: refuse rows that cannot expire, or that others answer for."""
    column = settings.maintenance.rows_by
    if not settings.maintenance.rows_after_ms:
        return
    if settings.tables:
        raise MaintenanceUnfit(
            "maintenance.rows_after_ms is set, and routes name the tables",
            "rows expire in the one table of a sink: leave it out, or fill that table by a sink of "
            "its own",
        )
    if settings.table.shared_with:
        raise MaintenanceUnfit(
            "maintenance.rows_after_ms is set together with table.shared_with",
            "the rows of other sinks would expire, too: give each sink a table of its own",
        )
    if settings.maintenance.column_for_skipping_late_rows and (
        settings.table.key or settings.transform
    ):
        raise MaintenanceUnfit(
            'maintenance.rows_late = "skip" is set together with '
            + ("table.key" if settings.table.key else "a transform"),
            "leave it out: late rows are written, and go within hours",
        )
    schema = parse_declared_schema(settings.table)
    if schema is not None and settings.table.type == ICEBERG:
        from headgate.tables.iceberg.maintenance.row_expiry import require_expiry_time_column

        require_expiry_time_column(settings.table.identifier, schema, column)


def _require_valid_table(table: TableSettings) -> None:
    parts = table.identifier.split(".")
    if len(parts) < 2 or not _are_printable_names(parts):
        _raise_wrong_setting(
            f"table.identifier cannot be {table.identifier!r}",
            'write "namespace.table", without control characters and without blanks at the ends',
        )
    if not table.branch:
        _raise_wrong_setting("table.branch is empty", 'write "main", or leave it out')
    require_consistent_columns("table", table)
    if table.create and not (table.columns or table.record_columns.columns_by_part()):
        _raise_wrong_setting(
            "table.create is on, but no column is declared", "add [[table.columns]]"
        )


def _are_printable_names(parts: Sequence[str]) -> bool:
    """Return whether people see of each part what it is."""
    return all(part and part == part.strip() and part.isprintable() for part in parts)


def _require_valid_formats(settings: SinkSections) -> None:
    """Build the formats, which contacts nobody, and let them check their options."""
    wanted = settings.format
    require_valid_registry_auth(settings)
    value_format_of(settings)
    used = (settings.tables or settings.table).record_columns.key or settings.has_keyed_table
    if (wanted.key_type or wanted.key_options) and not used:
        _raise_wrong_setting(
            "format.key_type is set, but no column takes the key", "set table.record_columns.key"
        )
    if wanted.key_type:
        create_format_or_class(wanted.key_type, wanted.key_options)
    elif wanted.key_options:
        _raise_wrong_setting(
            "format.key_options are set without format.key_type", "name the keys' format"
        )


def _require_valid_quarantine(settings: SinkSections) -> None:
    wanted = settings.quarantine
    parts = wanted.table.split(".")
    if (
        len(parts) < 2
        or not _are_printable_names(parts)
        or wanted.table == settings.table.identifier
    ):
        _raise_wrong_setting(
            f"quarantine.table cannot be {wanted.table!r}",
            'write "namespace.table", and another one than table.identifier',
        )
    if not 0 <= wanted.per_thousand_max <= 1_000:
        _raise_wrong_setting(
            "quarantine.per_thousand_max is not within 0 and 1000", "1000 allows any rate"
        )
    if wanted.sample_records_min < 1 or wanted.records_max < 0:
        _raise_wrong_setting(
            "quarantine.sample_records_min is below 1, or records_max below 0",
            "leave them out for the defaults",
        )
    if wanted.dead_letter_topic:
        _require_valid_dead_letters(settings)


def _require_valid_dead_letters(settings: SinkSections) -> None:
    topic = settings.quarantine.dead_letter_topic
    if not settings.quarantine.keeps_rejected_records:
        _raise_wrong_setting(
            "quarantine.dead_letter_topic is set, but nothing comes into the quarantine",
            'set quarantine.policy = "quarantine", or leave the topic out',
        )
    if not _is_topic_name(topic):
        _raise_wrong_setting(f"quarantine.dead_letter_topic cannot be {topic!r}", _TOPIC_CHARACTERS)
    # A sink that read its own dead letters would see them as bad records forever.
    if _is_read_by_sink(settings, topic):
        _raise_wrong_setting(
            f"quarantine.dead_letter_topic {topic!r} is also a source topic or the control topic",
            "give the dead letters a topic of their own, which no pattern of the source matches",
        )


def _is_topic_name(name: str) -> bool:
    return bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


def _is_read_by_sink(settings: SinkSections, topic: str) -> bool:
    """Return whether the topic is one of the source's, or the control topic."""
    topics = settings.source.topics
    named = topic in (*topics, settings.control.topic)
    return named or bool(_pattern_that_matches(topics, topic))


def _require_separate_report_topics(settings: SinkSections) -> None:
    """Refuse topics that the sink reads itself: it would read its own reports for ever."""
    for section, topic in (("lineage", settings.lineage.topic), ("signal", settings.signal.topic)):
        if not topic:
            continue
        if not _is_topic_name(topic):
            raise ReportUnfit(f"{section}.topic cannot be {topic!r}", _TOPIC_CHARACTERS)
        if topic == settings.quarantine.dead_letter_topic or _is_read_by_sink(settings, topic):
            raise ReportUnfit(
                f"{section}.topic {topic!r} is a topic that the sink reads or writes itself",
                "give the reports a topic of their own, which no pattern of the source matches",
            )


def _require_valid_transform(settings: SinkSections) -> None:
    """Check what needs no Spark; the start and ``headgate check`` do the rest."""
    transform, spark = settings.transform, settings.spark
    if transform.sql and transform.python:
        _raise_wrong_setting("transform.sql and transform.python are both set", "keep one of them")
    table, section = settings.table, "tables" if settings.tables else "table"
    filled = (settings.tables or table).record_columns
    require_columns_fit_record_columns("transform.columns", transform.columns, section, filled)
    if transform.columns and not transform:
        _raise_wrong_setting(
            "transform.columns are set without a transform", "set transform.sql or .python"
        )
    if transform.sql and spark.writer == "in-process":
        _raise_wrong_setting(
            "transform.sql needs Spark",
            'set spark.writer = "spark", or write a function of Arrow batches: transform.python',
        )
    if spark.distribution in ("hash", "range") and spark.writer == "in-process":
        _raise_wrong_setting(
            f"spark.distribution = {spark.distribution} needs Spark",
            "leave it out: the single writer in this process brings rows together anyway",
        )


def _require_numbers_in_range(settings: SinkSections) -> None:
    zero_allowed = {"rebalance_delay_ms", "commit_records", "commit_bytes"}
    zero_allowed |= {"records_per_second_max", "bytes_per_second_max"}
    for section in ("coordinator", "participant"):
        values = getattr(settings, section)
        for key in type(values).__dataclass_fields__:
            value = getattr(values, key)
            least = 0 if key in zero_allowed else 1
            if type(value) is int and value < least:
                _raise_wrong_setting(
                    f"{section}.{key} cannot be {value}", f"it must be at least {least}"
                )
            if type(value) is int and key.endswith("_ms"):
                _require_at_most_a_year(f"{section}.{key}", value)
    _require_at_most_a_year("telemetry.interval_ms", settings.telemetry.interval_ms)
    _require_at_most_a_year("maintenance.interval_ms", settings.maintenance.interval_ms)
    _require_at_most_a_year("lineage.every_ms", settings.lineage.every_ms)
    for key in ("commit_records", "commit_bytes", "target_file_bytes"):
        if (value := getattr(settings.coordinator, key)) > NUMBER_MAX:  # no START could carry it
            _raise_wrong_setting(
                f"coordinator.{key} cannot be {value}", f"it must be at most {NUMBER_MAX}"
            )
    if settings.spark.parallelism < 0:
        _raise_wrong_setting("spark.parallelism is negative", "0 means one per core")


def _require_at_most_a_year(key: str, value_ms: int) -> None:
    if value_ms > _DURATION_MS_MAX:
        _raise_wrong_setting(f"{key} cannot be {value_ms}", "it must be at most a year")


def _require_consistent_times(settings: SinkSections) -> None:
    coordinator, participant = settings.coordinator, settings.participant
    if coordinator.retry_backoff_ms > coordinator.retry_backoff_max_ms:
        _raise_wrong_setting(
            "coordinator.retry_backoff_ms is above coordinator.retry_backoff_max_ms",
            "the first wait cannot be longer than the longest",
        )
    # Silence proves that a coordinator is gone only if signs of life come more often than that.
    if participant.presence_interval_ms >= coordinator.election_timeout_ms:
        _raise_wrong_setting(
            f"participant.presence_interval_ms ({participant.presence_interval_ms}) is not below "
            f"coordinator.election_timeout_ms ({coordinator.election_timeout_ms})",
            "signs of life must come more often than that silence",
        )
    # A file is as old as its START; a late status is validated a round later (POSITION-4, TOKEN-1).
    least_ms = _ROUNDS_MIN * (coordinator.commit_interval_ms + coordinator.commit_timeout_ms)
    if coordinator.claim_age_max_ms < least_ms:
        _raise_wrong_setting(
            f"coordinator.claim_age_max_ms ({coordinator.claim_age_max_ms}) is below {least_ms}, "
            f"{_ROUNDS_MIN} times commit_interval_ms and commit_timeout_ms together",
            "raise it, and the age of every orphan clean-up with it, or commit more often: files "
            "would be too old before their turn, and be written again forever",
        )
    # Nobody polls while a partition waits to be released: Kafka would expel the member.
    poll_ms = _kafka_setting_ms(settings, "max.poll.interval.ms", _MAX_POLL_INTERVAL_MS)
    if participant.release_timeout_ms >= poll_ms:
        _raise_wrong_setting(
            f"participant.release_timeout_ms ({participant.release_timeout_ms}) is not below "
            f'kafka."max.poll.interval.ms" ({poll_ms})',
            "the group would expel a member that still finishes its batch",
        )
    session_ms = _kafka_setting_ms(settings, "session.timeout.ms", _SESSION_TIMEOUT_MS)
    if session_ms > poll_ms:
        _raise_wrong_setting(
            f'kafka."session.timeout.ms" ({session_ms}) is above "max.poll.interval.ms" '
            f"({poll_ms})",
            "Kafka's client refuses that",
        )


def _kafka_setting_ms(settings: SinkSections, key: str, default: int) -> int:
    text = settings.kafka.get(key, str(default))
    if holds_stand_in(text):
        return default
    if not text.isdecimal():
        _raise_wrong_setting(
            f'kafka."{key}" cannot be {text!r}', "write a whole number of milliseconds"
        )
    return int(text)
