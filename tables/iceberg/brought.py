"""What a commit adds besides its own files: drafts that are paid, and the effects of keys.

A payment adds all that its debts name, even of several transactions, and resolves all keys at once,
on the head that its call requires (rules D5, U3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from headgate.control_protocol.key_errors import KeyChanged
from headgate.control_protocol.ports import CommitAttempt
from headgate.control_protocol.record import Debt
from headgate.tables.iceberg.drafts import drafted_keys, read_draft
from headgate.tables.iceberg.proposal import Proposal
from headgate.tables.iceberg.small_files import sinks_folder

if TYPE_CHECKING:  # commands that only read load no reader of files
    from headgate.tables.iceberg.keyed.keyed_rows import KeyedRows


def with_all_brought(
    table: Table, proposal: Proposal, attempt: CommitAttempt, keyed: KeyedRows | None
) -> Proposal:
    """Add the drafts of the debts and, in a keyed table, the rows that die to the proposal.

    Raises ``KeyChanged`` for keys that are owed to a table without a key, what ``KeyedRows.found``
    raises, and what storage raises.
    """
    drafted = [read_draft(table, debt, proposal.snapshot_id) for debt in _of_rows(attempt)]
    proposal = replace(proposal, drafted=drafted)
    if keyed is not None:
        return _resolved(table, proposal, attempt, keyed)
    if any(debt.deletes for debt in attempt.debts):
        raise KeyChanged(
            f"table {attempt.base.table} is owed records that delete rows by their key, and the "
            "settings name no key",
            "put the key back: what was decided is paid by it",
        )
    return proposal


def _resolved(
    table: Table, proposal: Proposal, attempt: CommitAttempt, keyed: KeyedRows
) -> Proposal:
    """U3: add what the files' records replace and delete on the head that the call requires."""
    brought = [(file, 0) for file in attempt.files]
    order = {each: n for n, each in enumerate(sorted({d.transaction for d in attempt.debts}))}
    for debt, draft in zip(_of_rows(attempt), proposal.drafted, strict=True):
        brought += [(file, order[debt.transaction]) for file in draft.written]
    keys = drafted_keys(table.io, attempt.debts)
    brought += [(file, order[debt.transaction]) for debt, file in keys]
    if not brought:
        return proposal
    record, number = attempt.record, attempt.record.transaction
    own = f"{number.epoch}-{record.coordinator.incarnation}/{number.number}"
    folder = f"{sinks_folder(table, record.sink)}/{own}"
    listed = [*proposal.files, *(file for draft in proposal.drafted for file in draft.files)]
    deletions = keyed.found(
        table,
        proposal.parent,
        brought,
        listed=listed,
        folder=folder,
        generations=record.generations,
    )
    counted = replace(proposal.record, keys=deletions.counts)
    return replace(proposal, record=counted, deletions=deletions)


def _of_rows(attempt: CommitAttempt) -> list[Debt]:
    return [debt for debt in attempt.debts if debt.manifest and not debt.deletes]
