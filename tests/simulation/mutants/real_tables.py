"""TABLE-3, OUTCOME-1 and RETENTION-1 in the real table adapter: what may be deleted, and what was
proven before."""

from __future__ import annotations

from typing import Any

from simulation.mutants.mutant import Family

from headgate.control_protocol.ports import CommitOutcome, Landed, Refused, Unknown
from headgate.tables.iceberg import commit_request
from headgate.tables.iceberg.maintenance import files_of_expired_snapshots, snapshot_expiry
from headgate.tables.iceberg.maintenance.snapshot_removal import SnapshotRemoval
from headgate.tables.iceberg.prepared_commit import PreparedCommit
from headgate.tables.iceberg.table import IcebergTable

FAMILY = Family(real=True)

JUDGED = (IcebergTable, "_settle_failed_call")


@FAMILY.replaces("OUTCOME-1", JUDGED)
def takes_back_what_others_went_on_from(
    right: Any, self: Any, call: PreparedCommit, said: Exception
) -> CommitOutcome:
    """A refused copy of a landed commit deletes its manifests when an heir has moved the tag."""
    outcome: CommitOutcome = right(self, call, said)
    if isinstance(outcome, Unknown) and outcome.reason.startswith("it landed"):
        call.written.delete_written()
        return Refused(str(said))
    return outcome


@FAMILY.replaces("OUTCOME-1", JUDGED)
def takes_back_what_landed(
    right: Any, self: Any, call: PreparedCommit, said: Exception
) -> CommitOutcome:
    """A refused copy of a landed commit deletes its manifests."""
    outcome: CommitOutcome = right(self, call, said)
    if isinstance(outcome, Landed):
        call.written.delete_written()
        return Refused(str(said))
    return outcome


@FAMILY.replaces("OUTCOME-1", (IcebergTable, "send_commit"))
def takes_back_what_is_unknown(right: Any, self: Any, call: PreparedCommit) -> CommitOutcome:
    """Manifests of a commit with an unknown outcome are deleted."""
    outcome: CommitOutcome = right(self, call)
    if isinstance(outcome, Unknown):
        call.written.delete_written()
    return outcome


@FAMILY.replaces("OUTCOME-1", JUDGED)
def believes_a_refusal(
    _right: Any, _self: Any, call: PreparedCommit, said: Exception
) -> CommitOutcome:
    """A refusal is believed, whatever the table says."""
    call.written.delete_written()
    return Refused(str(said))


@FAMILY.replaces("TABLE-3", (commit_request.CommitRequest, "requirements"))
def requires_no_place(right: Any, self: Any) -> Any:
    """A commit requires the table's UUID only."""
    return right(self)[:1]


@FAMILY.replaces("RETENTION-1", (SnapshotRemoval, "_is_exact_successor"))
def any_removal_is_proof(_right: Any, _self: Any, _after: object) -> bool:
    """Files of removed snapshots go, to whatever version the removal was applied."""
    return True


@FAMILY.replaces("RETENTION-1", (SnapshotRemoval, "try_removal_and_prove_exact"))
def removed_or_not(right: Any, self: Any, table: Any) -> bool:
    """Expired files are deleted though their removal was refused."""
    right(self, table)
    return True


@FAMILY.replaces("RETENTION-1", (SnapshotRemoval, "restore_lost_refs"))
def refs_go_along(_right: Any, _self: Any, _table: Any) -> None:
    """A ref that went along with its snapshot is forgotten."""


@FAMILY.replaces("RETENTION-1", (snapshot_expiry, "find_files_only_reachable_from"))
def retained_ones_do_not_count(right: Any, table: Any, removed: Any, time_max_s: float) -> Any:
    """All that a removed snapshot refers to goes, whoever else refers to it."""
    only_in = files_of_expired_snapshots._Reading.split_manifests_by_use
    files_of_expired_snapshots._Reading.split_manifests_by_use = (  # type: ignore[method-assign]
        lambda self, ours, _: (only_in(self, ours, ())[0], set())
    )
    try:
        return right(table, removed, time_max_s)
    finally:
        files_of_expired_snapshots._Reading.split_manifests_by_use = only_in  # type: ignore[method-assign]
