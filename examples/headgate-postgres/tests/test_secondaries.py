"""Tests PostgreSQL tables that follow a primary table, and quarantines that take any record."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headgate.control_protocol.columns import Column, ListOf, Struct
from headgate.control_protocol.commit_record import CommitRecord, KeyCounts
from headgate.control_protocol.errors import (
    ConfigurationError,
    KeyChanged,
    TableChanged,
    Unreachable,
)
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitOutcome, Refused, Unknown
from headgate.control_protocol.table_format import TableSpec
from headgate.control_protocol.testing.contract.world import (
    KeyChange,
    commit,
    record,
    require_landed,
)
from headgate_postgres.columns import ExactValues, replace_unsupported
from headgate_postgres.table import KEPT

HEADER = (Column("key", "string", required=False), Column("value", "binary", required=False))
HEADERS = ListOf(Column("", Struct(HEADER), required=False))
ASIDE = Struct(
    (
        Column("offset", "long"),
        Column("timestamp", "timestamptz", required=False),
        Column("key", "binary", required=False),
        Column("headers", HEADERS, required=False),
        Column("message", "string", required=False),
    )
)
IN_FILES = pa.schema(
    {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "key": pa.large_binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "message": pa.string(),
    }
)


def delivered(number: int) -> CommitRecord:
    return replace(record(1, number, number), primary="uuid-of-the-lead")


def delivers(world: Any, number: int, *files: WrittenFile) -> CommitOutcome:
    table = world.open()
    return commit(table, table.read(), delivered(number), *files)


# ------------------------------------------------------------------------------------- deliveries


def test_files_of_a_delivery_stay_until_the_next_one_has_landed(world) -> None:
    """A replica that is promoted without the newest delivery may have the decision."""
    first, second = world.write_file(1), world.write_file(2)
    require_landed(delivers(world, 1, first))
    assert len(list(world.folder.iterdir())) == 2
    world.sql("DELETE FROM {}")
    world.sql("DELETE FROM headgate.commits WHERE relation = '{}'::regclass")
    world.sql("DELETE FROM headgate.sinks WHERE relation = '{}'::regclass")
    require_landed(delivers(world, 1, first))
    require_landed(delivers(world, 2, second))
    assert [path.as_uri() for path in world.folder.iterdir()] == [second.path]
    assert world.visible_file_numbers() == [1, 2]


def test_files_of_a_delivery_whose_answer_was_lost_go_with_the_next_one(world) -> None:
    table = world.open()
    world.lose_next_answer(landed=True)
    assert isinstance(commit(table, table.read(), delivered(1), world.write_file(1)), Unknown)
    assert table.read().record == delivered(1)
    assert len(list(world.folder.iterdir())) == 1
    require_landed(delivers(world, 2))
    assert list(world.folder.iterdir()) == []
    assert world.visible_file_numbers() == [1]


def test_files_of_deliveries_stay_as_long_as_a_replica_may_lag(world) -> None:
    """Who lacks two deliveries is delivered both again."""
    world.kept = KEPT
    files = [world.write_file(number) for number in (1, 2, 3)]
    for number, file in enumerate(files, 1):
        require_landed(delivers(world, number, file))
    assert {path.as_uri() for path in world.folder.iterdir()} == {file.path for file in files}
    world.sql("UPDATE headgate.commits SET committed_at = committed_at - interval '1 hour'")
    require_landed(delivers(world, 4))
    assert list(world.folder.iterdir()) == []


def test_key_2_key_files_of_deliveries_stay_as_long_as_those_with_rows(keyed) -> None:
    """An audit, which counts what each commit added, does not take them for rows."""
    keyed.kept = KEPT
    files = keyed.write_changes(KeyChange(1, "a", 1, 0), KeyChange(2, None, 2, 0))
    view = require_landed(delivers(keyed, 1, *files))
    assert {path.as_uri() for path in keyed.folder.iterdir()} == {file.path for file in files}
    reader = keyed.kind.reader(keyed.wanted, SinkName("sink"))
    (done,) = reader.history().commits
    assert (done.added_records, done.added_files, reader.added_files(done)) == (
        1,
        1,
        [(files[0].path, 1)],
    )
    reader.close()
    assert view.record.keys == KeyCounts(inserted=1, absent=1)
    keyed.sql("UPDATE headgate.commits SET committed_at = committed_at - interval '1 hour'")
    require_landed(delivers(keyed, 2))
    assert list(keyed.folder.iterdir()) == []


def test_key_1_keys_that_go_are_no_delivery_of_a_table_without_a_key(keyed, world) -> None:
    (gone,) = keyed.write_changes(KeyChange(2, None, 2, 0))
    with pytest.raises(KeyChanged, match="put the key back"):
        delivers(world, 1, gone)
    assert world.open().read().record is None


class Overtaken:
    """Staged files, before which somebody else delivers twice."""

    def __init__(self, world: Any, file: WrittenFile) -> None:
        self._world, self._file = world, file
        self._files = world.open()._place.files

    def rows(self, *arguments: Any) -> Iterator[pa.RecordBatch]:
        require_landed(delivers(self._world, 1, self._file))
        require_landed(delivers(self._world, 2))
        return self._files.rows(*arguments)


def test_who_finds_a_file_gone_because_others_delivered_is_refused(world) -> None:
    file, zombie = world.write_file(1), world.open()
    stale = zombie.read()
    zombie._place = replace(zombie._place, files=Overtaken(world, file))
    assert isinstance(commit(zombie, stale, delivered(1), file), Refused)
    assert world.visible_file_numbers() == [1]
    gone = world.write_file(3)
    zombie = world.open()
    zombie._place.files.remove([gone.path])
    with pytest.raises(TableChanged, match="is gone"):
        commit(zombie, zombie.read(), delivered(3), gone)


def test_what_was_decided_before_a_column_was_added_is_delivered(world) -> None:
    file, strict = world.write_file(1), world.write_file(2)
    world.sql("ALTER TABLE {} ADD note text, ALTER number TYPE numeric(30, 0)")
    require_landed(delivers(world, 1, file))
    assert world.sql("SELECT DISTINCT number, note FROM {}") == [(1, None)]
    world.sql("UPDATE {} SET note = ''")
    world.sql("ALTER TABLE {} ALTER note SET NOT NULL")
    with pytest.raises(TableChanged, match="differ in note"):
        delivers(world, 2, strict)


def test_what_a_table_cannot_be_given_is_known_before_it_is_decided(world) -> None:
    table, file = world.open(), world.write_file(1)
    table.require_files_fit_and_exist([file])
    world.sql("ALTER TABLE {} ALTER number TYPE text")
    with pytest.raises(TableChanged, match="has number as int64"):
        table.require_files_fit_and_exist([file])
    table._place.files.remove([file.path])
    with pytest.raises(TableChanged, match="is gone"):
        table.require_files_fit_and_exist([file])
    world.uri = "postgresql://headgate@127.0.0.1:1/nothing"
    nowhere = replace(world.wanted, storage={"uri": world.uri})
    with pytest.raises(Unreachable):
        world.kind.open(nowhere, SinkName("sink")).require_files_fit_and_exist([file])


# ----------------------------------------------------------------------------------- quarantines


@pytest.fixture
def aside(world) -> TableSpec:
    wanted = replace(world.wanted, name=f"{world.wanted.name}_aside", columns=ASIDE)
    world.kind.require_supported(wanted)
    world.kind.create(wanted)
    world.wanted = wanted
    return wanted


def batch(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, kind) for c, kind in zip(columns, IN_FILES.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=IN_FILES)


MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
WHOLE = [
    (0, MOMENT, b"\0\xff", [{"key": "a", "value": b"\0\xff"}, {"key": "a", "value": None}], "m"),
    (1, None, b"", [], 'say "it",\nand \\x'),
    (2, None, None, None, None),
    (3, MOMENT, None, [{"key": ' é\n"\\', "value": b""}], ""),
]


def test_bad_records_come_back_byte_by_byte(world, aside: TableSpec) -> None:
    layout = world.kind.file_schema(aside)
    assert layout.columns == ASIDE
    rows = batch(*WHOLE)
    assert layout.replace_unsupported(rows).equals(rows)
    require_landed(delivers(world, 1, world.written(pa.Table.from_batches([rows]))))
    reader = world.kind.reader(aside, SinkName("sink"))
    _, files = reader.scan(rows.schema.names)
    read = pa.Table.from_batches([found for each in files for found in each.batches()])
    reader.close()
    assert read.to_pylist() == rows.to_pylist()
    decoded = "SELECT decode(headers->0->>'value', 'base64') FROM {} WHERE \"offset\" = 0"
    assert world.sql(decoded) == [(b"\0\xff",)]


def test_what_postgresql_does_not_hold_is_replaced_in_a_quarantine(world, aside: TableSpec) -> None:
    late = 253_402_300_800_000_000
    header = [{"key": "a\0b", "value": b"\0"}, {"key": None, "value": None}]
    rows = batch((0, late, b"\0", header, "nul \0 in it"), *WHOLE[1:])
    assert ExactValues().find_unsupported_rows(rows) == {
        0: "timestamp: only the years 1 to 9999 are written"
    }
    assert ExactValues().find_unsupported_rows(rows.select(["headers", "offset"])) == {
        0: "headers: a text of PostgreSQL holds no NUL"
    }
    mended = world.kind.file_schema(aside).replace_unsupported(rows)
    assert ExactValues().find_unsupported_rows(mended) == {}
    require_landed(delivers(world, 1, world.written(pa.Table.from_batches([mended]))))
    found = world.sql('SELECT "timestamp", key, headers, message FROM {} WHERE "offset" = 0')
    told = [{"key": "a\\x00b", "value": "AA=="}, {"key": None, "value": None}]
    assert found == [(None, b"\0", told, "nul \\x00 in it")]
    assert mended.slice(1).equals(rows.slice(1))
    assert replace_unsupported(mended).equals(mended)


# ----------------------------------------------------------------------------------- many tables


def test_tables_are_listed_with_whatever_else_stands_in_their_way(world) -> None:
    schema = f"s_{world.wanted.name.partition('.')[2]}"
    like = replace(world.wanted, name=f"{schema}.any")
    assert world.kind.list_table_names(like) == []
    world.sql(f"CREATE SCHEMA {schema}")
    world.kind.create(replace(like, name=f"{schema}.first"))
    world.sql(f'CREATE VIEW {schema}."a view" AS SELECT 1 AS a')
    world.sql(f"CREATE INDEX an_index ON {schema}.first (number)")
    assert sorted(world.kind.list_table_names(like)) == ["a view", "first"]


def test_a_table_keeps_what_it_was_given_as_its_comment(world) -> None:
    given = {"headgate.raw-name": "Ärger \0"}
    wanted = replace(world.wanted, name=f"{world.wanted.name}_kept", properties=given)
    world.kind.require_supported(wanted)
    world.kind.create(wanted)
    assert world.kind.file_schema(wanted).properties == given
    assert world.kind.file_schema(world.wanted).properties == {}
    for comment in ("a person's own", json.dumps([1])):
        world.sql(f"COMMENT ON TABLE {wanted.name} IS {psycopg.sql.quote(comment)}")
        assert world.kind.file_schema(wanted).properties == {}


@pytest.mark.parametrize("name", ["x" * 64, "é" * 32, "a\0b"])
def test_names_that_postgresql_would_cut_off_are_refused(world, name: str) -> None:
    for wanted in (
        replace(world.wanted, name=f"lake.{name}"),
        replace(world.wanted, name=f"{name}.trips"),
        replace(world.wanted, columns=Struct((Column(name, "long"),))),
    ):
        with pytest.raises(ConfigurationError, match="longer than 63 bytes"):
            world.kind.require_supported(wanted)
    world.kind.require_supported(replace(world.wanted, name=f"lake.{'x' * 63}"))


@pytest.mark.parametrize("names", [["ctid"], [""], [f"c{n}" for n in range(1_601)]])
def test_columns_that_postgresql_does_not_make_are_an_answer(world, names) -> None:
    columns = Struct(tuple(Column(name, "long") for name in names))
    wanted = replace(world.wanted, name=f"{world.wanted.name}_unmade", columns=columns)
    with pytest.raises(ConfigurationError, match="makes no table"):
        world.kind.create(wanted)
