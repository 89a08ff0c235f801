"""Defines the sections of a sink file as frozen values; the reference page is generated from here.

The text under a key says what it means; its unit is in its name, or in its annotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from headgate.config.catalog_settings import CatalogSettings
from headgate.config.cdc_settings import ChangesSettings
from headgate.config.kafka_auth_settings import KafkaAuthSettings
from headgate.config.maintenance_settings import MaintenanceSettings
from headgate.config.multi_table_settings import (
    NO_TABLE,
    OneTableSettings,
    TablesSettings,
    choose_primary_table,
)
from headgate.config.quarantine_settings import QuarantineSettings, RoutedQuarantine
from headgate.config.registry_auth_settings import RegistryAuthSettings
from headgate.config.report_settings import LineageSettings, SignalSettings
from headgate.config.setting_types import (
    Properties,
    Secret,
    Text,
    TextOrNumber,
    query_of_url,
    resolve_references,
    secrets_in_url_query,
)
from headgate.config.shape_settings import ShapeSettings
from headgate.config.table_settings import ColumnSettings, TableSettings
from headgate.config.telemetry_and_http_settings import HttpSettings, TelemetrySettings
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.message_encoding import Wire
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.control_protocol.redaction import Redaction
from headgate.control_protocol.signatures import Keys
from headgate.coordinator.settings import CoordinatorSettings
from headgate.participant.settings import Distribution, ParticipantSettings

_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""

_REMOTE_TOKEN = re.compile(r";token=([^;]+)")
"""Where the address of a Spark Connect server holds a secret."""


class GroupProtocol(StrEnum):
    """How the consumer group assigns partitions."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class WriterKind(StrEnum):
    """What turns offset ranges into data files: Spark jobs, or threads of this process."""

    SPARK = "spark"
    IN_PROCESS = "in-process"


def _declared_columns_with_deleted_at(
    table: TableSettings | OneTableSettings, name: str
) -> tuple[ColumnSettings, ...]:
    """Return the table's columns with one of this name, if any are declared."""
    if not table.columns or any(column.name == name for column in table.columns):
        return table.columns
    return (*table.columns, ColumnSettings(name=name, type="timestamptz"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The topics to read, and the consumer group that shares their partitions."""

    topics: tuple[Text, ...]
    """Source topics; the owner of partition 0 of the first one runs the coordinator. The others may
    be patterns that begin with ^."""
    group_id: Text = ""
    """Consumer group of the participants; empty: headgate-NAME."""
    group_protocol: GroupProtocol = GroupProtocol.CLASSIC
    """Kafka's group protocol; consumer (KIP-848) needs Kafka 4.0."""
    start_at: TextOrNumber = "earliest"
    """Where to begin reading at the very first start: earliest, latest, an RFC 3339 time with its
    zone from 1970 on, or epoch milliseconds. Later starts continue from the table."""

    @property
    def start_at_ms(self) -> int | None:
        """Return ``start_at`` as epoch milliseconds; ``None`` for earliest or latest."""
        return (
            None if self.start_at in ("earliest", "latest") else parse_timestamp_ms(self.start_at)
        )


def parse_timestamp_ms(text: str, key: str = "source.start_at") -> int:
    """Parse RFC 3339 with a zone, or epoch milliseconds, from 1970 on.

    Raises ``ConfigurationError``.
    """
    if text.isdecimal() and int(text) <= _LATEST_MS:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    # Kafka takes negative times for words: -1 is the latest offset.
    if moment is None or moment.tzinfo is None or moment.timestamp() < 0:
        raise ConfigurationError(
            f"{key} cannot be {text!r}",
            ('write "earliest", "latest", ' if key == "source.start_at" else "write ")
            + 'a time from 1970 on, like "2026-01-31T06:00:00Z", or epoch milliseconds',
        )
    return int(moment.timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """The control topic. It has one partition, and any number of sinks may share it."""

    topic: Text = "headgate-control"
    """Topic through which coordinator and participants communicate; created if missing."""
    key: Secret = Secret()
    """Secret that signs every event, as ${file:PATH} or ${env:NAME}: at least 32 characters, the
    same for all members; empty: events are not signed."""
    accepted_key: Secret = Secret()
    """A second key, accepted while keys are rotated (docs/guides/security.md)."""

    @property
    def signing_keys(self) -> Keys:
        return Keys(tuple(key.text for key in (self.key, self.accepted_key) if key))


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSettings:
    """How the bytes of values and keys are encoded; docs/guides/record-formats.md describes each
    format."""

    type: Text = "json"
    """Format of the values: json, json-registry, connect-json, avro, avro-registry, protobuf,
    protobuf-registry, glue-registry, csv, string, bytes, or one that an installed package
    registers."""
    options: Properties = Properties()
    """Options of the format. Every format accepts case-insensitive (false or true)."""
    key_type: Text = ""
    """Format of the keys, if table.record_columns.key or table.key is set; empty: string for a text
    column, bytes for any other; for table.key see docs/guides/upserts-and-deletes.md."""
    key_options: Properties = Properties()
    """Options of the key format."""
    auth: RegistryAuthSettings = RegistryAuthSettings()
    """Tokens for the schema registry."""

    def __post_init__(self) -> None:
        options = self.auth.options_with_auth_json(self.options, self.type)
        key_options = self.auth.options_with_auth_json(self.key_options, self.key_type)
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "key_options", key_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSettings:
    """What happens to records between decoding and writing; docs/guides/transforms.md has the
    rules."""

    sql: Text = ""
    """Spark SQL of the form "SELECT expressions FROM records WHERE condition"; a record becomes one
    row or none."""
    python: Text = ""
    """Instead of sql: "package.module:function", a function that takes the records and returns at
    most one row for each: as DataFrames of Spark's, or as Arrow batches with spark.writer =
    "in-process"."""
    columns: tuple[ColumnSettings, ...] = ()
    """Columns into which values are decoded, in the form of table.columns; none: the table's own.
    """

    def __bool__(self) -> bool:
        return bool(self.sql or self.python)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    "How the data files are written."

    writer: WriterKind = WriterKind.SPARK
    """Write with Spark jobs, or inside the participant's process without Spark."""
    master: Text = ""
    """Spark master; empty: as given by spark-submit, else local[*]."""
    remote: Text = field(default="", repr=False)  # it may hold a token
    """Spark Connect address (sc://...), instead of a master."""
    app_name: Text = ""
    """Application name in Spark's UI; empty: headgate-NAME."""
    distribution: Distribution = Distribution.TABLE
    """How Spark distributes a batch's rows before they are written: none, hash (all rows of a table
    partition go to one task), range (also sorted in the table's sort order), or table (the table
    property write.distribution-mode, else none)."""
    parallelism: Annotated[int, "tasks"] = 0
    """Tasks per batch; 0: one per core of Spark or of this machine."""
    conf: Properties = Properties()
    """Additional Spark configuration."""

    @property
    def is_writer(self) -> bool:
        return self.writer is WriterKind.SPARK


def secret_url_paths(*urls: str) -> Iterator[str]:
    """Yield what may be a secret in the URLs of web hooks: all behind the host."""
    for url in urls:
        found = urlsplit(url)
        behind = f"{found.path}?{found.query}" if found.query else found.path
        if behind.strip("/"):
            yield behind


def _url_query_and_its_secrets(url: str) -> Iterator[str]:
    """Yield a URL's query, which a client that fails repeats, and each secret in it on its own."""
    if query := query_of_url(url):
        yield query
        yield from secrets_in_url_query(url)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSections:
    """The sections of one sink file, each for itself; ``SinkSettings`` go together.

    ``kafka`` holds librdkafka's own keys. With ``tables``, the ledger is the ``table`` that leads.
    """

    name: Annotated[SinkName, AfterValidator(resolve_references)]
    """Name of the sink. It also names the tag that serves as the sink's lock, so never change it.
    """
    source: SourceSettings
    """The topics to read."""
    kafka: Properties
    """Client settings in librdkafka's names, limited to an allow-list."""
    kafka_auth: Annotated[KafkaAuthSettings, Field(alias="kafka.auth")] = KafkaAuthSettings()
    """How clients of Kafka get tokens; docs/guides/kafka-authentication.md has an example of each.
    """
    control: ControlSettings = ControlSettings()
    """The control topic."""
    catalog: CatalogSettings = CatalogSettings()
    """The Iceberg catalog."""
    table: TableSettings = NO_TABLE
    """The table to fill, unless [tables] declares many."""
    tables: TablesSettings = TablesSettings()
    """Many tables to fill; see docs/guides/many-tables.md."""
    changes: ChangesSettings = ChangesSettings()
    """How records change a keyed table's rows."""
    format: FormatSettings = FormatSettings()
    """How values and keys are decoded."""
    quarantine: QuarantineSettings = QuarantineSettings()
    """What happens to bad records."""
    shape: ShapeSettings = ShapeSettings()
    """Which records become rows, and what nobody may see of them."""
    transform: TransformSettings = TransformSettings()
    """What happens to records before they are written."""
    coordinator: CoordinatorSettings = CoordinatorSettings()
    """When and how commits are made."""
    participant: ParticipantSettings = ParticipantSettings()
    """How batches are read and written."""
    spark: SparkSettings = SparkSettings()
    """How the data files are written."""
    maintenance: MaintenanceSettings = MaintenanceSettings()
    """Maintenance of the tables; see docs/guides/maintenance.md."""
    telemetry: TelemetrySettings = TelemetrySettings()
    """Metrics; docs/reference/metrics.md lists them."""
    lineage: LineageSettings = LineageSettings()
    """OpenLineage events of the sink's epochs."""
    signal: SignalSettings = SignalSettings()
    """A message to others once the table is complete up to an hour or a day."""
    http: HttpSettings = HttpSettings()
    """Probes, metrics and the status page over HTTP."""

    def __post_init__(self) -> None:
        group_id = self.source.group_id or f"headgate-{self.name}"
        app_name = self.spark.app_name or f"headgate-{self.name}"
        object.__setattr__(self, "source", replace(self.source, group_id=group_id))
        object.__setattr__(self, "spark", replace(self.spark, app_name=app_name))
        object.__setattr__(self, "kafka", self.kafka_auth.kafka_settings_with_auth_json(self.kafka))
        self._declare_deleted_at_columns()
        object.__setattr__(self, "table", choose_primary_table(self.table, self.tables))
        quarantine = self.quarantine.table or f"{self.table.identifier}_quarantine"
        named = replace(self.quarantine, table=quarantine)
        if self.tables and self.tables.unmatched is Disposal.QUARANTINE:
            named = RoutedQuarantine(**{f.name: getattr(named, f.name) for f in fields(named)})
        object.__setattr__(self, "quarantine", named)

    def _declare_deleted_at_columns(self) -> None:
        """Declare the column in which deletes mark rows, in keyed tables whose columns are."""
        if not self.changes.marks_deleted_rows:
            return
        name = self.changes.deleted_at
        table, tables = self.table, self.tables
        if table.key:
            object.__setattr__(
                self,
                "table",
                replace(table, columns=_declared_columns_with_deleted_at(table, name)),
            )
        some = tuple(
            replace(each, columns=_declared_columns_with_deleted_at(each, name))
            if each.key
            else each
            for each in tables.table
        )
        if some != tables.table:
            object.__setattr__(self, "tables", replace(tables, table=some))

    @property
    def bad_record_limits(self) -> BadRecordLimits:
        """Return what a coordinator tolerates: it refuses a claim beyond these settings."""
        disposals = [self.quarantine.policy, self.quarantine.tombstones]
        disposals += [self.tables.unmatched] if self.tables else []
        passes = bool(
            self.transform or self.shape.where or self.maintenance.column_for_skipping_late_rows
        )
        passes |= self.has_keyed_table and self.changes.may_skip_records
        return replace(
            self.quarantine.bad_record_limits, may_skip=passes or Disposal.SKIP in disposals
        )

    @property
    def transforms_in_process(self) -> bool:
        """Return whether a transform runs in the participant's process, without Spark."""
        return bool(self.transform) and not self.spark.is_writer

    @property
    def has_quarantine_of_other_format(self) -> bool:
        """Return whether the quarantine is of another format than the table."""
        return self.quarantine.keeps_rejected_records and self.quarantine.type not in (
            "",
            self.table.type,
        )

    def table_type_of(self, table: str) -> str:
        """Return the format of a table of this sink."""
        is_foreign = self.has_quarantine_of_other_format and table == self.quarantine.table
        return self.quarantine.type if is_foreign else self.table.type

    @property
    def has_keyed_table(self) -> bool:
        """Return whether records are changes of keys in some table."""
        return bool(self.table.key) or self.tables.has_keyed_table

    @property
    def replaces_primary_rows(self) -> bool:
        """Return whether commits replace rows of the one table (KEY-1); those of a history only add
        some (KEY-14)."""
        return bool(self.table.key) and not self.changes.history

    @property
    def event_wire(self) -> Wire:
        """Return how this sink's events are written, and which ones are trusted."""
        return Wire(self.name, self.control.signing_keys)

    @property
    def election_topic(self) -> str:
        """The topic whose partition 0 makes its owner the coordinator."""
        return self.source.topics[0]

    def redact(self, text: str) -> str:
        """Mask this sink's secrets in a text from a foreign library."""
        return self.redaction(text)

    @property
    def redaction(self) -> Redaction:
        """Return the mask for this sink's secrets; tasks have ``redaction_for_tasks`` instead."""
        catalogs = (self.catalog.properties, self.quarantine.catalog.properties)
        some = (*catalogs, self.spark.conf, self.telemetry.otlp_headers)
        tokens = (
            *(self.http.viewer_token.text, self.http.operator_token.text),
            *(self.lineage.token.text, self.signal.token.text),
            *secret_url_paths(self.lineage.url, self.signal.url),
            *_url_query_and_its_secrets(self.telemetry.otlp_endpoint),
            *(self.kafka_auth.client_secret.text, self.kafka_auth.private_key.text),
            *(self.format.auth.client_secret.text, self.format.auth.private_key.text),
            *_REMOTE_TOKEN.findall(self.spark.remote),
        )
        keys = frozenset((*self.control.signing_keys.texts, *filter(None, tokens)))
        read_with = self.redaction_for_tasks.secrets
        return Redaction(keys.union(read_with, *(each.secrets for each in some)))

    @property
    def redaction_for_tasks(self) -> Redaction:
        """Return the mask for the secrets that reading records takes.

        It travels to Spark's executors with those secrets, and must hold no other.
        """
        some = (self.kafka, self.format.options, self.format.key_options)
        own = filter(None, (self.shape.hash_key.text,))
        return Redaction(frozenset(own).union(*(each.secrets for each in some)))
