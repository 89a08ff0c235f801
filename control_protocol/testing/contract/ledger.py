"""Tests a table that remembers which tables a sink has filled through it (rule LEDGER-2)."""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.ports import CommitAttempt, Refused
from headgate.control_protocol.testing.contract.world import (
    World,
    claim_table,
    commit,
    record,
    require_landed,
)


class LedgerContract:
    """The tests take a fixture ``world``, a ``World``."""

    def test_ledger_2_what_was_filled_is_remembered_until_a_commit_forgets_it(
        self, world: World
    ) -> None:
        table = world.open()
        view = claim_table(table)
        assert view.filled == {}
        view = require_landed(commit(table, view, record_with_pending(1, "lake.a", "lake.b")))
        assert view.filled == {"lake.a": "u1", "lake.b": "u1"}
        assert world.open("other").read().filled == {}
        view = require_landed(commit(table, view, record_with_pending(2, "lake.b", uuid="u2")))
        assert world.open().read().filled == {"lake.a": "u1", "lake.b": "u2"}
        gone = frozenset({"lake.a", "lake.b", "lake.never"})
        attempt = CommitAttempt(view, record_with_pending(3, "lake.b", uuid="u3"), forgets=gone)
        view = require_landed(table.commit(attempt))
        assert world.open().read().filled == view.filled == {"lake.b": "u3"}

    def test_ledger_2_a_refused_decision_remembers_nothing(self, world: World) -> None:
        table = world.open()
        view = claim_table(table)
        claim_table(world.open(), epoch=2)
        assert isinstance(commit(table, view, record_with_pending(1, "lake.a")), Refused)
        assert world.open().read().filled == {}


def record_with_pending(number: int, *tables: str, uuid: str = "u1") -> CommitRecord:
    """Return a decision that has pending rows to these tables."""
    decided = record(1, number, number)
    pending_commits = (
        PendingCommit(
            decided.transaction, decided.coordinator, uuid, table, f"{table}/{number}.avro"
        )
        for table in tables
    )
    return replace(decided, pending_commits=tuple(pending_commits))
