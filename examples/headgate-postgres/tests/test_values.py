"""Tests the supported tables and values, and that each value comes back unchanged."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.control_protocol.columns import Column, ListOf, Struct
from headgate.control_protocol.errors import ConfigurationError, TableFormatLacks, TableUnfit
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate_postgres.columns import ExactValues, arrow_type

_UTC = dt.UTC
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [-(2**31), 2**31 - 1],
    "long": [-(2**63), 2**63 - 1],
    "float": [1.401298464324817e-45, 3.4028234663852886e38, math.inf],
    "double": [0.1, 5e-324, 1.7976931348623157e308, -math.inf],
    "decimal(38, 9)": [Decimal("12345678901234567890123456789.123456789"), Decimal("-0.000000001")],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "time": [dt.time(0, 0), dt.time(23, 59, 59, 999_999)],
    "timestamp": [dt.datetime.min, dt.datetime.max],
    "timestamptz": [
        dt.datetime(1, 1, 1, tzinfo=_UTC) + dt.timedelta(days=1),
        dt.datetime(2026, 3, 29, 1, 59, 59, 999_999, tzinfo=_UTC),
    ],
    "string": ["", "\\N", "\\.", "a\n\\.\nb", 'say "it", and\r\n', " é😀", "NULL"],
    "uuid": [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)],
    "binary": [b"", b"\0\xff\\x"],
}


def test_every_value_comes_back_as_it_was(world) -> None:
    columns = [Column(f"a {kind}", kind, required=False) for kind in VALUES]
    world.wanted = replace(
        world.wanted, name=f"{world.wanted.name}_typed", columns=Struct((*columns,))
    )
    world.kind.create(world.wanted)
    length = max(map(len, VALUES.values())) + 1
    filled = {f"a {kind}": [*v, *[None] * (length - len(v))] for kind, v in VALUES.items()}
    rows = pa.table(
        {
            column.name: pa.array(map(_stored, filled[column.name]), arrow_type(column.type))
            for column in columns
        }
    )
    table = world.open()
    require_landed(commit(table, claim_table(table), record(1, 1, 3), world.written(rows)))
    exact = ", ".join(f'"{name}"::float8' if "float" in name else f'"{name}"' for name in filled)
    assert world.sql(f"SELECT {exact} FROM {{}}") == list(zip(*filled.values(), strict=True))
    reader = world.kind.reader(world.wanted, SinkName("sink"))
    _, files = reader.scan(list(filled))
    read = pa.Table.from_batches([batch for each in files for batch in each.batches()])
    reader.close()
    assert read.equals(rows)


def test_no_number_and_negative_zero_come_back_as_they_were(world) -> None:
    """No comparison of values would tell them."""
    kinds = {"single": "float", "double": "double"}
    columns = [Column(name, kind, required=False) for name, kind in kinds.items()]
    world.wanted = replace(
        world.wanted, name=f"{world.wanted.name}_odd", columns=Struct((*columns,))
    )
    world.kind.create(world.wanted)
    odd = [math.nan, -0.0, math.inf, -math.inf]
    rows = pa.table({c.name: pa.array(odd, arrow_type(c.type)) for c in columns})
    table = world.open()
    require_landed(commit(table, claim_table(table), record(1, 1, 4), world.written(rows)))
    said = [(text, text) for text in ("NaN", "-0", "Infinity", "-Infinity")]
    assert world.sql("SELECT single::text, double::text FROM {}") == said
    reader = world.kind.reader(world.wanted, SinkName("sink"))
    _, files = reader.scan(list(kinds))
    (read,) = [batch for each in files for batch in each.batches()]
    reader.close()
    for name in kinds:
        assert [str(value) for value in read[name].to_pylist()] == [str(value) for value in odd]


def _stored(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


def test_what_postgresql_does_not_hold_is_bad() -> None:
    late = dt.date(9999, 12, 31)
    microseconds = [0, 253_402_300_800_000_000, -62_135_596_800_000_001, None]
    rows = pa.record_batch(
        {
            "text": pa.array(["a\0b", "", "plain", None]),
            "day": pa.array([0, 1, 2_932_897, None], pa.date32()),
            "at": pa.array(microseconds, pa.timestamp("us", "UTC")),
            "last": pa.array([late] * 4),
        }
    )
    assert ExactValues().find_unsupported_rows(rows) == {
        0: "text: a text of PostgreSQL holds no NUL",
        1: "at: only the years 1 to 9999 are written",
        2: "day: only the years 1 to 9999 are written",
    }
    assert ExactValues().find_unsupported_rows(rows.slice(3)) == {}


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE {} (a integer, b jsonb)",
        "CREATE TABLE {} (a character varying(3))",
        "CREATE TABLE {} (a numeric)",
        "CREATE TABLE {} (a timestamp(3))",
        "CREATE TABLE {} (a integer CHECK (a > 0))",
        "CREATE TABLE {} (a integer UNIQUE)",
        "CREATE TABLE {} (a integer); CREATE UNIQUE INDEX ON {} ((a + 1))",
        "CREATE TABLE {} (a integer); CREATE RULE odd AS ON UPDATE TO {} DO NOTHING",
        "CREATE VIEW {} AS SELECT 1 AS a",
        "CREATE TABLE {} (a integer) PARTITION BY LIST (a)",
        "CREATE TABLE {} (a integer); CREATE TRIGGER odd BEFORE UPDATE ON {} FOR EACH ROW "  # noqa: ISC004
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ],
)
def test_hg153_a_table_that_could_refuse_a_record_is_refused(world, definition) -> None:
    world.sql("DROP TABLE {}")
    world.sql(definition.replace("{}", world.wanted.name))
    for ask in (world.kind.file_schema, world.kind.create):
        with pytest.raises(TableUnfit):
            ask(world.wanted)


def test_columns_that_postgresql_fills_itself_are_its_own(world) -> None:
    world.sql("ALTER TABLE {} ADD made bigint GENERATED ALWAYS AS IDENTITY")
    table = world.open()
    require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    assert world.sql("SELECT made FROM {} ORDER BY row") == [(1,), (2,), (3,)]


def test_hg153_a_key_wants_an_index_of_its_own(keyed) -> None:
    keyed.sql("ALTER TABLE {} DROP CONSTRAINT " + f"{keyed.wanted.name.partition('.')[2]}_pkey")
    with pytest.raises(TableUnfit, match="no primary key of id"):
        keyed.kind.file_schema(keyed.wanted)
    keyed.sql("ALTER TABLE {} ADD PRIMARY KEY (id) DEFERRABLE")  # which no upsert can use
    with pytest.raises(TableUnfit, match="unique index"):
        keyed.kind.file_schema(keyed.wanted)


def test_a_second_index_over_the_key_that_is_not_valid_yet_refuses_nothing_more(keyed) -> None:
    """As while ``REINDEX ... CONCURRENTLY`` runs, and after one that was ended."""
    keyed.sql("CREATE UNIQUE INDEX ON {} (id)")
    second = "indrelid = '{}'::regclass AND NOT indisprimary"
    keyed.sql(f"UPDATE pg_index SET indisvalid = false WHERE {second}")
    assert keyed.kind.file_schema(keyed.wanted)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"name": "trips"}, ConfigurationError, "write schema.table"),
        ({"location": "staging"}, ConfigurationError, "table.location cannot be"),
        ({"storage": {}}, ConfigurationError, "uri is missing"),
        ({"storage": {"uri": "postgresql://h:x/y"}}, ConfigurationError, None),
        ({"storage": {"uri": "dbname=a", "type": "sql"}}, ConfigurationError, "has no catalog"),
        ({"by_spark": True}, TableFormatLacks, r"spark\.writer"),
        ({"partition_by": ("a",)}, TableFormatLacks, "partition_by"),
        ({"properties": {"a": "b"}}, TableFormatLacks, "properties"),
        (
            {"columns": Struct((Column("a", ListOf(Column("", "int"))),))},
            ConfigurationError,
            "no column of type",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(world, change, error, said) -> None:
    wanted = replace(world.wanted, **change)
    if said is None:
        world.kind.require_supported(
            wanted
        )  # a port is judged by the server's client, when it connects
        return
    with pytest.raises(error, match=said):
        world.kind.require_supported(wanted)


def test_secrets_of_an_address_are_in_no_error(world) -> None:
    wrong = {"uri": "postgresql://headgate:open-sesame@127.0.0.1:1/nothing"}
    wanted = replace(world.wanted, storage=wrong)
    with pytest.raises(Exception, match="did not answer") as told:
        world.kind.file_schema(wanted)
    assert "open-sesame" not in str(told.value)
