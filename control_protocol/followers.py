"""The port to all followers of a sink at once. Its adapter is ``FollowerTables``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.identifiers import Epoch
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Draft, TableView
from headgate.control_protocol.record import Debt
from headgate.control_protocol.table_changes import Changed, Want


class Followers(Protocol):
    """All followers of a sink, by table name; several are called at once.

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

    def draft(self, drafts: Sequence[Draft]) -> Mapping[str, tuple[Debt, ...] | HeadgateError]:
        """Return the debts of each draft's table, in order; raises as ``Follower.draft`` does."""

    def change(self, wants: Sequence[Want]) -> tuple[Changed, ...]:
        """Make or change the tables, in order; makes missing ones without UUID. Never raises."""

    def pay(
        self, payments: Sequence[CommitAttempt], timeout_ms: int
    ) -> Mapping[str, CommitOutcome | HeadgateError]:
        """Make one catalog call per payment, or one for all where tables are paid together (D5).

        A call that takes longer is ``Unknown``, and goes on meanwhile.
        """

    def tidy(self, before: Epoch, owed: frozenset[str]) -> None:
        """Do as ``Follower.tidy``, for all of them."""

    def strike_off(self, debts: Sequence[Debt]) -> None:
        """Do as ``Follower.strike_off``; the debts may be of several tables."""

    def close(self) -> None: ...
