"""Repeats a batch that fails with temporary keys, with new ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from headgate.control_protocol.errors import MissingRights
from headgate.control_protocol.ports import Batch, BatchFailed, BatchOutcome, BatchWriter


class Forgetful(Protocol):
    """Keeps temporary keys."""

    def forget_temporary(self) -> bool: ...


class RenewingWriter:
    """A ``BatchWriter`` whose ``plans`` forget temporary keys with each failure.

    Stores answer 400, 401 or 403 to expired keys, and clients lose some of the text: so failures
    are not distinguished, and no refusal is final.
    """

    def __init__(self, writer: BatchWriter, plans: Forgetful) -> None:
        self._writer = writer
        self._plans = plans

    def submit(self, batch: Batch) -> None:
        self._writer.submit(batch)

    def outcome(self, timeout_ms: int) -> BatchOutcome | None:
        outcome = self._writer.outcome(timeout_ms)
        if not isinstance(outcome, BatchFailed) or not self._plans.forget_temporary():
            return outcome
        refused = isinstance(outcome.fatal, MissingRights)
        return replace(outcome, fatal=None) if refused else outcome

    def close(self) -> None:
        self._writer.close()
