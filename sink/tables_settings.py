"""What a sink file says of many tables: the ledger, the routes, and how tables are made."""

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
    """Of what a missing table is made."""

    OFF = "off"
    DECLARED = "declared"
    INFER = "infer"
    REGISTRY = "registry"
    CONNECT = "connect"

    @property
    def from_records(self) -> bool:
        """Whether records, or what they are written with, say which columns there are."""
        return self in (CreateFrom.INFER, CreateFrom.REGISTRY, CreateFrom.CONNECT)


class OnMissing(StrEnum):
    """What becomes of a table that has rows of the sink, and is gone (rule N5)."""

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
            "Field of the record's value that decides, as a path; without it, or when it is null, "
            "the next route is tried.",
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
            "Value that the field or header must have, or a pattern that begins with ^; empty: any."
        ),
    )
    merge: bool = field(
        default=False,
        metadata=about(
            "Whether different names may become one table: otherwise records of the second name "
            "are unmatched."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSettings:
    """Whether the coordinator makes tables that routes name and that are missing."""

    schema: CreateFrom = field(
        default=CreateFrom.OFF,
        metadata=about(
            "Make no tables; or make them of the columns under [[tables.table]] (declared). Where "
            "none are declared: of what the first records show (infer, for json), of their schema "
            "(registry, for formats of Avro and Protobuf), or of the one that they bring (connect, "
            "for connect-json)."
        ),
    )
    partition_by: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Partitioning of tables that are made, as table.partition_by; day(a|b) takes the first "
            "column that there is."
        ),
    )
    properties: Mapping[str, str] = field(
        default_factory=Properties,
        metadata=about(
            "Iceberg properties of tables that are made, or those of another kind of table; Hudi's "
            "say how all of them are written, the ledger among them: docs/hudi.md."
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
            "Location of tables that are made; {namespace} and {table} stand for their names, and "
            "no two may have one. Empty: the catalog's choice. Tables of a kind without a catalog, "
            "the ledger among them, are found by it; it ends with /{table} then."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTableSettings:
    """What holds for tables of these names; the first section that matches counts."""

    match: str = field(
        metadata=about("A table's name, or a pattern for all of it: lake.event_.* is one.")
    )
    columns: tuple[ColumnSettings, ...] = field(
        default=(), metadata=about("Columns, as table.columns.")
    )
    partition_by: tuple[str, ...] = field(
        default=(), metadata=about("Partitioning of such a table; empty: tables.create's.")
    )
    location: str = field(
        default="",
        metadata=about("Location of such a table, as tables.create.location; empty: that one."),
    )
    unknown_fields: str = field(
        default="",
        metadata=about("As tables.schema.unknown_fields, for such tables; empty: that one."),
    )
    pay_every_ms: int = field(
        default=0,
        metadata=about(
            "Rows for such a table gather for so long before one commit brings them all; offsets "
            "are safe as soon as ever. 0: every transaction's rows come at once.",
            "ms",
        ),
    )
    maintain: bool = field(
        default=True, metadata=about("Whether [maintenance] and headgate maintain touch it.")
    )
    incompatible: str = field(
        default="",
        metadata=about("As tables.schema.incompatible, for such tables; empty: that one."),
    )
    key: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Columns of the key of such a table, as table.key: records replace and delete its rows "
            "as [changes] says."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesSettings:
    """Many tables, instead of [table]: docs/tables.md."""

    type: str = field(
        default=ICEBERG,
        metadata=about("Kind of the ledger and of all tables, as table.type: docs/kinds.md."),
    )
    ledger: str = field(
        default="",
        metadata=about(
            'Table without rows, as "namespace.table", whose commits decide for all others; it is '
            "made when missing. Set it, and the sink fills the tables of its routes."
        ),
    )
    unmatched: Disposal = field(
        default=Disposal.QUARANTINE,
        metadata=about(
            "What to do with a record that no route sends to a table that there is: keep it in the "
            "quarantine, stop before it, or skip it and count it."
        ),
    )
    on_missing: OnMissing = field(
        default=OnMissing.PARK,
        metadata=about(
            "What to do where a table that was filled is gone, dropped or renamed: park it, which "
            "diverts its records to the quarantine until a person decides; or create a new one, "
            "which begins empty."
        ),
    )
    max: int = field(
        default=1_000,
        metadata=about("So many tables at most; records of further ones are unmatched.", "tables"),
    )
    new_per_minute_max: int = field(
        default=20,
        metadata=about("So many tables at most are made in a minute; others later.", "tables"),
    )
    atomic: bool = field(
        default=False,
        metadata=about(
            "Whether one call of a REST catalog pays the tables of a decision, so that readers see "
            "all tables of the call or none. It waits for the slowest; a table that cannot be read "
            "is left out; one that is refused gets a call of its own, as all others do then."
        ),
    )
    valid_through_refresh_ms: int = field(
        default=0,
        metadata=about(
            "A table without new rows gets an empty commit when its valid-through is so far behind "
            "the ledger's, some tables per transaction. 0: never.",
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
        metadata=about("Fields that a table has no column for, as table.schema."),
    )
    create: CreateSettings = field(
        default_factory=CreateSettings, metadata=about("How missing tables are made.")
    )
    table: tuple[OneTableSettings, ...] = field(
        default=(), metadata=about("What holds for single tables.")
    )
    record_columns: RecordColumns = field(
        default_factory=RecordColumns,
        metadata=about("Columns of every table for a record's origin, key and headers."),
    )

    def __bool__(self) -> bool:
        return bool(self.ledger)

    @property
    def routing(self) -> Routing:
        """The routes, as the writers take them."""
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
        """Whether some tables have a key."""
        return any(each.key for each in self.table)

    @property
    def paces(self) -> tuple[Pace, ...]:
        """How long debts gather; every section counts, for the first that matches does."""
        return tuple(Pace(each.match, each.pay_every_ms) for each in self.table)

    @property
    def lead(self) -> TableSettings:
        """The ledger, as the table that the sink commits to first."""
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
        """Where a table of this name is made; without a template as ``create`` says."""
        namespace, _, short = table.rpartition(".")
        location = template or self.create.location
        return location.replace("{namespace}", namespace).replace("{table}", short)


NO_TABLE = TableSettings(identifier="")
"""Stands where a sink file has no [table]."""


def led(table: TableSettings, tables: TablesSettings) -> TableSettings:
    """The table that leads. Raises ``ConfigurationError`` unless there is just one."""
    if not tables:
        if table == NO_TABLE:
            raise ConfigurationError("table is missing", "The table to fill.")
        return table
    if table not in (NO_TABLE, tables.lead):
        raise TablesUnfit(
            "both table and tables.ledger are set",
            "a sink fills one table, or those of its routes: keep one of the sections",
        )
    return tables.lead
