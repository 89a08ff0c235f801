"""Defines the coordinator's settings; every value is in the unit that its name says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_INTERVALS_MISSED = 3


class TimeoutPolicy(StrEnum):
    """Says what to do when participants did not all answer in time (rule RANGE-2)."""

    COMMIT_ADMISSIBLE = "commit-admissible"
    ABORT = "abort"


class RollbackPolicy(StrEnum):
    """Says what a table rolled back behind the sink's tag means (rule TABLE-4)."""

    FAIL = "fail"
    FOLLOW_TABLE = "follow-table"
    KEEP_OFFSETS = "keep-offsets"


class TagMissingPolicy(StrEnum):
    """Says what a deleted tag means: stop, or take the newest commit record of the branch."""

    FAIL = "fail"
    FOLLOW_TABLE = "follow-table"


class TableRecreatedPolicy(StrEnum):
    """Says what a re-created table means: stop, or fill the new one from ``start_at``."""

    FAIL = "fail"
    RESTART = "restart"


class OffsetPolicy(StrEnum):
    """Says where to go on when an offset is out of the log's range, or the topic was re-created."""

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class DeliveryLinger:
    """Says how long pending commits gather for tables whose whole name matches the pattern; 0: not
    at all (LINGER-1).
    """

    match: str
    every_ms: int


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Holds the settings; defaults suit a table that people query; for a freshness of a second set
    1000 / 10000.
    """

    commit_interval_ms: int = 60_000
    """How long a transaction stays open before END-COMMIT."""
    commit_records: int = 0
    """END-COMMIT is sent early once the participants hold this many records, read or about to be
    read; 0: no limit."""
    commit_bytes: int = 0
    """END-COMMIT is sent early once the participants hold this many bytes of keys, values and
    headers; records not read yet are taken to be as large as those of the last batch. 0: no limit.
    """
    commit_timeout_ms: int = 30_000
    """How long to wait for statuses after END-COMMIT."""
    timeout_policy: TimeoutPolicy = TimeoutPolicy.COMMIT_ADMISSIBLE
    """Whether to commit what arrived in time or to abort the transaction."""
    rebalance_delay_ms: int = 500
    """How soon END-COMMIT is sent after a partition has changed its owner, so that the new owner
    can begin."""
    election_timeout_ms: int = 30_000
    """How long the coordinator with a higher epoch must be silent before the one that lost to it
    claims again."""
    idleness_ms: int = 60_000
    """How long a partition without records still holds back valid-through."""
    tag_refresh_interval_ms: int = 6 * 3_600_000
    """How often an idle sink renews its tag with an empty commit, so that few commits lie between
    the tag and the branch head."""
    table_check_interval_ms: int = 10 * 60_000
    """How often a sink checks whether others have changed, dropped or renamed its tables; if they
    have changed one, it renews its tag."""
    claim_age_max_ms: int = 12 * 3_600_000
    """Age at which a transaction that could not be committed is given up and its records are read
    again; keep it below the age at which orphan files are removed. At least four times the sum of
    commit_interval_ms and commit_timeout_ms."""
    delivery_timeout_ms: int = 5_000
    """How long the next END-COMMIT waits for the decided rows to reach the quarantine; rows that
    have not arrived by then stay pending and are tried again."""
    retry_backoff_ms: int = 200
    """First wait after a failed catalog or broker call; also before a refused commit is tried
    again, from the fourth refusal on, and before columns are asked for again."""
    retry_backoff_max_ms: int = 10_000
    """Longest wait between two attempts; the wait doubles each time."""
    target_file_bytes: int = 128 * 1024 * 1024
    """Size on disk at which a data file is closed, if the table has no
    write.target-file-size-bytes."""
    on_rollback: RollbackPolicy = RollbackPolicy.FAIL
    """What to do when the table was rolled back."""
    on_tag_missing: TagMissingPolicy = TagMissingPolicy.FAIL
    """What to do when the sink's tag was deleted."""
    on_table_recreated: TableRecreatedPolicy = TableRecreatedPolicy.FAIL
    """What to do when the table was dropped and re-created."""
    on_offset_out_of_range: OffsetPolicy = OffsetPolicy.FAIL
    """What to do when the source no longer holds the stored offsets. A topic that has lost its end
    is read on from its end either way: most of what it still holds is in the table."""
    on_topic_recreated: OffsetPolicy = OffsetPolicy.FAIL
    """What to do when a source topic was re-created."""

    @property
    def records_overdue_after_ms(self) -> int:
        """Return how long after they came records should be in the table, whoever died meanwhile.

        A source partition that has not moved for as long while records wait is stalled.
        """
        return _INTERVALS_MISSED * (self.commit_interval_ms + self.commit_timeout_ms)
