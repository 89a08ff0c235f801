"""What a sink file says of the table that it fills, and of columns wherever they are declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import Any

from headgate.data.formats.column_rules import Constant
from headgate.participant.settings import Incompatible, SchemaPolicy, UnknownFields
from headgate.sink.properties import Properties

ICEBERG = "iceberg"
"""The kind of table that needs no other package, and does all there is."""


def about(sentence: str, unit: str = "", *, key: str = "") -> Mapping[str, str]:
    """A key's metadata for the reference and for error messages.

    ``key``: what the sink file calls it, where Python cannot.
    """
    return {"sentence": sentence, "unit": unit, **({"key": key} if key else {})}


def key_of(of: Field[Any]) -> str:
    """What a sink file calls this setting."""
    return str(of.metadata.get("key", of.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSettings:
    """One declared column of the table."""

    name: str = field(metadata=about("Column name, and the key of the record's field."))
    type: str = field(
        metadata=about(
            "Iceberg type: boolean, int, long, float, double, decimal(p,s), date, time, timestamp, "
            "timestamptz, timestamp_ns and timestamptz_ns (with the property format-version 3), "
            "string, uuid, binary, fixed(n), list<...>, map<..., ...>, struct<name: type, ...>."
        )
    )
    required: bool = field(
        default=False, metadata=about("Whether a record without this field is refused.")
    )
    doc: str = field(default="", metadata=about("Comment that the table keeps for readers."))
    from_record: bool = field(
        default=False,
        metadata=about(
            "Whether table.record_columns fills this column and no field of the value does; only "
            "a record column that needs another type, doc or place than its default is declared."
        ),
    )
    path: str = field(
        default="",
        metadata=about(
            "The record's field that fills the column, as a path: payload.user.id, with quotes "
            "around a name that has dots. Empty: the field of the column's name.",
            key="from",
        ),
    )
    unit: str = field(
        default="",
        metadata=about(
            "What a number counts that becomes a time or timestamp: s, ms, us or ns, of the day or "
            "since 1970. Empty: ms."
        ),
    )
    as_text: bool = field(
        default=False,
        metadata=about(
            "Whether numbers and booleans go into a string column too (objects and arrays always "
            "do), in JSON as they are written."
        ),
    )
    value: Constant = field(
        default=None,
        metadata=about("A constant that every row has in this column; no field is read."),
    )
    default: Constant = field(
        default=None,
        metadata=about(
            "What a row has when the record has no such field; a field that is null stays null."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Names of columns for what a record has beside its value; an empty one is not written.

    With topic, partition and offset the audit can prove each single record.
    """

    topic: str = field(default="", metadata=about("Column (string) for the record's topic."))
    partition: str = field(default="", metadata=about("Column (int) for its partition."))
    offset: str = field(default="", metadata=about("Column (long) for its offset."))
    timestamp: str = field(
        default="", metadata=about("Column (timestamptz) for the record's Kafka timestamp.")
    )

    key: str = field(
        default="",
        metadata=about(
            "Column for the record's key, as format.key_type reads it: a struct takes a key's "
            "fields, any other type the key itself."
        ),
    )
    headers: str = field(
        default="",
        metadata=about(
            "Column for its headers: map<string, binary>, map<string, string>, or "
            "list<struct<key: string, value: binary>>, which may repeat a key."
        ),
    )
    struct: str = field(
        default="",
        metadata=about(
            "Column for several of them together: a struct whose fields are named topic, "
            "partition, offset, timestamp, key or headers; unless declared, of the first four."
        ),
    )

    @property
    def coordinates(self) -> tuple[str, str, str] | None:
        """Topic, partition and offset columns, when all three are written."""
        named = (self.topic, self.partition, self.offset)
        if all(named) or not self.struct:
            return named if all(named) else None
        return (f"{self.struct}.topic", f"{self.struct}.partition", f"{self.struct}.offset")

    def named(self) -> dict[str, str]:
        """What is written, to which column."""
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
    """What records may do to the columns; docs/evolution.md has the rules."""

    unknown_fields: UnknownFields = field(
        default=UnknownFields.IGNORE,
        metadata=about(
            "What becomes of a record with a field, not null, that the table has no column for: "
            "ignore leaves the field out, evolve adds the column first (and widens columns whose "
            "values need it), quarantine makes it a bad record, fail stops the sink."
        ),
    )
    readd_dropped: bool = field(
        default=False,
        metadata=about(
            "Whether evolve adds a column again whose name a person has dropped; else its field "
            "is ignored, and counted."
        ),
    )

    incompatible: Incompatible = field(
        default=Incompatible.QUARANTINE,
        metadata=about(
            "What becomes of a record with a value that its column does not take: quarantine makes "
            "it a bad record, ignore leaves the value out (null, where the column may be null), "
            "fail stops the sink."
        ),
    )

    @property
    def policy(self) -> SchemaPolicy:
        return SchemaPolicy(self.unknown_fields, self.readd_dropped, self.incompatible)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The table that the sink fills."""

    type: str = field(
        default=ICEBERG,
        metadata=about(
            "Kind of table: iceberg, delta (docs/delta.md), hudi (docs/hudi.md), or one that an "
            "installed package registers (docs/writing-a-table.md)."
        ),
    )
    identifier: str = field(metadata=about('Table, as "namespace.table".'))
    branch: str = field(default="main", metadata=about("Branch that the commits move."))
    create: bool = field(
        default=False, metadata=about("Create the table from the columns below when missing.")
    )
    columns: tuple[ColumnSettings, ...] = field(
        default=(), metadata=about("Columns, in order; a missing table is made of them.")
    )
    partition_by: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Partitioning of a created table: column, year(c), month(c), day(c), hour(c), "
            "bucket(n, c), truncate(n, c); of a Delta table columns only."
        ),
    )
    properties: Mapping[str, str] = field(
        default_factory=Properties,
        metadata=about("Properties of a created table, in its own format's names."),
    )
    sort_by: tuple[str, ...] = field(
        default=(),
        metadata=about('Order of rows in the files of a created table: "column" or "column desc".'),
    )
    key: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Columns whose values together name a row: a record replaces or deletes the row of its "
            "key. Required ones, neither float nor nested, beside record columns for partition and "
            "offset; empty: every record adds a row."
        ),
    )
    location: str = field(
        default="",
        metadata=about(
            "Location of a created table; empty: the catalog's choice. A table of a kind without a "
            "catalog is found by it."
        ),
    )
    accept_duplicates: bool = field(
        default=False,
        metadata=about(
            "Whether the kind of table may promise less than exactly once; iceberg, delta and hudi "
            "promise it."
        ),
    )
    shared_with: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Names of other sinks that may bring records of the same topics into this table and "
            "branch; each names the others. Their rows are there once per sink."
        ),
    )
    record_columns: RecordColumns = field(
        default_factory=RecordColumns,
        metadata=about("Columns for a record's origin, key and headers."),
    )
    schema: SchemaSettings = field(
        default_factory=SchemaSettings, metadata=about("Fields that the table has no column for.")
    )
