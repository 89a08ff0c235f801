"""Defines the settings for the table that a sink fills, and for columns anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from headgate.config.setting_types import ConstantText, Properties, Text, Texts
from headgate.participant.settings import Incompatible, SchemaPolicy, UnknownFields

ICEBERG = "iceberg"
"""The default table format, which needs no other package and supports every feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSettings:
    """One declared column of the table."""

    name: Text
    """Name of the column and, unless from is set, of the record's field."""
    type: Text
    """Iceberg type: boolean, int, long, float, double, decimal(p,s), date, time, timestamp,
    timestamptz, timestamp_ns and timestamptz_ns (with the property format-version 3), string, uuid,
    binary, fixed(n), list<...>, map<..., ...>, struct<name: type, ...>."""
    required: bool = False
    """Whether a record without this field is refused."""
    doc: Text = ""
    """Comment stored in the table for readers."""
    from_record: bool = False
    """Whether table.record_columns fills this column instead of a field of the value. Declare a
    record column only to change its type, doc or position."""
    path: Annotated[Text, Field(alias="from")] = ""
    """Path of the record's field that fills the column, such as payload.user.id, with quotes around
    a name that contains dots. Empty: the field with the column's name."""
    unit: Text = ""
    """Unit of numbers that become a time (since midnight) or a timestamp (since 1970): s, ms, us or
    ns. Empty: ms."""
    as_text: bool = False
    """Whether a string column also takes numbers and booleans, as JSON text (it always takes
    objects and arrays)."""
    value: ConstantText = None
    """Constant value of this column in every row; no field is read."""
    default: ConstantText = None
    """Value for a record without the field; a field that is null stays null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Columns for the parts of a record other than its value; an empty name is not written.

    With topic, partition and offset the audit can prove each single record.
    """

    topic: Text = ""
    """Column (string) for the record's topic."""
    partition: Text = ""
    """Column (int) for its partition."""
    offset: Text = ""
    """Column (long) for its offset."""
    timestamp: Text = ""
    """Column (timestamptz) for the record's Kafka timestamp."""

    key: Text = ""
    """Column for the record's key, decoded as format.key_type: a struct column takes the key's
    fields, any other type the key itself."""
    headers: Text = ""
    """Column for its headers: map<string, binary>, map<string, string>, or list<struct<key: string,
    value: binary>>, which can contain a key more than once."""
    struct: Text = ""
    """A single struct column for several of these; its fields are named topic, partition, offset,
    timestamp, key or headers. If the column is not declared, it has the first four."""

    @property
    def coordinate_columns(self) -> tuple[str, str, str] | None:
        """Return the topic, partition and offset columns, if all three are written."""
        named = (self.topic, self.partition, self.offset)
        if all(named) or not self.struct:
            return named if all(named) else None
        return (f"{self.struct}.topic", f"{self.struct}.partition", f"{self.struct}.offset")

    def columns_by_part(self) -> dict[str, str]:
        """Return which part is written to which column."""
        everything = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "key": self.key,
            "headers": self.headers,
            "struct": self.struct,
        }
        return {what: column for what, column in everything.items() if column}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSettings:
    """How records may change the columns; docs/guides/schema-evolution.md has the rules."""

    unknown_fields: UnknownFields = UnknownFields.IGNORE
    """What happens to a record with a non-null field for which the table has no column: ignore
    leaves the field out, evolve adds the column first (and widens columns if values need it),
    quarantine treats the record as bad, fail stops the sink."""
    readd_dropped: bool = False
    """Whether evolve adds a column again after somebody has dropped it; if not, its field is
    ignored and counted."""

    incompatible: Incompatible = Incompatible.QUARANTINE
    """What happens to a record with a value that does not fit its column: quarantine treats the
    record as bad, ignore leaves the value out (null, if the column allows it), fail stops the sink.
    """

    @property
    def policy(self) -> SchemaPolicy:
        return SchemaPolicy(self.unknown_fields, self.readd_dropped, self.incompatible)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The table that the sink fills."""

    type: Text = ICEBERG
    """Table format: iceberg, delta (docs/table-formats/delta.md), hudi
    (docs/table-formats/hudi.md), or one that an installed package registers
    (docs/table-formats/writing-a-table-format.md)."""
    identifier: Text
    """Name of the table, as "namespace.table"."""
    branch: Text = "main"
    """Branch that the sink commits to."""
    create: bool = False
    """Create the table from the columns below if it is missing."""
    columns: tuple[ColumnSettings, ...] = ()
    """Columns, in order; a missing table is created from them."""
    partition_by: tuple[Text, ...] = ()
    """Partitioning of a created table: column, year(c), month(c), day(c), hour(c), bucket(n, c),
    truncate(n, c); for a Delta table, columns only."""
    properties: Texts = Properties()
    """Properties of a created table, with the names that its format defines."""
    sort_by: tuple[Text, ...] = ()
    """Sort order of rows in the files of a created table: "column" or "column desc"."""
    key: tuple[Text, ...] = ()
    """Columns whose values together identify a row: a record replaces or deletes the row with its
    key. They must be required, and of neither a floating-point nor a nested type; the table also
    needs record columns for partition and offset. Empty: every record adds a row."""
    location: Text = ""
    """Location of a created table; empty: the catalog chooses. A table of a format without a
    catalog is identified by its location."""
    accept_duplicates: bool = False
    """Whether to accept a table format that guarantees less than exactly once; iceberg, delta and
    hudi guarantee exactly once."""
    shared_with: tuple[Text, ...] = ()
    """Names of other sinks that may write records of the same topics to this table and branch; each
    of them must name the others. Each sink writes its own rows."""
    record_columns: RecordColumns = RecordColumns()
    """Columns for a record's origin, key and headers."""
    schema: SchemaSettings = SchemaSettings()
    """Fields for which the table has no column."""
