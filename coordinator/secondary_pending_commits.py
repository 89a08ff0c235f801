"""Tells what is pending for secondary tables, and what each one's next delivery is (rules PENDING-4
to PENDING-9). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.commit_record_codec import PENDING_COMMITS_MAX
from headgate.control_protocol.errors import SecondaryForeign, TableRecreated
from headgate.control_protocol.ports import CommitAttempt, Lineage, TableView

Secondaries = Mapping[str, TableView]
"""By table name."""

EXPIRED_MAX = 1_000
"""A record names up to so many expired pending commits one by one (rule PENDING-8)."""

_WALL_MS_MIN = 1_000_000_000_000
"""No credible wall clock shows an earlier time (2001)."""


def is_delivered(
    pending_commit: PendingCommit, secondary: TableView | None, primary_uuid: str
) -> bool:
    """PENDING-6: return whether the secondary table's record is at or above the transaction;
    equality is no test.

    Transactions of another primary table prove nothing.
    """
    record = (
        secondary.current_record
        if secondary and secondary.uuid == pending_commit.secondary
        else None
    )
    return record is not None and record.has_received(pending_commit, primary_uuid)


def find_undelivered_commits(
    pending_commits: Iterable[PendingCommit], secondaries: Secondaries, primary_uuid: str
) -> tuple[PendingCommit, ...]:
    """PENDING-7: return the pending commits that the secondary tables do not show as delivered."""
    return tuple(
        pending_commit
        for pending_commit in pending_commits
        if not is_delivered(pending_commit, secondaries.get(pending_commit.table), primary_uuid)
    )


def find_overdue_commits(
    pending_commits: Iterable[PendingCommit], wall_ms: int, age_max_ms: int
) -> tuple[PendingCommit, ...]:
    """PENDING-8: return pending commits whose files others' orphan clean-up may have removed.
    Claims have none."""
    return tuple(
        pending_commit
        for pending_commit in pending_commits
        if pending_commit.manifest and wall_ms - pending_commit.since_ms > age_max_ms
    )


def with_unknown_ages_begun(
    pending_commits: Iterable[PendingCommit], wall_ms: int
) -> tuple[PendingCommit, ...]:
    """PENDING-8: let the age of those begin now that were decided without a credible wall clock.

    Earlier versions decided some by a clock that counts from the machine's boot, and a machine may
    not know the time yet when it decides. They would expire seconds after the decision.
    """
    return tuple(
        replace(each, since_ms=wall_ms) if each.manifest and each.since_ms < _WALL_MS_MIN else each
        for each in pending_commits
    )


def pending_commits_without(
    pending_commits: Iterable[PendingCommit], gone: Collection[PendingCommit]
) -> tuple[PendingCommit, ...]:
    return tuple(pending_commit for pending_commit in pending_commits if pending_commit not in gone)


def expired_commits_for_record(
    stored: CommitRecord | None, expiring: Iterable[PendingCommit]
) -> tuple[PendingCommit, ...]:
    """PENDING-8: return the expired pending commits to record, oldest first; beyond the limit the
    older half as sums.

    A sum stands for all that one secondary table never received: its ``rows`` and ``deletes``, no
    manifest, and the newest of its transactions, which is the one that fences.
    """
    anew = tuple(expiring)
    expired = (*(stored.expired if stored else ()), *anew)
    if len(expired) <= EXPIRED_MAX:
        return expired
    # What expires now is named once, so that it is logged, up to what a record can be read with.
    named = min(max(EXPIRED_MAX // 2, len(anew)), PENDING_COMMITS_MAX // 2)
    newest = expired[-named:]
    sums: dict[str, PendingCommit] = {}
    for pending_commit in expired[:-named]:
        before = sums.pop(pending_commit.secondary, None)
        rows, deletes, last = pending_commit.rows, pending_commit.deletes, pending_commit
        if before:
            rows, deletes = rows + before.rows, deletes + before.deletes
            last = max(before, pending_commit, key=lambda each: each.transaction)
        sums[pending_commit.secondary] = replace(
            last, rows=rows, deletes=deletes, manifest="", size_bytes=0
        )
    return (*sums.values(), *newest)


def build_deliveries(
    primary: TableView,
    pending_commits: tuple[PendingCommit, ...],
    secondaries: Secondaries,
    expiring: Collection[PendingCommit],
) -> tuple[CommitAttempt, ...]:
    """PENDING-5: return one call per secondary table for all that is pending for it, the oldest
    first.

    A secondary table with one of the ``expiring`` commits waits for the decision that lets that
    expire: otherwise its record would pass the transaction as if that had been delivered.
    """
    # nothing newer either: its record would pass the transaction, and PENDING-6 would call lost
    # rows delivered
    expiring_tables = {pending_commit.secondary for pending_commit in expiring}
    return tuple(
        _build_delivery(primary, pending, secondary)
        for secondary in secondaries.values()
        if (
            pending := tuple(
                pending_commit
                for pending_commit in pending_commits
                if pending_commit.secondary == secondary.uuid
            )
        )
        and secondary.uuid not in expiring_tables
    )


def _build_delivery(
    primary: TableView, pending: tuple[PendingCommit, ...], secondary: TableView
) -> CommitAttempt:
    """Build the delivery. Its record has the primary table's offsets, which never go back there
    (QUARANTINE-3).

    What was given back to it from the quarantine is carried on (SUSPEND-6).
    """
    decided, newest, before = primary.record, pending[-1], secondary.current_record
    assert decided is not None, (
        "a pending commit was read under the primary table's tag (PENDING-4)"
    )
    offsets = decided.offsets
    if before:
        offsets = offsets.with_offsets(before.offsets_ahead_of(offsets, decided.topic_ids))
    record = CommitRecord(
        sink=decided.sink,
        group_id=decided.group_id,
        transaction=newest.transaction,
        coordinator=newest.coordinator,
        offsets=offsets,
        topic_ids=decided.topic_ids,
        records=sum(pending_commit.rows for pending_commit in pending),
        valid_through_ms=decided.valid_through_ms,
        primary=primary.uuid,
        replayed=before.replayed if before else None,
        cohorts=decided.cohorts,
    )
    return CommitAttempt(secondary, record, pending_commits=pending)


def claims_needed_of_secondaries(
    claim: CommitRecord, before: CommitRecord | None, secondaries: Secondaries, primary: TableView
) -> tuple[PendingCommit, ...]:
    """PENDING-9: return an empty pending commit for each secondary table that an old delivery might
    still reach otherwise.

    That is every secondary table where the primary table went back, else each that does not follow
    this primary table yet.
    """
    back = (
        primary.lineage is not Lineage.CONTAINS_TAG
        or before is None
        or _has_primary_gone_back(before, claim)
    )
    # ``back`` claims every secondary table: an old delivery may be under way to each of them
    return tuple(
        PendingCommit(claim.transaction, claim.coordinator, secondary.uuid, name)
        for name, secondary in sorted(secondaries.items())
        if back or not _follows_primary(secondary, primary, before)
    )


def _has_primary_gone_back(before: CommitRecord, claim: CommitRecord) -> bool:
    return bool(claim.offsets.partitions_behind(before.offsets))


def _follows_primary(secondary: TableView, primary: TableView, before: CommitRecord | None) -> bool:
    known = before.secondary_uuid(secondary.table) if before else None
    return (
        secondary.lineage is Lineage.CONTAINS_TAG
        and secondary.record is not None
        and secondary.record.primary == primary.uuid
        and secondary.uuid == known
    )


class PendingAtClaim(NamedTuple):
    """Holds what a claim carries on of what is pending, and what it cannot."""

    carried_on: tuple[PendingCommit, ...]
    lost: tuple[PendingCommit, ...]


def split_pending_at_claim(
    pending_commits: Iterable[PendingCommit],
    claims: tuple[PendingCommit, ...],
    secondaries: Secondaries,
) -> PendingAtClaim:
    """Split pending commits into those to carry on, new claims last, and those whose secondary
    table was replaced.

    What is pending for a secondary table that was not read is carried on as it is.
    """
    uuids = {name: secondary.uuid for name, secondary in secondaries.items()}
    lost = tuple(d for d in pending_commits if uuids.get(d.table, d.secondary) != d.secondary)
    anew = {pending_commit.secondary for pending_commit in claims}
    kept = tuple(
        pending_commit
        for pending_commit in pending_commits_without(pending_commits, lost)
        if pending_commit.manifest
        or not (pending_commit.is_claim and pending_commit.secondary in anew)
    )
    return PendingAtClaim((*kept, *claims), lost)


def are_secondaries_consistent_with_primary(
    secondaries: Secondaries, primary: TableView, pending_commits: Iterable[PendingCommit]
) -> bool:
    """Return whether each secondary table is where this primary table's decisions and deliveries
    can have left it."""
    awaited = {
        pending_commit.secondary for pending_commit in pending_commits if pending_commit.is_claim
    }
    intact = (Lineage.CONTAINS_TAG, Lineage.FRESH)
    return all(
        secondary.uuid in awaited
        or (secondary.lineage in intact and not _reason_if_foreign_or_ahead(secondary, primary))
        for secondary in secondaries.values()
    )


def are_secondaries_own_and_not_ahead(secondaries: Secondaries, primary: TableView) -> bool:
    """Return whether no secondary table is another primary table's, or beyond this one."""
    return not any(
        _reason_if_foreign_or_ahead(secondary, primary)
        for secondary in secondaries.values()
        if primary.record
    )


def find_secondaries_ahead(secondaries: Secondaries, primary: TableView) -> frozenset[str]:
    """Return the secondary tables that hold what this primary table, as it was read, has not
    decided yet."""
    return frozenset(
        name
        for name, secondary in secondaries.items()
        if (delivered := secondary.current_record)
        and delivered.primary == primary.uuid
        and _reason_if_foreign_or_ahead(secondary, primary)
    )


def require_secondaries_own_and_not_ahead(
    secondaries: Secondaries, primary: TableView, pending_commits: Iterable[PendingCommit]
) -> None:
    """PENDING-9. Raises ``SecondaryForeign`` for a secondary table of another primary table, or
    beyond this one.

    Where the primary table looks new, the primary table itself was created again:
    ``TableRecreated``.
    """
    awaited = {
        pending_commit.secondary for pending_commit in pending_commits if pending_commit.is_claim
    }
    for secondary in secondaries.values():
        objection = _reason_if_foreign_or_ahead(secondary, primary)
        if objection and secondary.uuid not in awaited:
            if primary.lineage is Lineage.FRESH:
                raise TableRecreated(
                    f"{secondary.table} {objection}: the table was dropped and re-created",
                    "headgate resume SINK --accept HG-202=restart (at each start: "
                    "coordinator.on_table_recreated) fills the new one from source.start_at",
                )
            raise SecondaryForeign(
                f"{secondary.table} {objection}",
                "is it the quarantine of another sink with this name? then name another one; if "
                f"{primary.table} was set back or re-created, headgate resume SINK --accept "
                "HG-215=restart continues with it as it is",
            )


def _reason_if_foreign_or_ahead(secondary: TableView, primary: TableView) -> str:
    record, decided = secondary.current_record, primary.record
    if record is None or record.primary is None:
        return ""
    if record.primary != primary.uuid:
        return (
            f"was delivered by the table with UUID {record.primary}, but {primary.table} has "
            f"{primary.uuid}"
        )
    intact = primary.lineage is Lineage.CONTAINS_TAG and decided is not None
    if intact and decided and record.transaction > decided.transaction:
        return (
            f"holds transaction {record.transaction}, but the newest one that {primary.table} "
            f"decided is {decided.transaction}"
        )
    return ""


def is_unfenced_against_expired(
    secondary: TableView, expired: Iterable[PendingCommit], pending: Iterable[PendingCommit]
) -> bool:
    """PENDING-8: return whether a delivery of an expired pending commit under way would still find
    the tag unmoved."""
    record = secondary.current_record
    passed = any(
        pending_commit.secondary == secondary.uuid
        and not (record and record.transaction >= pending_commit.transaction)
        for pending_commit in expired
    )
    return passed and all(pending_commit.secondary != secondary.uuid for pending_commit in pending)


def empty_pending_commit(decision: CommitRecord, secondary: TableView) -> PendingCommit:
    """Return an empty pending commit, whose delivery moves a secondary table's tag near its head
    (QUARANTINE-2)."""
    return PendingCommit(
        decision.transaction, decision.coordinator, secondary.uuid, secondary.table
    )
