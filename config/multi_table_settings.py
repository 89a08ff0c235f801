"""Defines the settings for many tables: the ledger, the routes, and how tables are created."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from headgate.config.setting_types import Properties, Text, Texts
from headgate.config.table_settings import (
    ICEBERG,
    ColumnSettings,
    RecordColumns,
    SchemaSettings,
    TableSettings,
)
from headgate.control_protocol.errors import ConfigurationError, TablesUnfit
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.coordinator.settings import DeliveryLinger
from headgate.data_plane.routing.routes import Route, Routing


class CreateFrom(StrEnum):
    """The source of a missing table's columns."""

    OFF = "off"
    DECLARED = "declared"
    INFER = "infer"
    REGISTRY = "registry"
    CONNECT = "connect"

    @property
    def takes_columns_from_records(self) -> bool:
        """Return whether records, or their schema, determine the columns."""
        return self in (CreateFrom.INFER, CreateFrom.REGISTRY, CreateFrom.CONNECT)


class OnMissing(StrEnum):
    """What happens to a table that holds rows of the sink and is gone (rule LEDGER-2)."""

    SUSPEND = "suspend"
    CREATE = "create"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """Which records go to which table. The first route that matches a record wins."""

    topic: Text = ""
    """Topic to which the route applies, or a pattern that begins with ^; empty: all topics."""
    to: Text
    """Name of the table, as "namespace.name". {topic}, {field}, {header}, {record} and the named
    groups of a pattern are replaced by what they matched, in lower case, with _ instead of anything
    that is neither an ASCII letter nor a digit."""
    value_field: Annotated[Text, Field(alias="field")] = ""
    """Path of the field in the record's value that the route depends on; if the field is missing or
    null, the next route is tried."""
    header: Text = ""
    """Header that the route depends on, instead of a field."""
    record: Text = ""
    """Full name of an Avro record, or a pattern that begins with ^, that the route depends on
    instead."""
    value: Text = ""
    """Required value of the field or header, or a pattern that begins with ^; empty: any."""
    merge: bool = False
    """Whether different names may lead to the same table; if not, records with the second name are
    unmatched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSettings:
    """Whether the coordinator creates missing tables that routes name."""

    schema: CreateFrom = CreateFrom.OFF
    """Whether and how to create missing tables: never (off), or from the columns under
    [[tables.table]] (declared). For tables without declared columns: from the first records (infer,
    for json), from their schema (registry, for formats of a registry, of Avro and of Protobuf), or
    from the schema that they carry (connect, for connect-json)."""
    partition_by: tuple[Text, ...] = ()
    """Partitioning of created tables, as in table.partition_by; day(a|b) takes the first column
    that exists."""
    properties: Texts = Properties()
    """Properties of created tables, with the names that their format defines. Hudi's properties
    determine how all tables are written, including the ledger (docs/table-formats/hudi.md)."""
    sort_by: tuple[Text, ...] = ()
    """Sort order of rows in the files of created tables: "column" or "column desc"; a|b takes the
    first column that exists."""
    location: Text = ""
    """Location of created tables; {namespace} and {table} are replaced by their names, and no two
    tables may share a location. Empty: the catalog chooses. Tables of a kind without a catalog,
    including the ledger, are identified by their location; it must then end with /{table}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTableSettings:
    """Settings for tables with matching names; the first section that matches counts."""

    match: Text
    """Name of a table, or a pattern for the whole name, such as lake.event_.*."""
    columns: tuple[ColumnSettings, ...] = ()
    """Columns, as in table.columns."""
    partition_by: tuple[Text, ...] = ()
    """Partitioning of these tables; empty: the value of tables.create.partition_by."""
    location: Text = ""
    """Location of these tables, as in tables.create.location; empty: the value of that key."""
    unknown_fields: Text = ""
    """As tables.schema.unknown_fields, for these tables; empty: the value of that key."""
    delivery_linger_ms: int = 0
    """How long rows for such a table accumulate before one commit adds them all; offsets are stored
    as early as without it. 0: every transaction's rows are added at once."""
    maintain: bool = True
    """Whether [maintenance] and headgate maintain apply to these tables."""
    incompatible: Text = ""
    """As tables.schema.incompatible, for these tables; empty: the value of that key."""
    key: tuple[Text, ...] = ()
    """Key columns of these tables, as in table.key: records replace and delete their rows as
    [changes] specifies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesSettings:
    """Many tables, instead of [table]; see docs/guides/many-tables.md."""

    type: Text = ICEBERG
    """Format of all tables, including the ledger, as in table.type; see
    docs/table-formats/comparison.md."""
    ledger: Text = ""
    """Name of a table without rows, as "namespace.table", whose commits decide for all other
    tables; created if missing. If it is set, the sink fills the tables that its routes name."""
    unmatched: Disposal = Disposal.QUARANTINE
    """What to do with a record that no route sends to an existing table: keep it in the quarantine,
    stop before it, or skip it and count it."""
    on_missing: OnMissing = OnMissing.SUSPEND
    """What to do if a table that holds rows of the sink was dropped or renamed: suspend it (its
    records go to the quarantine until somebody decides), or create a new, empty table."""
    max: Annotated[int, "tables"] = 1_000
    """Maximum number of tables in a namespace that the routes can name. Beyond it none is created,
    and records for one that is missing are unmatched; tables that exist take theirs."""
    new_per_minute_max: Annotated[int, "tables"] = 200
    """Maximum number of tables created per minute for names from fields, headers or records; the
    records of further ones wait for them."""
    atomic: bool = False
    """Whether a single call to a REST catalog commits a decision's rows to all of its tables, so
    that readers see all of it or nothing. The call waits for the slowest table and leaves out
    tables that cannot be read; if one table is refused, each table gets its own call."""
    valid_through_refresh_ms: int = 0
    """A table without new rows gets an empty commit once its valid-through is this far behind the
    ledger's; each transaction does this for a few tables. 0: never."""
    shared_with: tuple[Text, ...] = ()
    """Names of other sinks that may fill these tables from the same topics."""
    route: tuple[RouteSettings, ...] = ()
    """Which records go to which table, in order."""
    schema: SchemaSettings = SchemaSettings()
    """Fields for which a table has no column, as in table.schema."""
    create: CreateSettings = CreateSettings()
    """How missing tables are created."""
    table: tuple[OneTableSettings, ...] = ()
    """Settings for single tables."""
    record_columns: RecordColumns = RecordColumns()
    """Columns of every table for a record's origin, key and headers."""

    def __bool__(self) -> bool:
        return bool(self.ledger)

    @property
    def routing(self) -> Routing:
        """Return the routes, as the writers use them."""
        from_records = self.create.schema.takes_columns_from_records
        return Routing(
            tuple(
                Route(
                    to=route.to,
                    topic=route.topic,
                    field=route.value_field,
                    header=route.header,
                    record=route.record,
                    value=route.value,
                    merge=route.merge,
                )
                for route in self.route
            ),
            tuple((each.match, each.key) for each in self.table) if self.has_keyed_table else (),
            # Records do not show the columns of a key.
            tuple(
                (each.match, bool(each.columns) or (from_records and not each.key))
                for each in self.table
            ),
            creates_others=from_records,
        )

    @property
    def has_keyed_table(self) -> bool:
        """Return whether some tables have a key."""
        return any(each.key for each in self.table)

    @property
    def delivery_lingers(self) -> tuple[DeliveryLinger, ...]:
        """Return how long pending commits wait for others; every section counts, since the first
        match decides."""
        return tuple(DeliveryLinger(each.match, each.delivery_linger_ms) for each in self.table)

    @property
    def primary_table(self) -> TableSettings:
        """Return the ledger, as the table that the sink commits to first."""
        note = ColumnSettings(
            name="note", type="string", doc="No rows: the snapshots say what was decided."
        )
        return TableSettings(
            type=self.type,
            identifier=self.ledger,
            create=True,
            columns=(note,),
            location="" if self.type == ICEBERG else self.creation_location_of(self.ledger),
            shared_with=self.shared_with,
        )

    def creation_location_of(self, table: str, template: str = "") -> str:
        """Return where a table of this name is created; without a template, as ``create`` says."""
        namespace, _, short = table.rpartition(".")
        location = template or self.create.location
        return location.replace("{namespace}", namespace).replace("{table}", short)


NO_TABLE = TableSettings(identifier="")
"""Takes the place of a missing [table]."""


def choose_primary_table(table: TableSettings, tables: TablesSettings) -> TableSettings:
    """Return the primary table. Raises ``ConfigurationError`` unless there is exactly one."""
    if not tables:
        if table == NO_TABLE:
            raise ConfigurationError("table is missing", "The table to fill.")
        return table
    if table not in (NO_TABLE, tables.primary_table):
        raise TablesUnfit(
            "both table and tables.ledger are set",
            "a sink fills one table, or those of its routes: keep one of the two sections",
        )
    return tables.primary_table
