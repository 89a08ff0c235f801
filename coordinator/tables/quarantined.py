"""A table with its quarantine: what the coordinator reads as one, and commits in two calls.

The quarantine goes first. Whoever finds it ahead of the table knows that a commit ended between the
two calls, and writes what is in it already no second time (rules Q1 to Q5 of PROTOCOL.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Lead,
    TableView,
)
from headgate.control_protocol.record import CommitRecord


class QuarantinedTable:
    """``Lead`` over two others. Its outcomes are the table's; only a call of the quarantine
    that did not land ends a commit before that. ``told`` is called, and must not wait, after a
    commit whose quarantine's part landed: what is in there stays, whatever became of the rest."""

    def __init__(
        self, table: Lead, quarantine: Lead, told: Callable[[], None] = lambda: None
    ) -> None:
        self._table = table
        self._quarantine = quarantine
        self._told = told

    def read(self) -> TableView:
        return replace(self._table.read(), quarantine=self._quarantine.read())

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        quarantine = attempt.base.quarantine
        assert quarantine is not None, "the base was read by another adapter"
        if attempt.quarantined is not None and not attempt.record.same_commit(quarantine.record):
            record = quarantine_record(attempt.record, quarantine)
            rows = sum(file.record_count for file in attempt.quarantined)
            record = replace(record, records=rows)
            aside = self._quarantine.commit(CommitAttempt(quarantine, record, attempt.quarantined))
            if not isinstance(aside, Landed):
                return aside
            quarantine = aside.view
        outcome = self._commit_table(attempt, quarantine)
        if attempt.quarantined is not None:
            self._told()
        return outcome

    def _commit_table(self, attempt: CommitAttempt, quarantine: TableView) -> CommitOutcome:
        base = replace(attempt.base, quarantine=None)
        outcome = self._table.commit(replace(attempt, base=base, quarantined=None))
        if isinstance(outcome, Landed):
            return replace(outcome, view=replace(outcome.view, quarantine=quarantine))
        return outcome

    def close(self) -> None:
        self._table.close()
        self._quarantine.close()


def quarantine_record(record: CommitRecord, quarantine: TableView) -> CommitRecord:
    """What the quarantine's own tag will say of this commit (Q2).

    Its offsets never go back: they tell which records may be in it already. A claim brings none, so
    it leaves them as they are.
    """
    before = quarantine.settled
    offsets, topic_ids = record.offsets, record.topic_ids
    if record.claim:
        offsets = before.offsets if before else Offsets()
        topic_ids = before.topic_ids if before else {}
    elif before:
        offsets = offsets.moved(before.ahead_of(offsets, topic_ids))
    return replace(
        record,
        offsets=offsets,
        topic_ids=topic_ids,
        quarantined=0,
        skipped=0,
        quarantine=None,
    )
