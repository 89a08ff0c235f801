"""Moves rows into the table: copies them into a temporary one, then moves them with SQL alone.

The temporary tables belong to this connection, and go with its transaction. Copying holds no lock
that anybody waits for. Moving happens under the lock of the sink's row, and asks nothing of the
client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from psycopg import sql

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import KeyChanged, KeyInTwoPartitions, TableChanged
from headgate.control_protocol.events import FileKind
from headgate.control_protocol.table_format import NumberedFile, RowKey
from headgate_postgres.columns import in_files, key_columns, postgres_type
from headgate_postgres.ledger import one
from headgate_postgres.server import Connection
from headgate_postgres.staged_files import StagedFiles, copy_text

_ROWS, _KEYS = sql.Identifier("pg_temp", "staged_rows"), sql.Identifier("pg_temp", "staged_keys")


class Moving:
    """One transaction's rows, on one connection."""

    def __init__(self, connection: Connection, columns: Struct, key: RowKey | None) -> None:
        self._connection = connection
        self._columns = columns
        self._key = key
        self._number = _free_name(columns)

    def copy(self, files: StagedFiles, written: Sequence[NumberedFile]) -> None:
        """Copy the files' rows into temporary tables.

        Raises ``TableChanged``, ``KeyChanged``, ``OSError``.
        """
        rows, gone = _of(written, FileKind.ROWS), _of(written, FileKind.KEYS)
        self._copy(files, _ROWS, self._columns.fields, rows)
        if self._key:
            self._copy(files, _KEYS, key_columns(self._columns, self._key), gone)
        elif gone:
            raise KeyChanged(
                "records are to be committed that delete rows by their key, and the settings name "
                "no key",
                "put the key back: what was decided is delivered by it",
            )

    def append(self, table: sql.Identifier) -> None:
        """Move all rows into the table."""
        names = _names(column.name for column in self._columns.fields)
        self._execute("INSERT INTO {} ({}) SELECT {} FROM {}", table, names, names, _ROWS)

    def change(self, table: sql.Identifier) -> KeyCounts:
        """Let the newest record of each key replace or delete its row (rules KEY-3, KEY-8 to
        KEY-10).

        Raises ``KeyInTwoPartitions``.
        """
        key = self._key
        assert key is not None, "chosen for it"
        names = _names(key.key)
        self._execute(
            "CREATE TEMPORARY TABLE changes ON COMMIT DROP AS SELECT {keys}, {topic} AS topic_of, "
            "{partition} AS partition_of, {offset} AS offset_of, {number} AS number_of, "
            "false AS goes FROM {rows} "
            "UNION ALL SELECT {keys}, {theirs}, _partition, _offset, {number}, true FROM {gone}",
            keys=names,
            topic=sql.Identifier(key.topic) if key.topic else sql.SQL("NULL::text"),
            theirs=sql.SQL("_topic" if key.topic else "NULL::text"),
            partition=sql.Identifier(key.partition),
            offset=sql.Identifier(key.offset),
            number=sql.Identifier(self._number),
            rows=_ROWS,
            gone=_KEYS,
        )
        self._execute(
            "CREATE TEMPORARY TABLE newest ON COMMIT DROP AS SELECT DISTINCT ON ({}) * "
            "FROM changes ORDER BY {}, number_of DESC, offset_of DESC",
            *(names, names),
        )
        self._execute("ANALYZE newest")
        self._refuse_two_partitions(table, key)
        total = one(self._connection, "SELECT count(*) FROM changes")
        last = one(self._connection, "SELECT count(*) FROM newest")
        going = one(self._connection, "SELECT count(*) FROM newest WHERE goes")
        same = _equal(key.key, "t", "n")
        deleted = self._execute("DELETE FROM {} t USING newest n WHERE n.goes AND {}", table, same)
        inserted = self._upsert(table, key)
        return KeyCounts(
            inserted=inserted,
            updated=last - going - inserted,
            deleted=deleted,
            absent=going - deleted,
            superseded=total - last,
        )

    def _upsert(self, table: sql.Identifier, key: RowKey) -> int:
        """Return how many rows are new."""
        every = [column.name for column in self._columns.fields]
        replaced = (sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(n)) for n in every)
        query = sql.SQL(
            "WITH put AS (INSERT INTO {table} ({names}) SELECT {rows} FROM {staged} s "
            "JOIN newest n ON {same} AND NOT n.goes "
            "AND (n.number_of, n.offset_of) = (s.{number}, s.{offset}) "
            "ON CONFLICT ({keys}) DO UPDATE SET {replaced} RETURNING xmax = 0 AS is_new) "
            "SELECT count(*) FILTER (WHERE is_new) FROM put"
        ).format(
            table=table,
            names=_names(every),
            rows=sql.SQL(", ").join(sql.Identifier("s", name) for name in every),
            staged=_ROWS,
            same=_equal(key.key, "s", "n"),
            number=sql.Identifier(self._number),
            offset=sql.Identifier(key.offset),
            keys=_names(key.key),
            replaced=sql.SQL(", ").join(replaced),
        )
        return int(one(self._connection, query))

    def _refuse_two_partitions(self, table: sql.Identifier, key: RowKey) -> None:
        topic = sql.Identifier("t", key.topic) if key.topic else sql.SQL("NULL::text")
        query = sql.SQL(
            "SELECT count(*) FROM (SELECT 1 FROM changes GROUP BY {keys} HAVING "
            "count(DISTINCT (topic_of, partition_of)) > 1 UNION ALL SELECT 1 FROM {table} t JOIN "
            "newest n ON {same} WHERE t.{partition} <> n.partition_of OR {topic} <> n.topic_of) k"
        ).format(
            keys=_names(key.key),
            table=table,
            same=_equal(key.key, "t", "n"),
            partition=sql.Identifier(key.partition),
            topic=topic,
        )
        if moved := one(self._connection, query):
            raise KeyInTwoPartitions(
                f"{moved} keys have records in two partitions, and no order tells which is newer",
                "nothing of them is in the table; produce each key to one partition",
            )

    # ---------------------------------------------------------------------------------- copying

    def _copy(
        self,
        files: StagedFiles,
        into: sql.Identifier,
        columns: Sequence[Column],
        written: Sequence[NumberedFile],
    ) -> None:
        typed = (
            sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(postgres_type(c)))
            for c in (*columns, Column(self._number, "int"))
        )
        self._execute(
            "CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP", into, sql.SQL(", ").join(typed)
        )
        kinds, optional = in_files(columns)
        copying = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(into)
        with self._connection.cursor() as cursor:
            with cursor.copy(copying) as copy:
                for file, number in written:
                    with written_as_the_table_is(file.path):
                        for batch in files.rows(file.path, kinds, optional):
                            numbers = pa.repeat(pa.scalar(number, pa.int32()), len(batch))
                            copy.write(copy_text(batch.append_column(self._number, numbers)))
            there, claimed = cursor.rowcount, sum(file.records for file, _ in written)
        if there != claimed:
            raise TableChanged(
                f"the files of the transaction have {there} rows, their writers wrote {claimed}",
                "somebody changed them; start the sink again, which writes them again",
            )

    def _execute(self, text: str, *parts: sql.Composable, **named: sql.Composable) -> int:
        query = sql.SQL(text).format(*parts, **named)
        return self._connection.execute(query).rowcount


@contextmanager
def written_as_the_table_is(path: str) -> Iterator[None]:
    """Raise ``TableChanged`` if a file turns out to have other columns than the table."""
    try:
        yield
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TableChanged(
            f"{path} was written for other columns than the table has: {error}",
            "nothing of it is in the table; start the sink again, which writes again what was not "
            "decided yet",
        ) from error


def _of(written: Sequence[NumberedFile], kind: FileKind) -> list[NumberedFile]:
    return [(file, number) for file, number in written if file.kind is kind]


def _free_name(columns: Struct) -> str:
    """Return a name that none of the columns has."""
    name = "transaction_of"
    while any(column.name == name for column in columns.fields):
        name += "_"
    return name


def _names(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join([sql.Identifier(name) for name in names])


def _equal(key: Sequence[str], one_: str, other: str) -> sql.Composed:
    pairs = (
        sql.SQL("{} = {}").format(sql.Identifier(one_, name), sql.Identifier(other, name))
        for name in key
    )
    return sql.SQL(" AND ").join(pairs)
