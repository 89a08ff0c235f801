"""Measures a sink at its ports: counts what passes through them, and passes it on unchanged.

No state machine and no driver knows about it. It counts per batch, per transaction or per call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import KEY_COUNTS, CommitRecord, PendingCommit
from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.events import (
    AbortCommit,
    Envelope,
    LogRecord,
    Presence,
    Settlement,
    StartCommit,
)
from headgate.control_protocol.identifiers import ControlOffset, Epoch, TransactionId
from headgate.control_protocol.ports import (
    AllSecondaryTables,
    Batch,
    BatchNeeds,
    BatchOutcome,
    BatchWriter,
    BatchWritten,
    Changed,
    CommitAttempt,
    CommitOutcome,
    ControlLog,
    EvolvedTable,
    Landed,
    PrimaryTable,
    Refused,
    Staging,
    TableView,
    Want,
)
from headgate.runtime.telemetry import metric_catalog as names

Count = Callable[[str, float, Mapping[str, str]], None]
Observe = Callable[[str, float, Mapping[str, str]], None]


class MeteredWriter:
    """Measures the batches of a ``BatchWriter``."""

    def __init__(self, writer: BatchWriter, count: Count, observe: Observe) -> None:
        self._writer = writer
        self._count = count
        self._observe = observe
        self._since_s = 0.0

    def submit(self, batch: Batch) -> None:
        self._since_s = time.monotonic()
        self._writer.submit(batch)

    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        outcome = self._writer.wait_for_outcome(timeout_ms)
        if outcome is not None:
            word = "written" if isinstance(outcome, BatchWritten) else "failed"
            word = "needs" if isinstance(outcome, BatchNeeds) else word
            took_s = time.monotonic() - self._since_s
            self._observe(names.BATCH_DURATION, took_s, {"outcome": word})
        if isinstance(outcome, BatchWritten):
            self._count_batch_written(outcome)
        return outcome

    def _count_batch_written(self, outcome: BatchWritten) -> None:
        counted: Counter[tuple[str, str, str]] = Counter()
        for at, found in outcome.partitions.items():
            records = found.records + found.deleted + found.quarantined + found.skipped
            counted[names.READ_RECORDS, at.topic, ""] += records
            counted[names.READ_BYTES, at.topic, ""] += found.bytes_read
            counted[names.BAD_RECORDS, at.topic, "quarantined"] += found.quarantined
            counted[names.BAD_RECORDS, at.topic, "skipped"] += found.skipped - found.filtered
            counted[names.FILTERED_RECORDS, at.topic, ""] += found.filtered
        for (name, topic, kind), amount in counted.items():
            if amount:
                self._count(name, amount, {"topic": topic, **({"outcome": kind} if kind else {})})
        secondary = [file for files in outcome.secondary_files.values() for file in files]
        files = [*outcome.files, *outcome.quarantined, *secondary]
        if files:
            self._count(names.WRITTEN_FILES, len(files), {})
            self._count(names.WRITTEN_FILE_BYTES, sum(f.size_bytes for f in files), {})

    def close(self) -> None:
        self._writer.close()


class MeteredLog:
    """Observes the events of a ``ControlLog``: ``heard`` when read, ``said`` once appended."""

    def __init__(
        self,
        log: ControlLog,
        *,
        heard: Callable[[Envelope], None] = lambda _: None,
        said: Callable[[Envelope], None] = lambda _: None,
    ) -> None:
        self._log = log
        self._heard = heard
        self._said = said

    def append(self, envelopes: Sequence[Envelope]) -> None:
        self._log.append(envelopes)
        for envelope in envelopes:
            self._said(envelope)

    def read(self, timeout_ms: int) -> list[LogRecord]:
        records = self._log.read(timeout_ms)
        for record in records:
            self._heard(record.envelope)
        return records

    def seek(self, offset: ControlOffset) -> None:
        self._log.seek(offset)

    def end_offset(self) -> ControlOffset:
        return self._log.end_offset()

    def close(self) -> None:
        self._log.close()


class MeteredPrimary:
    """Measures the commits to the table whose commit decides."""

    def __init__(self, table: PrimaryTable, name: str, count: Count, observe: Observe) -> None:
        self._table = table
        self._name = name
        self._count = count
        self._observe = observe

    def read(self) -> TableView:
        return self._table.read()

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        since_s = time.monotonic()
        outcome = self._table.commit(attempt)
        word = _outcome_label(outcome)
        self._observe(names.COMMIT_DURATION, time.monotonic() - since_s, {"outcome": word})
        self._count(names.COMMITS, 1, {"table": self._name, "outcome": word})
        if isinstance(outcome, Landed) and (record := outcome.view.record):
            _count_key_changes(self._count, self._name, record)
        return outcome

    def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
        return self._table.evolve(base, columns)

    def close(self) -> None:
        self._table.close()


class MeteredSecondaries:
    """Counts the deliveries to the secondary tables.

    ``delivered`` receives each record that lands in one. One whose answer came late, or not at all,
    counts when the table is read.
    """

    def __init__(
        self,
        secondaries: AllSecondaryTables,
        count: Count,
        delivered: Callable[[str, CommitRecord], None] = lambda *_: None,
    ) -> None:
        self._secondaries = secondaries
        self._count = count
        self._delivered = delivered
        # By table: the transaction that it had before a delivery without an answer, and the last
        # one that such a delivery may have brought it to.
        self._unanswered: dict[str, tuple[TransactionId | None, TransactionId]] = {}

    def try_read_views(self, tables: Collection[str]) -> Mapping[str, TableView | HeadgateError]:
        views = self._secondaries.try_read_views(tables)
        for name in self._unanswered.keys() & views.keys():
            if isinstance(view := views[name], TableView) and (record := view.record):
                before, last = self._unanswered[name]
                if (before is None or before < record.transaction) and record.transaction <= last:
                    self._note_delivered(name, record)
        return views

    def find_missing_tables(self, tables: Collection[str]) -> Mapping[str, TableMissing]:
        return self._secondaries.find_missing_tables(tables)

    def stage(
        self, stagings: Sequence[Staging]
    ) -> Mapping[str, tuple[PendingCommit, ...] | HeadgateError]:
        return self._secondaries.stage(stagings)

    def create_or_change_tables(self, wants: Sequence[Want]) -> tuple[Changed, ...]:
        return self._secondaries.create_or_change_tables(wants)

    def deliver(
        self, deliveries: Sequence[CommitAttempt], timeout_ms: int
    ) -> Mapping[str, CommitOutcome | HeadgateError]:
        outcomes = self._secondaries.deliver(deliveries, timeout_ms)
        by_table = {delivery.base.table: delivery for delivery in deliveries}
        for name, outcome in outcomes.items():
            self._count(names.COMMITS, 1, {"table": name, "outcome": _outcome_label(outcome)})
            if isinstance(outcome, Landed) and (record := outcome.view.record):
                self._note_delivered(name, record)
            elif not isinstance(outcome, Refused):
                tried = by_table[name]
                before = tried.base.record.transaction if tried.base.record else None
                before, _ = self._unanswered.get(name, (before, None))
                self._unanswered[name] = before, tried.record.transaction
        return outcomes

    def _note_delivered(self, table: str, record: CommitRecord) -> None:
        self._unanswered.pop(table, None)
        if record.records:
            self._count(names.COMMITTED_ROWS, record.records, {"table": table})
        _count_key_changes(self._count, table, record)
        self._delivered(table, record)

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None:
        self._secondaries.delete_undecided_manifests(before_epoch, pending_manifests)

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None:
        self._secondaries.delete_delivered_key_files(delivered_commits)

    def close(self) -> None:
        self._secondaries.close()


def _count_key_changes(count: Count, table: str, record: CommitRecord) -> None:
    """Count the changes of a commit to a keyed table (KEY-10)."""
    for what in KEY_COUNTS if record.keys else ():
        if records := getattr(record.keys, what):
            count(names.CHANGES, records, {"table": table, "what": what})


def _outcome_label(outcome: CommitOutcome | HeadgateError) -> str:
    if isinstance(outcome, Landed):
        return "landed"
    return "refused" if isinstance(outcome, Refused) else "unknown"


def settlement_outcome_label(event: Settlement) -> str:
    return "aborted" if isinstance(event, AbortCommit) else "acked"


def is_start_or_settlement(event: object) -> bool:
    """Return whether an event shows a coordinator's progress."""
    return isinstance(event, StartCommit | Settlement)


def assignment_change_or_none(envelope: Envelope) -> str | None:
    """Return what a presence reports about its partitions; ``None`` for a mere sign of life."""
    event = envelope.event
    return event.kind.value if isinstance(event, Presence) and event.concerns else None
