"""The quarantine's checker: looks at every step, and knows only this table and what is bad."""

from __future__ import annotations

from collections import Counter

from simulation.branch import Branch, fell
from simulation.quarantine import Quarantine
from verdicts import Kind, Violation

from headgate.control_protocol.identifiers import SinkName, TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.testing import SourceRecord


class Kept:
    """Rules Q1, Q2 and Q7. Whether a row is in both tables or in none, the oracle says.

    ``rows`` are those in the quarantine, as of the last look.
    """

    def __init__(self, sink: SinkName, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
        self._branch = Branch(sink, quarantine.catalog)
        self._newest: CommitRecord | None = None
        self._snapshot: int | None = None
        self.rows: frozenset[SourceRecord] = frozenset()

    def look(self) -> bool:
        """Whether anything has changed."""
        if not self._branch.moved():
            return False
        catalog, before = self._quarantine.catalog, self._snapshot
        whole = before is None or before in catalog.snapshots  # and nothing in between expired
        for record, snapshot in self._branch.stored_since(self._snapshot):
            self._grows(record, whole)
            self._newest, self._snapshot = record, snapshot
        self._only_more()
        return True

    def _grows(self, record: CommitRecord, whole: bool) -> None:
        before = self._newest
        if before is not None:
            fell(before, record)
        if whole and record.claim and record.offsets != (before.offsets if before else Offsets()):
            raise Violation(
                Kind.UNTRUTH, f"a claim brings no bad records, but covers {record.offsets}"
            )

    def _only_more(self) -> None:
        catalog, before = self._quarantine.catalog, self.rows
        gone = [f.path for f in catalog.files() if f.path not in catalog.storage.files]
        if gone:
            raise Violation(Kind.LOSS, f"the quarantine names files that are not there: {gone}")
        rows = catalog.records()
        self.rows = frozenset(rows)
        if len(self.rows) < len(rows):
            doubled = [row for row, times in Counter(rows).items() if times > 1]
            raise Violation(Kind.DOUBLE, f"rows twice in the quarantine: {sorted(doubled)[:5]}")
        if before - self.rows:
            lost = sorted(before - self.rows)[:5]
            raise Violation(Kind.LOSS, f"rows are gone from the quarantine: {lost}")
        for row in self.rows - before:
            self._belongs(row)

    def _belongs(self, row: SourceRecord) -> None:
        record, at = self._newest, TopicPartition(row.topic, row.partition)
        if record is None or record.topic_ids.get(row.topic) != row.topic_id:
            raise Violation(Kind.DOUBLE, f"the quarantine's record knows no topic of {row}")
        if row.offset >= record.offsets.get(at, 0):
            raise Violation(Kind.DOUBLE, f"beyond the quarantine's offsets: {row}")
        if self._quarantine.always(row) is False:
            raise Violation(Kind.UNTRUTH, f"a good record is in the quarantine: {row}")

    def beside(self, record: CommitRecord) -> None:
        """The table has this record now. Q2: its epoch began here. Q7: it is within the limits."""
        epoch = record.transaction.epoch
        if self._newest is None or self._newest.transaction.epoch < epoch:
            raise Violation(Kind.DISORDER, f"epoch {epoch} did not claim the quarantine")
        objection = self._quarantine.limits.too_many(record.quarantined)
        if objection:
            raise Violation(Kind.UNTRUTH, f"committed as {record.transaction}: {objection}")

    def good(self, rows: set[SourceRecord]) -> None:
        bad = [row for row in rows if self._quarantine.always(row)]
        if bad:
            raise Violation(Kind.UNTRUTH, f"bad records are in the table: {sorted(bad)[:5]}")
