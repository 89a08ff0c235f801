"""Commits to a PostgreSQL table for one sink: rows and the sink's row in one transaction.

The lock is the sink's row, with ``SELECT ... FOR UPDATE`` and a comparison with what was read. The
server disconnects a client that stalls while holding it (``idle_in_transaction_session_timeout``),
and its transaction is gone. A lost answer is ``Unknown``: a commit that is still under way holds
the row, so that the next client waits for its end and sees it. An answer that does not come is
lost after a time (``time_limit``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import errors

from headgate.control_protocol.commit_record import CommitRecord, KeyCounts
from headgate.control_protocol.errors import (
    MissingRights,
    RetryLater,
    TableChanged,
    TableMissing,
    Unreachable,
)
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Refused,
    TableView,
    Unknown,
)
from headgate.control_protocol.table_format import RowKey, files_with_transaction_ranks
from headgate_postgres.columns import in_files, key_columns
from headgate_postgres.ledger import Ledger, make_ledger
from headgate_postgres.moving import Moving, written_as_the_table_is
from headgate_postgres.server import Connection, Server, TableFacts
from headgate_postgres.staged_files import StagedFiles
from headgate_postgres.time_limit import (
    COMMIT_S,
    DELIVERY_S,
    PATIENCE_MS,
    TRANSACTION_S,
    at_most,
    limit_waits,
)

KEPT = dt.timedelta(hours=1)
"""How long files of deliveries are kept: for a replica that lags as much."""

_Commit = Callable[[Connection], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is, and where its files lie until they are committed."""

    server: Server
    location: str
    files: StagedFiles
    key: RowKey | None


class PostgresTable:
    """Implements ``SinkTable``; ``commit`` is psycopg's call, which a test may let fail."""

    def __init__(
        self,
        place: Place,
        sink: SinkName,
        commit: _Commit = psycopg.Connection.commit,
        *,
        patience_ms: int = PATIENCE_MS,
        commit_s: float = COMMIT_S,
        kept: dt.timedelta = KEPT,
    ) -> None:
        self._place = place
        self._patience_ms = patience_ms
        self._commit_s = commit_s
        self._kept = kept
        self._ledger = Ledger(place.server.identifier, sink)
        self._commit = commit
        self._unanswered: CommitAttempt | None = None

    def read(self) -> TableView:
        server = self._place.server
        with server.connected() as connection:
            facts = server.facts(connection, self._place.key)
            view = self._ledger.view(connection, facts, self._place.location)
        self._forget_files(view.record)
        return view

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        self._unanswered = None
        sending: list[CommitAttempt] = []
        within_s = DELIVERY_S if attempt.record.primary else TRANSACTION_S
        try:
            with self._place.server.connected(within_s) as connection:
                return self._commit_files(connection, attempt, sending)
        except MissingRights as error:
            return Unknown(str(error), rights=True)
        except FileNotFoundError as error:
            return self._without_file(attempt.base, error)
        except (TableMissing, RetryLater, psycopg.Error, OSError) as error:
            if not sending:
                return Unknown(f"nothing was committed: {error}")
            self._unanswered = attempt
            return Unknown(repr(error))

    def require_files_fit_and_exist(self, files: Sequence[WrittenFile]) -> None:
        """See ``table_format.SupportsDelivery``."""
        server, key = self._place.server, self._place.key
        with server.connected() as connection:
            columns = server.facts(connection, key).columns
        of_keys = key_columns(columns, key) if key else ()
        known = {FileKind.ROWS: in_files(columns.fields), FileKind.KEYS: in_files(of_keys)}
        for file in files:
            kinds, optional = known[file.kind]
            try:
                with written_as_the_table_is(file.path):
                    self._place.files.refuse(file.path, kinds, optional)
            except FileNotFoundError as error:
                raise _gone(error) from error
            except OSError as error:
                raise Unreachable(f"{file.path} cannot be read: {error}") from error

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _commit_files(
        self, connection: Connection, attempt: CommitAttempt, sending: list[CommitAttempt]
    ) -> CommitOutcome:
        """Commit; ``sending`` gets the attempt before the call by which it may land."""
        server, base = self._place.server, attempt.base
        if base.tag is None:
            make_ledger(connection, self._patience_ms)
        limit_waits(connection, self._patience_ms)
        facts = server.facts(connection, self._place.key)
        moved = Refused("the table has moved on since it was read; nothing was sent")
        if facts.uuid != base.uuid or not self._stands_at(connection, facts, base):
            return moved
        moving = Moving(connection, facts.columns, self._place.key)
        record = attempt.record
        try:
            if attempt.files:
                moving.copy(self._place.files, files_with_transaction_ranks(attempt))
                # From here on nobody alters or drops the table.
                connection.execute(server.locking)
                if server.facts(connection, self._place.key) != facts:
                    return Refused("the table was altered; nothing was sent")
            if not self._ledger.locked(connection, facts, base):
                return moved
            if self._place.key:
                record = replace(record, keys=self._changed(moving, attempt))
            elif attempt.files:
                moving.append(server.table)
        except (errors.IntegrityError, errors.DataError) as error:
            raise TableChanged(
                f"PostgreSQL table {server.identifier} refuses rows: {error}",
                "nothing of them is in the table; look for what was added to it",
            ) from error
        if not self._ledger.advance(connection, facts, replace(attempt, record=record)):
            return moved
        view = self._ledger.view(connection, facts, self._place.location)
        done = self._done_with(connection, facts, attempt)
        sending.append(attempt)
        with at_most(self._commit_s, connection):
            self._commit(connection)
        self._place.files.remove(done)
        assert view.tag is not None, "this transaction has written it"
        return Landed(view.tag, view)

    def _stands_at(self, connection: Connection, facts: TableFacts, base: TableView) -> bool:
        """Return whether it is worth copying rows; the lock decides."""
        now = self._ledger.view(connection, facts, self._place.location)
        return (now.tag, now.record) == (base.tag, base.record)

    def _without_file(self, base: TableView, missing: FileNotFoundError) -> CommitOutcome:
        """Judge a missing file: the first to commit has removed it, or a stranger, and we stop."""
        try:
            now = self.read()
        except (TableMissing, RetryLater) as error:
            return Unknown(f"nothing was committed: {error}")
        if (now.uuid, now.tag, now.record) != (base.uuid, base.tag, base.record):
            return Refused("the table has moved on, and a file is gone; nothing was sent")
        raise _gone(missing) from missing

    def _changed(self, moving: Moving, attempt: CommitAttempt) -> KeyCounts:
        return moving.change(self._place.server.table) if attempt.files else KeyCounts()

    def _done_with(
        self, connection: Connection, facts: TableFacts, attempt: CommitAttempt
    ) -> list[str]:
        """Return the files that nobody asks for once the attempt has landed.

        Files of deliveries only count once they are old enough: a replica that is promoted without
        the newest deliveries may have the decisions, and is delivered again.
        """
        if attempt.record.primary:
            age, tag = self._kept, attempt.base.tag
            return self._ledger.files_older_than(connection, facts, age, tag)
        return [file.path for file in attempt.files]

    def _forget_files(self, record: CommitRecord | None) -> None:
        """Remove the files of a commit whose answer was lost, and which has landed."""
        attempt, self._unanswered = self._unanswered, None
        if attempt and not attempt.record.primary and attempt.record.is_same_commit(record):
            self._place.files.remove([file.path for file in attempt.files])


def _gone(error: FileNotFoundError) -> TableChanged:
    return TableChanged(
        f"a file that was to be committed is gone: {error}",
        "nothing of it is in the table; do not clean table.location of files younger than two "
        "days; start the sink again, which writes again what was not decided yet",
    )
