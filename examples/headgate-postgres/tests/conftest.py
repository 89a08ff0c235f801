"""Starts a PostgreSQL server, and provides a table in it with everybody who uses it.

Inside headgate's repository a server is started if one is installed; elsewhere
``HEADGATE_POSTGRES_URI`` names a database that may be filled.
"""

from __future__ import annotations

import datetime as dt
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_format import RowKey, TableSpec
from headgate.control_protocol.testing.contract.world import KeyChange

psycopg = pytest.importorskip(
    "psycopg", reason="pip install 'psycopg[binary]'", exc_type=ImportError
)

from headgate_postgres.kind import PostgresFormat, _place  # noqa: E402
from headgate_postgres.reader import PostgresReader  # noqa: E402
from headgate_postgres.table import PostgresTable  # noqa: E402

ROWS_PER_FILE = 3
COLUMNS = Struct((Column("number", "long", required=False), Column("row", "long", required=False)))
PLACES = (
    Column("at_partition", "int", required=False),
    Column("at_offset", "long", required=False),
)
KEYED = Struct((Column("id", "long"), Column("name", "string", required=False), *PLACES))
KEY = RowKey(("id",), "at_partition", "at_offset")
NUMBERED = Struct((Column("number", "long"), Column("row", "long"), *PLACES))
KEY_OF_NUMBERED = replace(KEY, key=("number", "row"))
IN_ROWS = pa.schema(
    {"id": pa.int64(), "name": pa.string(), "at_partition": pa.int32(), "at_offset": pa.int64()}
)
IN_KEYS = pa.schema({"id": pa.int64(), "_partition": pa.int32(), "_offset": pa.int64()})


class PostgresWorld:
    """The contract's world: a table with its own name."""

    def __init__(
        self, uri: str, folder: Path, columns: Struct = COLUMNS, key: RowKey | None = None
    ) -> None:
        self.uri = uri
        self.wanted = TableSpec(
            f"lake.t_{uuid.uuid4().hex}",
            str(folder),
            create=True,
            columns=columns,
            storage={"uri": uri},
            key=key,
        )
        self.folder = folder
        self.kept = dt.timedelta()
        self._lies: list[bool] = []
        self.kind = PostgresFormat()
        self.kind.require_supported(self.wanted)
        self.kind.create(self.wanted)

    def open(self, sink: str = "sink") -> PostgresTable:
        def commit(connection: Any) -> None:
            lie = self._lies.pop() if self._lies else None
            if lie is not False:
                connection.commit()
            if lie is not None:
                raise psycopg.OperationalError("the connection was lost")

        return PostgresTable(_place(self.wanted), SinkName(sink), commit, kept=self.kept)

    def write_file(self, number: int) -> WrittenFile:
        rows = {"number": [number] * ROWS_PER_FILE, "row": range(ROWS_PER_FILE)}
        if self.wanted.key:
            rows |= {"at_partition": [0] * ROWS_PER_FILE, "at_offset": rows["row"]}
        return self.written(pa.table({name: pa.array(v, pa.int64()) for name, v in rows.items()}))

    def reader(self, sink: str = "sink") -> PostgresReader:
        return PostgresReader(_place(self.wanted), SinkName(sink))

    def write_unfit_file(self) -> WrittenFile:
        return self.written(pa.table({"number": pa.array([1], pa.int64()), "more": [1]}))

    def written(self, rows: pa.Table, kind: FileKind = FileKind.ROWS) -> WrittenFile:
        path = self.folder / f"{uuid.uuid4()}.parquet"
        pq.write_table(rows, path)
        return WrittenFile(path.as_uri(), rows.num_rows, path.stat().st_size, kind)

    def visible_file_numbers(self) -> list[int]:
        found = self.sql("SELECT number FROM {} ORDER BY number")
        return [number for (number,) in found][::ROWS_PER_FILE]

    def write_changes(self, *records: KeyChange) -> tuple[WrittenFile, ...]:
        rows = [(r.key, r.value, r.partition, r.offset) for r in records if r.value is not None]
        gone = [(r.key, r.partition, r.offset) for r in records if r.value is None]
        told = ((rows, IN_ROWS, FileKind.ROWS), (gone, IN_KEYS, FileKind.KEYS))
        return tuple(
            self.written(pa.table([*zip(*of, strict=True)], schema=columns), kind)
            for of, columns, kind in told
            if of
        )

    def read_rows(self) -> dict[int, str]:
        return dict(self.sql("SELECT id, name FROM {}"))

    def recreate(self) -> None:
        self.drop()
        self.kind.create(self.wanted)

    def drop(self) -> None:
        self.sql("DROP TABLE {}")

    def lose_next_answer(self, *, landed: bool) -> None:
        self._lies.append(landed)

    def sql(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.uri, autocommit=True) as connection:
            done = connection.execute(statement.format(self.wanted.name), values)
            return done.fetchall() if done.description else []


@pytest.fixture(scope="session")
def uri() -> Iterator[str]:
    """Yield a database that may be filled."""
    if named := os.environ.get("HEADGATE_POSTGRES_URI"):
        yield named
        return
    servers = pytest.importorskip("support.postgres_server", reason="set HEADGATE_POSTGRES_URI")
    with servers.PostgresServer() as server:
        yield server.new_database().replace("+psycopg2", "")


@pytest.fixture
def world_at() -> type[PostgresWorld]:
    """Create worlds on the test's own servers."""
    return PostgresWorld


@pytest.fixture
def world(uri: str, tmp_path: Path) -> PostgresWorld:
    return PostgresWorld(uri, tmp_path)


@pytest.fixture
def keyed(uri: str, tmp_path: Path) -> PostgresWorld:
    return PostgresWorld(uri, tmp_path, KEYED, KEY)


@pytest.fixture
def numbered(uri: str, tmp_path: Path) -> PostgresWorld:
    """A table whose rows have a key, and tell of which file they are."""
    return PostgresWorld(uri, tmp_path, NUMBERED, KEY_OF_NUMBERED)
