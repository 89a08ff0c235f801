"""Implements a keyed Hudi table: staged files are folded, and upserted by Hudi (rules U1 to U10).

Staged files carry no instant, so that they may come with a later transaction than their own (P8):
each attempt to commit them writes under an instant of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Refused
from headgate.control_protocol.record import KeyCounts
from headgate.control_protocol.table_kinds import numbered
from headgate.tables.hudi import staged
from headgate.tables.hudi.commits import HudiCommits
from headgate.tables.hudi.java import HudiJava
from headgate.tables.hudi.keyed_java import HudiKeyedJava
from headgate.tables.hudi.places import HudiPlace
from headgate.tables.lost_files import refuse_lost
from headgate.tables.stores.folders import named


class HudiKeyedTable(HudiCommits):
    """Implements ``SinkTable`` over a Hudi table with a key; the rest is ``HudiCommits``."""

    def __init__(
        self,
        place: HudiPlace,
        sink: SinkName,
        answer: Callable[[Callable[[], None]], None] = lambda call: call(),
        java: Callable[[HudiPlace, str], HudiKeyedJava] = HudiKeyedJava,
    ) -> None:
        super().__init__(place, sink, answer, java)

    def _renewed(self) -> None:
        self._place.hold_buckets()

    def _instant_of(self, attempt: CommitAttempt, java: HudiJava) -> str:  # noqa: ARG002
        """Take a new instant after removing what earlier attempts left, so it cannot land."""
        for begun in sorted(self._begun):
            self._bury(java, begun)
            self._begun.discard(begun)
        return self._reserved(java)

    def _brought(
        self, attempt: CommitAttempt, java: HudiJava, instant: str
    ) -> CommitAttempt | Refused:
        assert isinstance(java, HudiKeyedJava), "made for it"
        if lost := refuse_lost(self._place.folder, attempt.files):
            return lost
        keys, meta = KeyCounts(), java.meta()
        if attempt.files:
            keys = java.upsert(meta, instant, numbered(attempt))
        else:
            java.nothing(meta, instant)
        return replace(attempt, record=replace(attempt.record, keys=keys))

    def _lost(self, attempt: CommitAttempt, java: HudiJava) -> Refused | None:  # noqa: ARG002
        """Check what Hudi has written; the staged files were read."""
        assert isinstance(java, HudiKeyedJava), "made for it"
        brought = java.brought()
        for path, size in zip(brought, self._place.folder.sizes(brought), strict=True):
            if size is None:
                return Refused(f"others have removed {path}")
        return None

    def _refusal(self, attempt: CommitAttempt, java: HudiJava, instant: str) -> Refused | None:
        """Refuse lost files: on S3, one may appear only after its instant was rolled back."""
        assert isinstance(java, HudiKeyedJava), "made for it"
        refusal = super()._refusal(attempt, java, instant)
        if refusal and refusal.for_good:
            self._place.folder.remove(java.brought())
        return refusal

    def _done(self, attempt: CommitAttempt) -> None:
        folder = self._place.folder
        folder.remove([named(folder.location, file.path) for file in attempt.files])
        if attempt.record.claim:
            staged.sweep(folder)
