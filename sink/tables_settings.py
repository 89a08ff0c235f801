"""Settings for many tables: the ledger, the routes, and how tables are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.control_protocol.bad_records import Disposal
from headgate.control_protocol.errors import ConfigurationError, TablesUnfit
from headgate.coordinator.settings import Pace
from headgate.data.writers.routes import Route, Routing
from headgate.sink.properties import Properties
from headgate.sink.table_settings import (
    ICEBERG,
    ColumnSettings,
    RecordColumns,
    SchemaSettings,
    TableSettings,
    about,
)


class CreateFrom(StrEnum):
    """The source of a missing table's columns."""

    OFF = "off"
    DECLARED = "declared"
    INFER = "infer"
    REGISTRY = "registry"
    CONNECT = "connect"

    @property
    def from_records(self) -> bool:
        """Return whether records, or their schema, determine the columns."""
        return self in (CreateFrom.INFER, CreateFrom.REGISTRY, CreateFrom.CONNECT)


class OnMissing(StrEnum):
    """What happens to a table that holds rows of the sink and is gone (rule N5)."""

    PARK = "park"
    CREATE = "create"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """Which records go to which table. The first route that matches a record wins."""

    topic: str = field(
        default="",
        metadata=about(
            "Topic whose records the route takes, or a pattern that begins with ^; empty: all."
        ),
    )
    to: str = field(
        metadata=about(
            'Table, as "namespace.name"; {topic}, {field}, {header}, {record} and the named groups '
            "of a pattern stand for what they matched, in lower case, with _ for what is neither "
            "letter nor digit."
        )
    )
    value_field: str = field(
        default="",
        metadata=about(
            "Field of the record's value that decides, as a path; if it is missing or null, the "
            "next route is tried.",
            key="field",
        ),
    )
    header: str = field(default="", metadata=about("Header that decides, instead of a field."))
    record: str = field(
        default="",
        metadata=about(
            "Avro record's full name, or a pattern that begins with ^, that decides instead."
        ),
    )
    value: str = field(
        default="",
        metadata=about(
            "Required value of the field or header, or a pattern that begins with ^; empty: any."
        ),
    )
    merge: bool = field(
        default=False,
        metadata=about(
            "Whether different names may become one table: otherwise records with the second "
            "name are unmatched."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSettings:
    """Whether the coordinator creates missing tables that routes name."""

    schema: CreateFrom = field(
        default=CreateFrom.OFF,
        metadata=about(
            "Whether and how to create tables: never (no), or from the columns under "
            "[[tables.table]] (declared). If none are declared, from the first records (infer, "
            "for json), from their schema in the registry (registry, for Avro and Protobuf "
            "formats), or from the schema they carry (connect, for connect-json)."
        ),
    )
    partition_by: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Partitioning of created tables, as in table.partition_by; day(a|b) takes the first "
            "column that exists."
        ),
    )
    properties: Mapping[str, str] = field(
        default_factory=Properties,
        metadata=about(
            "Properties of created tables, Iceberg's or those of another kind. Hudi's decide how "
            "all tables are written, including the ledger: docs/hudi.md."
        ),
    )
    sort_by: tuple[str, ...] = field(
        default=(),
        metadata=about(
            'Order of rows in the files of tables that are made: "column" or "column desc"; '
            "a|b takes the first column that there is."
        ),
    )
    location: str = field(
        default="",
        metadata=about(
            "Location of created tables; {namespace} and {table} stand for their names, and no "
            "two tables may share one. Empty: the catalog's choice. Kinds of tables without a "
            "catalog are found by it, including the ledger; then it must end with /{table}."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTableSettings:
    """Settings for tables with matching names; the first section that matches counts."""

    match: str = field(
        metadata=about("A table's name, or a pattern for the whole name: lake.event_.* is one.")
    )
    columns: tuple[ColumnSettings, ...] = field(
        default=(), metadata=about("Columns, as in table.columns.")
    )
    partition_by: tuple[str, ...] = field(
        default=(), metadata=about("Partitioning of such a table; empty: tables.create's.")
    )
    location: str = field(
        default="",
        metadata=about("Location of such a table, as in tables.create.location; empty: that one."),
    )
    unknown_fields: str = field(
        default="",
        metadata=about("As tables.schema.unknown_fields, for these tables; empty: that value."),
    )
    pay_every_ms: int = field(
        default=0,
        metadata=about(
            "How long rows for such a table gather before one commit writes them all; offsets "
            "are safe as early as without it. 0: every transaction writes its rows at once.",
            "ms",
        ),
    )
    maintain: bool = field(
        default=True, metadata=about("Whether [maintenance] and headgate maintain touch it.")
    )
    incompatible: str = field(
        default="",
        metadata=about("As tables.schema.incompatible, for these tables; empty: that value."),
    )
    key: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Key columns of such a table, as in table.key: records replace and delete its rows "
            "according to [changes]."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesSettings:
    """Many tables, instead of [table]; see docs/tables.md."""

    type: str = field(
        default=ICEBERG,
        metadata=about(
            "Kind of the ledger and of all tables, as in table.type; see docs/kinds.md."
        ),
    )
    ledger: str = field(
        default="",
        metadata=about(
            'Table without rows, as "namespace.table", whose commits decide for all others; it is '
            "created when missing. Set it, and the sink fills the tables of its routes."
        ),
    )
    unmatched: Disposal = field(
        default=Disposal.QUARANTINE,
        metadata=about(
            "What to do with a record that no route sends to an existing table: keep it in the "
            "quarantine, stop before it, or skip it and count it."
        ),
    )
    on_missing: OnMissing = field(
        default=OnMissing.PARK,
        metadata=about(
            "What to do if a table with rows of the sink was dropped or renamed: park it, which "
            "diverts its records to the quarantine until a person decides; or create a new, "
            "empty one."
        ),
    )
    max: int = field(
        default=1_000,
        metadata=about(
            "Maximum number of tables; records for further ones are unmatched.", "tables"
        ),
    )
    new_per_minute_max: int = field(
        default=20,
        metadata=about(
            "Maximum number of tables created in a minute; others come later.", "tables"
        ),
    )
    atomic: bool = field(
        default=False,
        metadata=about(
            "Whether a single call to a REST catalog pays all tables of a decision, so that "
            "readers see all of them or none. It waits for the slowest table and leaves out one "
            "that cannot be read; if one is refused, every table gets a call of its own."
        ),
    )
    valid_through_refresh_ms: int = field(
        default=0,
        metadata=about(
            "A table without new rows gets an empty commit once its valid-through is this far "
            "behind the ledger's, a few tables per transaction. 0: never.",
            "ms",
        ),
    )
    shared_with: tuple[str, ...] = field(
        default=(),
        metadata=about("Names of other sinks that may fill these tables from the same topics."),
    )
    route: tuple[RouteSettings, ...] = field(
        default=(), metadata=about("Which records go to which table, in order.")
    )
    schema: SchemaSettings = field(
        default_factory=SchemaSettings,
        metadata=about("Fields for which a table has no column, as in table.schema."),
    )
    create: CreateSettings = field(
        default_factory=CreateSettings, metadata=about("How missing tables are created.")
    )
    table: tuple[OneTableSettings, ...] = field(
        default=(), metadata=about("Settings for single tables.")
    )
    record_columns: RecordColumns = field(
        default_factory=RecordColumns,
        metadata=about("Columns of every table for a record's origin, key and headers."),
    )

    def __bool__(self) -> bool:
        return bool(self.ledger)

    @property
    def routing(self) -> Routing:
        """Return the routes, as the writers use them."""
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
            self.max,
            tuple((each.match, each.key) for each in self.table) if self.keyed else (),
        )

    @property
    def keyed(self) -> bool:
        """Return whether some tables have a key."""
        return any(each.key for each in self.table)

    @property
    def paces(self) -> tuple[Pace, ...]:
        """Return how long debts gather; every section counts, since the first match decides."""
        return tuple(Pace(each.match, each.pay_every_ms) for each in self.table)

    @property
    def lead(self) -> TableSettings:
        """Return the ledger, as the table that the sink commits to first."""
        note = ColumnSettings(
            name="note", type="string", doc="No rows: the snapshots say what was decided."
        )
        return TableSettings(
            type=self.type,
            identifier=self.ledger,
            create=True,
            columns=(note,),
            location="" if self.type == ICEBERG else self.location_of(self.ledger),
            shared_with=self.shared_with,
        )

    def location_of(self, table: str, template: str = "") -> str:
        """Return where a table of this name is created; without a template, as ``create`` says."""
        namespace, _, short = table.rpartition(".")
        location = template or self.create.location
        return location.replace("{namespace}", namespace).replace("{table}", short)


NO_TABLE = TableSettings(identifier="")
"""Takes the place of a missing [table]."""


def led(table: TableSettings, tables: TablesSettings) -> TableSettings:
    """Return the table that leads. Raises ``ConfigurationError`` unless there is exactly one."""
    if not tables:
        if table == NO_TABLE:
            raise ConfigurationError("table is missing", "The table to fill.")
        return table
    if table not in (NO_TABLE, tables.lead):
        raise TablesUnfit(
            "both table and tables.ledger are set",
            "a sink fills one table, or those of its routes: keep one of the two sections",
        )
    return tables.lead
