"""Implements secondary tables of formats that stage nothing: lists of files, and the format's own
commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import HeadgateError, Unreachable, type_and_first_line_of
from headgate.control_protocol.identifiers import Epoch
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    EvolvedTable,
    Landed,
    PrimaryTable,
    SinkTable,
    Staging,
    TableView,
    Unknown,
)
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.schema_evolution import Refusal
from headgate.control_protocol.table_format import SupportsDelivery, files_with_transaction_ranks
from headgate.tables.staged_file_lists import StagedFileLists

_log = redacted_logger(__name__)


class FileListSecondaryTable:
    """Implements ``ports.SecondaryTable``. ``primary`` is the same table, as one that may get new
    columns.

    Drafting and tidying wait for the end of a slow delivery: a format's table serves one thread.
    """

    def __init__(
        self, table: SupportsDelivery, primary: PrimaryTable, drafts: StagedFileLists
    ) -> None:
        self._table = table
        self._primary = primary
        self._drafts = drafts
        self._one = Lock()

    def read(self) -> TableView:
        with self._one:
            return self._table.read()

    def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
        with self._one:
            return self._primary.evolve(base, columns)

    def stage(self, staging: Staging) -> tuple[PendingCommit, ...]:
        """PENDING-2: write the draft, once the table has accepted its files."""
        name = staging.table.table
        if self.read().uuid != staging.table.uuid:
            raise Unreachable(f"{name} is another table now; nothing was staged")
        with self._one:
            self._table.require_files_fit_and_exist(staging.files)
        try:
            return self._drafts.stage_pending_commits(staging)
        except Exception as error:
            why = type_and_first_line_of(error)
            raise Unreachable(
                f"{name}: what is pending for it could not be written: {why}"
            ) from error

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        """PENDING-5: commit the files of the pending commits, numbered by the order of their
        transactions (KEY-3)."""
        pending = [
            pending_commit for pending_commit in attempt.pending_commits if pending_commit.manifest
        ]
        order = {
            each: n
            for n, each in enumerate(
                sorted({pending_commit.transaction for pending_commit in pending})
            )
        }
        try:
            staged = [
                (file, order[pending_commit.transaction])
                for pending_commit in pending
                for file in self._drafts.read_list(pending_commit.manifest)
            ]
        except Exception as error:  # noqa: BLE001 - storage fails in the ways of its drivers
            return Unknown(
                f"nothing was sent: a draft could not be read: {type_and_first_line_of(error)}"
            )
        files = (*files_with_transaction_ranks(attempt), *staged)
        brought = replace(
            attempt,
            files=tuple(file for file, _ in files),
            transactions=tuple(number for _, number in files),
            pending_commits=(),
        )
        with self._one:
            outcome = self._table.commit(brought)
        if isinstance(outcome, Landed):
            self._drafts.delete_delivered_after_grace(
                [pending_commit.manifest for pending_commit in pending]
            )
        return outcome

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None:
        """Delete leftover drafts; a failure leaves orphans. The newest delivery's drafts stay, for
        a database that is restored without it."""
        try:
            view = self.read()
            delivered = view.current_record.transaction if view.current_record else None
            self._drafts.delete_old_unpending_lists(
                view, before_epoch, pending_manifests, delivered
            )
        except (HeadgateError, OSError) as error:
            _log.warning("drafts were not cleared away: %s", type_and_first_line_of(error))

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None:
        """Do nothing: key files are for the kind to remove, once their deletes have landed."""

    def close(self) -> None:
        self._table.close()


class FixedColumns:
    """Implements ``ports.PrimaryTable`` over a table whose columns never change.

    ``bare``: that table. It alone shows what else it supports: a wrapper hides it.
    """

    def __init__(self, table: SinkTable) -> None:
        self.bare = table

    def read(self) -> TableView:
        return self.bare.read()

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        return self.bare.commit(attempt)

    def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
        why = "tables of this format get no new columns"
        refused = tuple(Refusal((column.name,), why) for column in columns.fields)
        return EvolvedTable(base, refused=refused)

    def close(self) -> None:
        self.bare.close()
