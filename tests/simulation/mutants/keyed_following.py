"""U5 and D7 where followers have keys: what is owed to them, and on which head it is resolved.

They show in seeds of ``payday.ROUTED_KEYS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulation.mutants.changing import found_at
from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol.ports import CommitAttempt, CommitOutcome
from headgate.control_protocol.record import Debt
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.upsert.upsert_commit import KeyedRows

FAMILY = Family(real=True, keyed=True)


@FAMILY.patches("U5")
def resolved_when_drafted() -> tuple[Planted, ...]:
    """A payment's positions are those of the head on which the newest debt was drafted."""
    heads: dict[object, Any] = {}
    draft, found = IcebergTable.draft, KeyedRows.found

    def drafts(self: IcebergTable, given: Any) -> Any:
        table = self.load()
        heads[table.metadata.table_uuid] = table.current_snapshot()
        return draft(self, given)

    def finds(self: Any, table: Any, parent: Any, *given: Any, **more: Any) -> Any:
        head = heads.get(table.metadata.table_uuid, parent)
        return found_at(found, head, self, table, parent, *given, **more)

    return (IcebergTable, "draft", drafts), (KeyedRows, "found", finds)


@FAMILY.replaces("D7", (IcebergTable, "commit"))
def key_files_go_with_the_payment(
    right: Any, self: IcebergTable, attempt: CommitAttempt, *given: Any
) -> CommitOutcome:
    """Key files are removed when a payment is answered, whatever the answer is."""
    outcome: CommitOutcome = right(self, attempt, *given)
    self.strike_off([debt for debt in attempt.debts if debt.deletes])
    return outcome


@FAMILY.replaces("D7", (IcebergTable, "strike_off"))
def key_files_are_left(_right: Any, _self: IcebergTable, _debts: Sequence[Debt]) -> None:
    """What was paid leaves its key files behind."""
