"""What followers are owed, and what each one's next payment is (rules D4 to D9). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from headgate.control_protocol.debts_codec import DEBTS_MAX
from headgate.control_protocol.errors import FollowerForeign, TableRecreated
from headgate.control_protocol.ports import CommitAttempt, Lineage, TableView
from headgate.control_protocol.record import CommitRecord, Debt

Followers = Mapping[str, TableView]
"""By table name."""

LAPSED_MAX = 1_000
"""A record names up to so many lapsed debts one by one (rule D8)."""


def paid(debt: Debt, follower: TableView | None, lead: str) -> bool:
    """D6: return whether the follower's record is at or above the transaction; equality is no test.

    Transactions of another lead prove nothing.
    """
    record = follower.settled if follower and follower.uuid == debt.follower else None
    return record is not None and record.pays(debt, lead)


def unpaid(debts: Iterable[Debt], followers: Followers, lead: str) -> tuple[Debt, ...]:
    """D7: return the debts that the followers do not show as paid."""
    return tuple(debt for debt in debts if not paid(debt, followers.get(debt.table), lead))


def overdue(debts: Iterable[Debt], wall_ms: int, age_max_ms: int) -> tuple[Debt, ...]:
    """D8: return debts whose files others' orphan clean-up may have removed. Claims have none."""
    return tuple(debt for debt in debts if debt.manifest and wall_ms - debt.since_ms > age_max_ms)


def without(debts: Iterable[Debt], gone: Collection[Debt]) -> tuple[Debt, ...]:
    return tuple(debt for debt in debts if debt not in gone)


def lapsed_so_far(stored: CommitRecord | None, late: Iterable[Debt]) -> tuple[Debt, ...]:
    """D8: return the lapsed debts to record, oldest first; beyond the limit the older half as sums.

    A sum stands for all that one follower never received: its ``rows`` and ``deletes``, no
    manifest, and the newest of its transactions, which is the one that fences.
    """
    anew = tuple(late)
    lapsed = (*(stored.lapsed if stored else ()), *anew)
    if len(lapsed) <= LAPSED_MAX:
        return lapsed
    # What lapses now is named once, so that it is logged, up to what a record can be read with.
    named = min(max(LAPSED_MAX // 2, len(anew)), DEBTS_MAX // 2)
    newest = lapsed[-named:]
    sums: dict[str, Debt] = {}
    for debt in lapsed[:-named]:
        before = sums.pop(debt.follower, None)
        rows, deletes, last = debt.rows, debt.deletes, debt
        if before:
            rows, deletes = rows + before.rows, deletes + before.deletes
            last = max(before, debt, key=lambda each: each.transaction)
        sums[debt.follower] = replace(last, rows=rows, deletes=deletes, manifest="", size_bytes=0)
    return (*sums.values(), *newest)


def payments(
    lead: TableView, debts: tuple[Debt, ...], followers: Followers, late: Collection[Debt]
) -> tuple[CommitAttempt, ...]:
    """D5: return one call per follower for all that it is owed, the oldest first.

    A follower with a debt that is too ``late`` waits for the decision that lets it lapse: otherwise
    its record would pass the transaction as if that had been paid.
    """
    late_ones = {debt.follower for debt in late}
    return tuple(
        _payment(lead, owed, follower)
        for follower in followers.values()
        if (owed := tuple(debt for debt in debts if debt.follower == follower.uuid))
        and follower.uuid not in late_ones
    )


def _payment(lead: TableView, owed: tuple[Debt, ...], follower: TableView) -> CommitAttempt:
    """Build the payment. Its record has the lead's offsets, which never go back there (Q5).

    What was given back to it from the quarantine is carried on (I6).
    """
    decided, newest, before = lead.record, owed[-1], follower.settled
    assert decided is not None, "a debt was read under the lead's tag (D4)"
    offsets = decided.offsets
    if before:
        offsets = offsets.moved(before.ahead_of(offsets, decided.topic_ids))
    record = CommitRecord(
        sink=decided.sink,
        group_id=decided.group_id,
        transaction=newest.transaction,
        coordinator=newest.coordinator,
        offsets=offsets,
        topic_ids=decided.topic_ids,
        records=sum(debt.rows for debt in owed),
        valid_through_ms=decided.valid_through_ms,
        lead=lead.uuid,
        replayed=before.replayed if before else None,
        generations=decided.generations,
    )
    return CommitAttempt(follower, record, debts=owed)


def claimed(
    claim: CommitRecord, before: CommitRecord | None, followers: Followers, lead: TableView
) -> tuple[Debt, ...]:
    """D9: return an empty debt for each follower that an old payment might still reach otherwise.

    That is every follower where the lead went back, else each that does not follow this lead yet.
    """
    back = lead.lineage is not Lineage.CONTAINS_TAG or before is None or _fell(before, claim)
    return tuple(
        Debt(claim.transaction, claim.coordinator, follower.uuid, name)
        for name, follower in sorted(followers.items())
        if back or not _follows(follower, lead, before)
    )


def _fell(before: CommitRecord, claim: CommitRecord) -> bool:
    return bool(claim.offsets.behind(before.offsets))


def _follows(follower: TableView, lead: TableView, before: CommitRecord | None) -> bool:
    known = before.follower(follower.table) if before else None
    return (
        follower.lineage is Lineage.CONTAINS_TAG
        and follower.record is not None
        and follower.record.lead == lead.uuid
        and follower.uuid == known
    )


def carried_on(
    debts: Iterable[Debt], claims: tuple[Debt, ...], followers: Followers
) -> tuple[tuple[Debt, ...], tuple[Debt, ...]]:
    """Split debts into those to carry on, new claims last, and those whose follower was replaced.

    What is owed to a follower that was not read is carried on as it is.
    """
    uuids = {name: follower.uuid for name, follower in followers.items()}
    lost = tuple(d for d in debts if uuids.get(d.table, d.follower) != d.follower)
    anew = {debt.follower for debt in claims}
    kept = tuple(
        debt
        for debt in without(debts, lost)
        if debt.manifest or not (debt.claim and debt.follower in anew)
    )
    return (*kept, *claims), lost


def in_order(followers: Followers, lead: TableView, debts: Iterable[Debt]) -> bool:
    """Return whether each follower is where this lead's decisions and payments can have left it."""
    awaited = {debt.follower for debt in debts if debt.claim}
    intact = (Lineage.CONTAINS_TAG, Lineage.FRESH)
    return all(
        follower.uuid in awaited or (follower.lineage in intact and not _objection(follower, lead))
        for follower in followers.values()
    )


def followed(followers: Followers, lead: TableView) -> bool:
    """Return whether no follower is another lead's, or beyond this one."""
    return not any(_objection(follower, lead) for follower in followers.values() if lead.record)


def ahead(followers: Followers, lead: TableView) -> frozenset[str]:
    """Return the followers that were paid what this lead, as it was read, has not decided yet."""
    return frozenset(
        name
        for name, follower in followers.items()
        if (paid := follower.settled) and paid.lead == lead.uuid and _objection(follower, lead)
    )


def refuse_foreign(followers: Followers, lead: TableView, debts: Iterable[Debt]) -> None:
    """D9. Raises ``FollowerForeign`` for a follower of another lead, or beyond this one.

    Where the lead looks new, the lead itself was created again: ``TableRecreated``.
    """
    awaited = {debt.follower for debt in debts if debt.claim}
    for follower in followers.values():
        objection = _objection(follower, lead)
        if objection and follower.uuid not in awaited:
            if lead.lineage is Lineage.FRESH:
                raise TableRecreated(
                    f"{follower.table} {objection}: the table was dropped and re-created",
                    "headgate resume SINK --accept HG-202=restart (at each start: "
                    "coordinator.on_table_recreated) fills the new one from source.start_at",
                )
            raise FollowerForeign(
                f"{follower.table} {objection}",
                "is it the quarantine of another sink with this name? then name another one; if "
                f"{lead.table} was set back or re-created, headgate resume SINK --accept "
                "HG-215=restart continues with it as it is",
            )


def _objection(follower: TableView, lead: TableView) -> str:
    record, decided = follower.settled, lead.record
    if record is None or record.lead is None:
        return ""
    if record.lead != lead.uuid:
        return f"was paid by the table with UUID {record.lead}, but {lead.table} has {lead.uuid}"
    intact = lead.lineage is Lineage.CONTAINS_TAG and decided is not None
    if intact and decided and record.transaction > decided.transaction:
        return (
            f"holds transaction {record.transaction}, but the newest one that {lead.table} "
            f"decided is {decided.transaction}"
        )
    return ""


def unfenced(follower: TableView, lapsed: Iterable[Debt], owed: Iterable[Debt]) -> bool:
    """D8: return whether a payment of a lapsed debt under way would still find the tag unmoved."""
    record = follower.settled
    passed = any(
        debt.follower == follower.uuid and not (record and record.transaction >= debt.transaction)
        for debt in lapsed
    )
    return passed and all(debt.follower != follower.uuid for debt in owed)


def renewal(decision: CommitRecord, follower: TableView) -> Debt:
    """Return an empty debt, whose payment moves a follower's tag near its head (Q4)."""
    return Debt(decision.transaction, decision.coordinator, follower.uuid, follower.table)
