"""Makes a claim whose coordinator is a person (rule EPOCH-1), on the sink's own table.

It requires what every commit requires (rule TABLE-3): if the sink is running after all, one of the
two is refused. It raises the epoch, so that no earlier event counts any more.
"""

from __future__ import annotations

import getpass
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import Any

from headgate.config.configuration_fingerprint import configuration_digest
from headgate.config.quarantine_settings import QuarantineSettings
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import OPERATOR, CommitRecord, PendingCommit
from headgate.control_protocol.errors import RetryLater
from headgate.control_protocol.events import Notice, NoticeKind, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    PrimaryTable,
    TableView,
    TopicState,
    Unknown,
)
from headgate.control_protocol.table_format import RollbackSnapshot
from headgate.runtime.process_notices import try_append_notice
from headgate.runtime.sink_tables import open_tables_creating_nothing

# Identifies who issues a command, for commit records and notices.


_ACTOR: ContextVar[str] = ContextVar("actor", default="")
_CHARS_MAX = 200
_ANSWER_MS = 8_000
"""Processes leave because of this notice when the sink is stopped, so it gets more patience."""


@contextmanager
def acting_as_operator(actor: str) -> Iterator[None]:
    """Name somebody other than this process's user, within this context."""
    before = _ACTOR.set(actor[:_CHARS_MAX])
    try:
        yield
    finally:
        _ACTOR.reset(before)


def current_actor() -> str:
    """Return who acts: the user of this process, unless somebody else was named."""
    if named := _ACTOR.get():
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"[:_CHARS_MAX]


def try_announce_command(settings: SinkSettings, command_text: str) -> None:
    """Announce on the control topic what was done, by whom, and with which sink file; best effort.

    For people, and for those that wait for a start (CONFIG-1).
    """
    sender = Sender(OPERATOR, uuid.uuid4().hex[:12])
    digest = configuration_digest(settings)
    notice = Notice(
        NoticeKind.ASKED, text=command_text, actor=current_actor(), configuration=digest
    )
    try_append_notice(settings, sender, notice, answer_timeout_ms=_ANSWER_MS)


def make_first_record(
    settings: SinkSettings,
    offsets: Mapping[TopicPartition, int],
    topics: Mapping[str, TopicState],
    *,
    epoch: int = 0,
    **facts: Any,
) -> CommitRecord:
    """Return a person's record of a table that the sink has not filled yet.

    In epoch 0, which is below each claim, it is what a first claim follows. ``facts``: more of its
    fields.
    """
    return CommitRecord(
        sink=settings.name,
        group_id=settings.source.group_id,
        transaction=TransactionId(Epoch(epoch), TransactionNumber(0)),
        coordinator=Sender(OPERATOR, uuid.uuid4().hex[:12]),
        offsets=Offsets(offsets),
        topic_ids={name: state.topic_id for name, state in topics.items()},
        recreated_topics="",
        **facts,
    )


def make_claim(before: CommitRecord, command: str, **changes: Any) -> CommitRecord:
    """Return the claim that follows ``before``, made by ``command``; it adds no rows."""
    sender = Sender(OPERATOR, uuid.uuid4().hex[:12])
    return before.next_operator_claim(sender, command, current_actor(), **changes)


def with_secondary_claims(quarantine: QuarantineSettings, claim: CommitRecord) -> CommitRecord:
    """PENDING-9: claim the secondary tables too, because records are read again before the next
    START."""
    uuids = set(claim.secondaries.values())
    claims = tuple(
        PendingCommit(claim.transaction, claim.coordinator, uuid_, name or quarantine.table)
        for name, uuid_ in sorted(claim.secondaries.items())
    )
    kept = tuple(
        pending_commit
        for pending_commit in claim.pending_commits
        if pending_commit.manifest or pending_commit.secondary not in uuids
    )
    return claim.with_pending((*kept, *claims))


def why_not_landed(table: PrimaryTable, record: CommitRecord, outcome: CommitOutcome) -> str | None:
    """Return why the commit with this record is not there, or None if it is.

    Where nobody knows, the table tells.
    """
    if isinstance(outcome, Landed):
        return None
    if isinstance(outcome, Unknown) and record.is_same_commit(table.read().record):
        return None
    return outcome.reason


def commit_claim_or_raise(
    settings: SinkSettings,
    view: TableView,
    claim: CommitRecord,
    error_if_not_landed: RetryLater,
    *,
    rollback_to: RollbackSnapshot | None = None,
    files: tuple[WrittenFile, ...] = (),
    fence: Mapping[str, str] | None = None,
) -> None:
    """Commit the claim on the table as it was read; ``rollback_to``: on an older snapshot of it.

    ``files`` and ``fence``: what a takeover brings (``CommitAttempt``).
    Raises an error like ``error_if_not_landed``, with the reason, if it was refused or if it is
    unknown whether it landed.
    """
    with open_tables_creating_nothing(settings) as tables, closing(tables.open_primary()) as table:
        attempt = CommitAttempt(view, claim, files, fence=fence or {})
        outcome = (
            table.commit(attempt) if rollback_to is None else tables.roll_back(attempt, rollback_to)
        )
        reason = why_not_landed(table, claim, outcome)
        if reason is None:
            try_announce_command(settings, claim.command or "claim")
            return
    raise RetryLater(f"{error_if_not_landed.message}: {reason}", error_if_not_landed.hint)
