"""Makes a claim whose coordinator is a person (rule C2), on the sink's own table.

It requires what every commit requires (rule C1): if the sink is running after all, one of the two
is refused. It raises the epoch, so that nothing said before counts any more.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from headgate.control_protocol.errors import RetryLater
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.ports import CommitAttempt, Landed, TableView, Unknown
from headgate.control_protocol.record import OPERATOR, CommitRecord, Debt
from headgate.operations.actor import actor, tell
from headgate.operations.table_access import opened_lead
from headgate.sink.settings import SinkSettings
from headgate.tables.iceberg.proposal import GoingBack

if TYPE_CHECKING:
    from headgate.tables.iceberg.table import IcebergTable


def operators_claim(before: CommitRecord, command: str, **changes: Any) -> CommitRecord:
    """Return the claim that follows ``before``, made by ``command``; it adds no rows."""
    return replace(
        before,
        transaction=TransactionId(Epoch(before.transaction.epoch + 1), TransactionNumber(0)),
        coordinator=Sender(OPERATOR, uuid.uuid4().hex[:12]),
        records=0,
        quarantined=0,
        skipped=0,
        command=command,
        actor=actor(),
        **changes,
    )


def claiming_followers(settings: SinkSettings, claim: CommitRecord) -> CommitRecord:
    """D9: claim the followers too, because records are read again before the next START."""
    uuids = set(claim.followers.values())
    claims = tuple(
        Debt(claim.transaction, claim.coordinator, uuid_, name or settings.quarantine.table)
        for name, uuid_ in sorted(claim.followers.items())
    )
    kept = tuple(debt for debt in claim.debts if debt.manifest or debt.follower not in uuids)
    return replace(claim, debts=(*kept, *claims))


def land(
    settings: SinkSettings,
    view: TableView,
    claim: CommitRecord,
    failed: RetryLater,
    *,
    back: GoingBack | None = None,
) -> None:
    """Commit the claim on the table as it was read.

    Raises an error like ``failed``, with the reason, if it was refused or if it is unknown whether
    it landed.
    """
    with opened_lead(settings) as table:
        attempt = CommitAttempt(view, claim)
        if back is None:
            outcome = table.commit(attempt)
        else:
            # No other kind is rolled back.
            outcome = cast("IcebergTable", table).commit(attempt, back)
        unknown = isinstance(outcome, Unknown)
        if isinstance(outcome, Landed) or (unknown and claim.same_commit(table.read().record)):
            tell(settings, claim.command or "claim")
            return
    raise RetryLater(f"{failed.message}: {outcome.reason}", failed.hint)
