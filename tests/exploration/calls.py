"""A commit of a small world as its single catalog calls, made by the real adapter of two tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, TableView
from headgate.coordinator.tables.quarantined import QuarantinedTable


@dataclass(frozen=True, slots=True)
class Asked:
    """The next call, which waits for its answer."""

    attempt: CommitAttempt

    def __str__(self) -> str:
        return f"commit {self.attempt.record.transaction} to {self.attempt.base.table}"


class _Waits(Exception):
    def __init__(self, attempt: CommitAttempt) -> None:
        self.attempt = attempt


class _Scripted:
    """Answers as the world did, in order; then it waits."""

    def __init__(self, answers: Iterator[CommitOutcome]) -> None:
        self._answers = answers

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        for answer in self._answers:
            return answer
        raise _Waits(attempt)

    def read(self) -> TableView:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


def asked(attempt: CommitAttempt, answers: tuple[CommitOutcome, ...]) -> Asked | CommitOutcome:
    """What becomes of the commit with these answers: the next call, or its outcome."""
    scripted = _Scripted(iter(answers))
    table = QuarantinedTable(scripted, scripted) if attempt.base.quarantine else scripted
    try:
        return table.commit(attempt)
    except _Waits as waits:
        return Asked(waits.attempt)
