"""Holds what a look at a sink found, as values: the same for the screen, the page and scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.spark_batch_decision import QUERY_TOPIC
from headgate.operations.status.held_partitions import HeldPartition
from headgate.runtime.health import LastError

MEND_TABLES = "fix or restore them, then headgate tables SINK resume (docs/guides/many-tables.md)"
"""What to do about tables that are gone or suspended."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """``next_offset`` by the table; ``log`` and ``lag`` (in offsets) if the source answers.

    There is no lag if the log ends before that offset: it is another log, or was truncated.
    """

    topic: str
    partition: int
    next_offset: int
    log_begin: int | None = None
    log_end: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """One commit of the table; commits are listed newest first."""

    transaction: str
    snapshot_id: int
    committed_ms: int
    records: int
    claim: bool
    quarantined: int = 0
    skipped: int = 0
    valid_through_ms: int | None = None
    keys: KeyCounts | None = None


@dataclass(frozen=True, slots=True)
class ParticipantStatus:
    """A participant by its last sign of life; ``seen_ms_ago`` compares two machines' clocks."""

    member: str
    incarnation: str
    state: str
    partitions: tuple[str, ...]
    buffered_records: int
    seen_ms_ago: int


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that is in the quarantine, and why it is in no other table."""

    topic: str
    partition: int
    offset: int
    reason: str
    transaction: str


@dataclass(frozen=True, slots=True)
class OffsetsReport:
    """``notes``: what could not be asked, and why; ``exit_code`` is then that of the reason."""

    partitions: tuple[PartitionStatus, ...]
    notes: tuple[str, ...]
    exit_code: int


@dataclass(frozen=True, slots=True)
class StatusReport:
    """``condition``: those of docs/reference/status.md. ``epoch`` 0: no claim yet."""

    sink: str
    condition: str
    table: str
    uuid: str
    branch: str
    snapshot_id: int | None
    epoch: int
    transaction: str | None
    coordinator: str | None
    open_transaction: str | None
    paused: bool
    pending_rows: int
    last_commit_ms: int | None
    valid_through_ms: int | None
    partitions: tuple[PartitionStatus, ...]
    transactions: tuple[CommitSummary, ...]
    participants: tuple[ParticipantStatus, ...]
    participants_known: bool
    last_error: LastError | None
    notes: tuple[str, ...]
    exit_code: int
    stalled: tuple[str, ...] = ()
    lag_seconds: Mapping[str, float] = field(default_factory=dict)
    stopped_by: str | None = None
    rejected_records: tuple[RejectedRecord, ...] = ()
    held: tuple[HeldPartition, ...] = ()

    @property
    def total_lag(self) -> int | None:
        return total_lag_of(self.partitions, self.held)

    @property
    def held_record_count(self) -> int:
        return sum(each.records for each in self.held)

    @property
    def last_rows_committed_ms(self) -> int | None:
        """When a commit last added rows, among those that are shown; claims add none."""
        return next((each.committed_ms for each in self.transactions if each.records), None)

    def as_json(self) -> Mapping[str, Any]:
        return {**asdict(self), "lag": self.total_lag, "held_records": self.held_record_count}


def total_lag_of(
    partitions: Iterable[PartitionStatus], held_partitions: Iterable[HeldPartition] = ()
) -> int | None:
    """Return the total lag if each one is known, with the records that are held."""
    lags = [partition.lag for partition in partitions if partition.topic != QUERY_TOPIC]
    known = [lag for lag in lags if lag is not None]
    if not lags or len(known) < len(lags):
        return None
    return sum(known) + sum(each.records for each in held_partitions)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What is known about one file's sink: its report, or why there is none."""

    file: str
    report: StatusReport | None
    error: str = ""
    exit_code: int = 0
