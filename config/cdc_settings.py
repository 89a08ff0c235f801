"""Defines the settings for records that change rows: ``[changes]``, next to ``table.key``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headgate.config.setting_types import Text
from headgate.data_plane.cdc.policy import (
    PLACEHOLDER,
    Changes,
    Envelope,
    OnDelete,
    OnTruncate,
    Tombstones,
    UnavailableValue,
)


class OnPartitionsAdded(StrEnum):
    """What becomes of new partitions, to which keys may have moved (rule KEY-8)."""

    FAIL = "fail"
    WAIT = "wait"
    WAIT_ANY = "wait-any"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSettings:
    """How records replace and delete the rows of a keyed table."""

    envelope: Envelope = Envelope.PLAIN
    """How a record represents a change: plain (the value is the row; a record without a value
    deletes it), debezium (before, after and op), flattened (the row, with __deleted or __op) or dms
    (data and metadata of AWS DMS, or a row with Op)."""
    tombstones: Tombstones = Tombstones.DELETE
    """What happens when a record has no value: delete removes the row that the message's key
    identifies, skip ignores the record, fail stops the sink. This replaces quarantine.tombstones.
    """
    on_delete: OnDelete = OnDelete.REMOVE
    """What a record that deletes does: remove takes the row out of the table, mark keeps it, with
    the record's time in the column deleted_at and its other values as the record has them. The
    table remembers the choice; headgate resume --accept changes it."""
    deleted_at: Text = "deleted_at"
    """Column (timestamptz, or timestamp in UTC) for the time of the delete, with on_delete =
    "mark"; null in rows that live. A field of that name in records is not read."""
    history: bool = False
    """Whether the table keeps every version of each key: each change adds a row, and nothing
    replaces or removes that. Deletes add rows marked as with on_delete = "mark", which it implies.
    record_columns.timestamp names the column with the time of each change."""
    on_truncate: OnTruncate = OnTruncate.FAIL
    """What happens to a record that reports that the source table was truncated: fail stops the
    sink before it, skip ignores it."""
    unavailable_value: UnavailableValue = UnavailableValue.FAIL
    """What happens to a row with a value that Debezium could not provide: fail makes it a bad
    record, null leaves the column null."""
    unavailable_placeholder: Text = PLACEHOLDER
    """What Debezium writes for such a value; set it if the connector's
    unavailable.value.placeholder is not the default."""
    on_partitions_added: OnPartitionsAdded = OnPartitionsAdded.FAIL
    """What happens to partitions added to a topic whose records have keys: fail stops the sink once
    they hold records; wait reads them only after growth_ms, and after everything that the older
    partitions hold by then is in the table. From then on, their records count as the newer ones of
    a key. wait stops the sink if the number of partitions is no multiple of the one before
    (HG-222); wait-any does not, and is for producers whose own partitioner never moves a key
    between existing partitions."""
    growth_ms: int = 10 * 60_000
    """Time after which no producer still sends a key to the partition that it belonged to before
    partitions were added: at least the sum of metadata.max.age.ms (5 minutes), delivery.timeout.ms
    (2) and transaction.timeout.ms (1) of the slowest producer."""
    index_memory_bytes: int = 4 * 1024**3
    """Memory that the coordinator may use to find rows by key, for all keyed tables together: 28
    bytes per row for up to four million rows of a table, 1.4 for the others, which are in files in
    TMPDIR, 32 bytes each. If it needs more, the sink stops, or suspends the table."""

    @property
    def may_skip_records(self) -> bool:
        """Return ``Changes.may_skip_records``, which does not depend on the key."""
        return Changes((), self.envelope, self.tombstones).may_skip_records

    @property
    def marks_deleted_rows(self) -> bool:
        """Return whether deletes are rows, marked (KEY-13, KEY-14)."""
        return self.history or self.on_delete is OnDelete.MARK

    @property
    def added_partitions_hold_ms(self) -> int | None:
        """Return how long added partitions are held at least; ``None``: they stop the sink."""
        fails = self.on_partitions_added is OnPartitionsAdded.FAIL
        return None if fails else self.growth_ms

    @property
    def refuses_uneven_partition_growth(self) -> bool:
        """Return whether keys may move between old partitions unless these are multiplied."""
        return self.on_partitions_added is not OnPartitionsAdded.WAIT_ANY

    def change_rules_for_key(self, key_columns: tuple[str, ...]) -> Changes | None:
        """Return how records change the rows of a table with this key; ``None`` without a key."""
        if not key_columns:
            return None
        return Changes(
            key_columns,
            self.envelope,
            self.tombstones,
            self.on_truncate,
            self.unavailable_value,
            self.unavailable_placeholder,
            self.deleted_at if self.marks_deleted_rows else "",
            self.history,
        )
