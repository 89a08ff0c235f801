"""The port to all secondary tables of a sink at once. Its adapter is ``SecondaryTables``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.identifiers import Epoch
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Draft, TableView
from headgate.control_protocol.record import PendingCommit
from headgate.control_protocol.table_changes import Changed, Want


class Secondaries(Protocol):
    """All secondary tables of a sink, by table name; several are called at once.

    Where the sink can do without one of them, its error is an answer like any other (I1).
    """

    def describe(self, tables: Collection[str]) -> Mapping[str, TableView | HeadgateError]:
        """Return those that answered; one that cannot be reached now is left out.

        Raises ``TableMissing``, ``RecordUnreadable``, ``StopSink`` for those that must be there.
        """

    def missing(self, tables: Collection[str]) -> Mapping[str, TableMissing]:
        """Return those that no longer exist (rule N5); cheap where most of them do.

        Raises ``Unreachable``.
        """

    def draft(
        self, drafts: Sequence[Draft]
    ) -> Mapping[str, tuple[PendingCommit, ...] | HeadgateError]:
        """Return the pending commits of each draft's table, in order; raises as
        ``SecondaryTable.draft`` does."""

    def change(self, wants: Sequence[Want]) -> tuple[Changed, ...]:
        """Make or change the tables, in order; makes missing ones without UUID. Never raises."""

    def deliver(
        self, deliveries: Sequence[CommitAttempt], timeout_ms: int
    ) -> Mapping[str, CommitOutcome | HeadgateError]:
        """Make one catalog call per delivery, or one for all where tables are delivered to together
        (D5).

        A call that takes longer is ``Unknown``, and goes on meanwhile.
        """

    def tidy(self, before: Epoch, pending: frozenset[str]) -> None:
        """Do as ``SecondaryTable.tidy``, for all of them."""

    def acknowledge(self, pending_commits: Sequence[PendingCommit]) -> None:
        """Do as ``SecondaryTable.acknowledge``; the pending commits may be of several tables."""

    def close(self) -> None: ...
