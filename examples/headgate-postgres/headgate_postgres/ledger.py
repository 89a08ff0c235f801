"""Stores what sinks have committed, in separate tables next to those that they fill.

``headgate.sinks`` has one row for each sink of a table: the lock, the commit record and, for a sink
of many tables, which ones it has filled. It names the table by ``regclass``: a table that is
dropped and re-created is another one, while a restored dump is the same. ``headgate.commits`` is
the history, for audits.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import errors

from headgate.control_protocol.commit_record_codec import (
    decode_record,
    encode_record,
    topic_ids_if_readable,
    uuids_of_filled_tables_after,
)
from headgate.control_protocol.events import FileKind
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Lineage, TableView
from headgate_postgres.server import Connection, TableFacts
from headgate_postgres.time_limit import PATIENCE_MS, limit_waits

_ADVISORY_LOCK = 0x68656164  # any number: processes that create these tables take turns
_SETUP = """
CREATE SCHEMA IF NOT EXISTS headgate;
CREATE TABLE IF NOT EXISTS headgate.sinks (
    relation regclass NOT NULL,
    sink text NOT NULL,
    position bigint NOT NULL,
    epoch bigint NOT NULL,
    record jsonb NOT NULL,
    filled jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (relation, sink));
CREATE TABLE IF NOT EXISTS headgate.commits (
    relation regclass NOT NULL,
    sink text NOT NULL,
    position bigint NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    record jsonb NOT NULL,
    files jsonb NOT NULL,
    PRIMARY KEY (relation, sink, position));
DO $$ BEGIN
    IF to_regtype('headgate.headers') IS NULL THEN CREATE DOMAIN headgate.headers AS jsonb; END IF;
END $$;
"""
_THERE = "SELECT to_regclass('headgate.sinks') IS NOT NULL"
_ROWS = "SELECT sink, position, record, filled FROM headgate.sinks WHERE relation = %s"
_LOCKED = "SELECT position, record FROM headgate.sinks WHERE relation = %s AND sink = %s FOR UPDATE"
_CLAIM = """
INSERT INTO headgate.sinks (relation, sink, position, epoch, record, filled)
VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
_MOVE = """
UPDATE headgate.sinks SET position = %s, epoch = %s, record = %s, filled = coalesce(%s, filled)
WHERE relation = %s AND sink = %s
"""
_KEEP = """
INSERT INTO headgate.commits (relation, sink, position, record, files) VALUES (%s, %s, %s, %s, %s)
"""
_FILES = """
WITH mine AS (
    SELECT * FROM headgate.commits WHERE relation = %(of)s AND sink = %(sink)s
    AND position <= %(to)s)
SELECT jsonb_object_keys(files) FROM mine WHERE committed_at <= clock_timestamp() - %(age)s
AND committed_at >= (SELECT min(committed_at) - %(age)s FROM mine WHERE position >= %(to)s - 1)
"""
_TIMELINE = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_walfile_name(pg_current_wal_lsn()) END
"""
_POSITIONS = 2**40
"""More than any table has on one timeline of its server."""
_COMMITS = """
SELECT sink, position, extract(epoch FROM committed_at) * 1000, record, files FROM headgate.commits
WHERE relation = %s AND (sink = %s) = %s ORDER BY sink, position DESC
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """One commit of the history. ``files``: the rows of each, by its path."""

    sink: SinkName
    position: int
    committed_ms: int
    properties: Mapping[str, str]
    files: Mapping[str, int]


class Ledger:
    """The rows of one sink, for one table of one name."""

    def __init__(self, identifier: str, sink: SinkName) -> None:
        self._identifier = identifier
        self._sink = sink

    def view(self, connection: Connection, facts: TableFacts, location: str) -> TableView:
        """Return what the table says about the sink. Raises ``RecordUnreadable``."""
        rows = self._rows(connection, facts)
        position, said, filled = rows.pop(self._sink, (None, {}, {}))
        here = _timeline(connection) * _POSITIONS
        record = decode_record(self._sink, said)
        last = None if position is not None else self._last(connection, facts)
        head = last.position if last else position
        lineage = Lineage.FRESH if last is None else Lineage.TAG_MISSING
        return TableView(
            table=self._identifier,
            uuid=facts.uuid,
            location=location,
            schema_id=facts.schema_id,
            spec_id=0,
            head=None if head is None else here + head,
            tag=None if position is None else here + position,
            record=record,
            lineage=lineage if position is None else Lineage.CONTAINS_TAG,
            branch_record=record if last is None else decode_record(self._sink, last.properties),
            others={
                sink: topic_ids_if_readable(sink, theirs) for sink, (_, theirs, _) in rows.items()
            },
            filled=filled,
        )

    def _last(self, connection: Connection, facts: TableFacts) -> Kept | None:
        """Return the history's newest commit, for a sink whose row somebody has removed."""
        return next(self.commits(connection, facts), None)

    def _rows(
        self, connection: Connection, facts: TableFacts
    ) -> dict[SinkName, tuple[int, Mapping[str, str], Mapping[str, str]]]:
        if not one(connection, _THERE):
            return {}
        rows = connection.execute(_ROWS, (facts.oid,))
        return {SinkName(sink): (position, said, filled) for sink, position, said, filled in rows}

    def locked(self, connection: Connection, facts: TableFacts, base: TableView) -> bool:
        """Lock the sink's row until the transaction ends; return whether it is the base's.

        Waits for its current holder. Comparing the position alone would not do: on a server that
        lost its newest transactions, and on a restored one, another commit may have the same
        number.
        """
        if base.tag is None:
            return True  # nobody's yet: the insert of ``advance`` decides
        row = connection.execute(_LOCKED, (facts.oid, self._sink)).fetchone()
        known = (position_of(base.tag), base.record)
        return row is not None and (row[0], decode_record(self._sink, row[1])) == known

    def advance(self, connection: Connection, facts: TableFacts, attempt: CommitAttempt) -> bool:
        """Move the sink's row, which is ``locked``; return whether that was possible."""
        base, record = attempt.base, attempt.record
        position, said = position_of(base.head or 0) + 1, json.dumps(encode_record(record))
        epoch, place = int(record.transaction.epoch), (facts.oid, self._sink)
        filled = uuids_of_filled_tables_after(record, base.filled, attempt.forgets)
        if base.tag is None:
            told = (*place, position, epoch, said, json.dumps(filled))
            done = connection.execute(_CLAIM, told)
        else:
            changed = None if filled == base.filled else json.dumps(filled)
            done = connection.execute(_MOVE, (position, epoch, said, changed, *place))
        if done.rowcount != 1:
            return False
        rows = {f.path: f.records if f.kind is FileKind.ROWS else None for f in attempt.files}
        connection.execute(_KEEP, (*place, position, said, json.dumps(rows)))
        return True

    def files_older_than(
        self, connection: Connection, facts: TableFacts, age: dt.timedelta, tag: int | None
    ) -> list[str]:
        """Return the paths of commits' files that have become due by this age.

        Those are of commits up to this tag, due since the commit before it: a lost answer may have
        left what was due then.
        """
        to = position_of(tag or 0)
        asked = {"of": facts.oid, "sink": self._sink, "to": to, "age": age}
        return [path for (path,) in connection.execute(_FILES, asked)]

    def commits(
        self, connection: Connection, facts: TableFacts, *, own: bool = True
    ) -> Iterator[Kept]:
        """Yield the sink's commits, newest first; or those of the table's other sinks."""
        if not one(connection, _THERE):
            return
        with connection.cursor(name="headgate_commits") as cursor:  # on the server: it may be long
            cursor.execute(_COMMITS, (facts.oid, self._sink, own))
            for sink, position, at_ms, record, files in cursor:
                rows = {path: count for path, count in files.items() if count is not None}
                yield Kept(SinkName(sink), position, int(at_ms), record, rows)


def position_of(tag: int) -> int:
    """Return the commit's position in the table, on whichever timeline it was read."""
    return tag % _POSITIONS


def _timeline(connection: Connection) -> int:
    """Return how often the server's history restarted: 0 unless it was promoted or restored.

    It is part of each tag. A replica may lack the newest deliveries and have the commits that they
    are for: whoever knows those as delivered has read another history, and is refused.
    """
    name = one(connection, _TIMELINE)
    return int(name[:8], 16) - 1 if name else 0


def make_ledger(connection: Connection, patience_ms: int = PATIENCE_MS) -> None:
    """Create what is missing of the ledger, in a transaction that is committed at once."""
    limit_waits(connection, patience_ms)
    try:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        connection.execute(_SETUP)
        connection.commit()
    except errors.InsufficientPrivilege:
        connection.rollback()
        if not one(connection, _THERE):  # nor has somebody with more rights created it
            raise
        connection.rollback()


def one(connection: Connection, query: Any, *arguments: Any) -> Any:
    """Return the only value of the only row."""
    row = connection.execute(query, arguments).fetchone()
    assert row is not None, "it has one"
    return row[0]
