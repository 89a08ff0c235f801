"""Implements ``TableReader`` for PostgreSQL: history from the ledger, rows from the table.

Everything comes from one transaction that sees one state for as long as the reader lives. The table
appears as a single file, whose rows are counted.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any
from uuid import UUID

import pyarrow as pa
from psycopg import IsolationLevel, sql

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import topic_ids_if_readable
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.table_history import (
    FileRows,
    ForeignSnapshot,
    History,
    LiveFile,
    Newest,
    ReportedState,
    SinkCommit,
    build_history,
)
from headgate_postgres.columns import arrow_type
from headgate_postgres.ledger import Kept, Ledger, one, position_of
from headgate_postgres.server import Connection
from headgate_postgres.table import Place
from headgate_postgres.time_limit import AUDIT_S

_ROWS_AT_ONCE = 20_000


class PostgresReader:
    """The table as it was when this was created."""

    def __init__(self, place: Place, sink: SinkName) -> None:
        self._server = place.server
        self._sink = sink
        self._ledger = Ledger(place.server.identifier, sink)
        with ExitStack() as opening:
            self._connection = opening.enter_context(place.server.connected(AUDIT_S))
            self._connection.isolation_level = IsolationLevel.REPEATABLE_READ
            self._facts = place.server.facts(self._connection, place.key)
            self._place = place
            self._view = self._read_view(self._connection)
            self._open = opening.pop_all()

    def close(self) -> None:
        self._open.close()

    def view(self) -> TableView:
        return self._view

    def has_table_changed(self) -> bool:
        with self._server.connected() as connection:
            return self._read_view(connection) != self._view

    def _read_view(self, connection: Connection) -> TableView:
        """View the table by the numbers of its commits, whatever the server's timeline."""
        facts = self._server.facts(connection, self._place.key)
        view = self._ledger.view(connection, facts, self._place.location)
        head, tag = (None if at is None else position_of(at) for at in (view.head, view.tag))
        return replace(view, head=head, tag=tag)

    def columns(self) -> Sequence[str]:
        return [column.name for column in self._facts.columns.fields]

    def history(self, newest: Newest | None = None) -> History:
        own: list[Kept] = []
        for kept in self._ledger.commits(self._connection, self._facts):
            own.append(kept)
            if newest and newest.is_satisfied_by(len(own), kept.committed_ms):
                break
        complete = not own or own[-1].position == 1
        others = self._ledger.commits(self._connection, self._facts, own=False)
        states = [_told(kept) for kept in (*own, *others)]
        return build_history(self._view, self._sink, reversed(states), complete=complete)

    def live_files(self) -> list[LiveFile]:
        return [self._whole]

    def added_files(self, commit: SinkCommit) -> list[tuple[str, int]] | None:
        kept = self._commits.get(commit.snapshot_id)
        return None if kept is None else list(kept.files.items())

    def stored_size_and_rows(self, file: LiveFile) -> tuple[int, int]:
        return file.size_bytes, file.records

    def scan(self, columns: Sequence[str]) -> tuple[int, Iterator[FileRows]]:
        def batches() -> Iterator[pa.RecordBatch]:
            return self._rows(columns)

        return 1, iter([FileRows(self._whole.path, self._whole.size_bytes, batches, batches)])

    @cached_property
    def _whole(self) -> LiveFile:
        rows = one(self._connection, sql.SQL("SELECT count(*) FROM {}").format(self._server.table))
        size = one(self._connection, "SELECT pg_table_size(%s::oid)", self._facts.oid)
        path = f"postgresql table {self._server.identifier}"
        return LiveFile(path, rows, size, parquet=False, deletes=False, added_by=0)

    @cached_property
    def _commits(self) -> Mapping[int, Kept]:
        return {k.position: k for k in self._ledger.commits(self._connection, self._facts)}

    def _rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        kinds = [arrow_type(self._facts.columns[name].type) for name in columns]
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        query = sql.SQL("SELECT {} FROM {}").format(names, self._server.table)
        with self._connection.cursor(name="headgate_rows") as cursor:
            cursor.execute(query)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                values = zip(*rows, strict=True)
                arrays = [_array(each, kind) for each, kind in zip(values, kinds, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([_plain(value) for value in values], kind)


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    return [_header(each) for each in value] if isinstance(value, list) else value


def _header(each: Mapping[str, str | None] | None) -> Mapping[str, Any] | None:
    if each is None:
        return None
    coded = each["value"]
    return {**each, "value": None if coded is None else b64decode(coded)}


def _told(kept: Kept) -> ReportedState:
    rows = sum(kept.files.values())

    def commit(record: CommitRecord) -> SinkCommit:
        return SinkCommit(kept.position, kept.committed_ms, record, rows, len(kept.files))

    def foreign() -> ForeignSnapshot:
        topics = topic_ids_if_readable(kept.sink, kept.properties)  # its number is another sink's
        return ForeignSnapshot(-kept.position, "append", rows, 0, 0, kept.sink, topics)

    return ReportedState(f"commit {kept.position} of {kept.sink}", kept.properties, commit, foreign)
