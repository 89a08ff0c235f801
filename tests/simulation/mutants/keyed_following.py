"""KEY-5 and PENDING-7 where secondary tables have keys: what is pending for them, and on which head
it is resolved.

They show in seeds of ``payday.ROUTED_KEYS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulation.mutants.changing import found_at
from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.upsert.upsert_commit import KeyedRows

FAMILY = Family(real=True, keyed=True)


@FAMILY.patches("KEY-5")
def resolved_when_drafted() -> tuple[Planted, ...]:
    """A delivery's positions are those of the head on which the newest pending commit was
    drafted."""
    heads: dict[object, Any] = {}
    draft, found = IcebergTable.stage, KeyedRows.build_deletions_by_key

    def drafts(self: IcebergTable, given: Any) -> Any:
        table = self.load()
        heads[table.metadata.table_uuid] = table.current_snapshot()
        return draft(self, given)

    def finds(self: Any, table: Any, parent: Any, *given: Any, **more: Any) -> Any:
        head = heads.get(table.metadata.table_uuid, parent)
        return found_at(found, head, self, table, parent, *given, **more)

    return (IcebergTable, "stage", drafts), (KeyedRows, "build_deletions_by_key", finds)


@FAMILY.replaces("PENDING-7", (IcebergTable, "commit"))
def key_files_go_with_the_delivery(
    right: Any, self: IcebergTable, attempt: CommitAttempt, *given: Any
) -> CommitOutcome:
    """Key files are removed when a delivery is answered, whatever the answer is."""
    outcome: CommitOutcome = right(self, attempt, *given)
    self.delete_delivered_key_files(
        [pending_commit for pending_commit in attempt.pending_commits if pending_commit.deletes]
    )
    return outcome


@FAMILY.replaces("PENDING-7", (IcebergTable, "delete_delivered_key_files"))
def key_files_are_left(
    _right: Any, _self: IcebergTable, _pending_commits: Sequence[PendingCommit]
) -> None:
    """What was delivered leaves its key files behind."""
