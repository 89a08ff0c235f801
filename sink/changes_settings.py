"""What a sink file says of records that change rows: ``[changes]``, beside ``table.key``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from headgate.data.envelopes.changes import (
    Changes,
    Envelope,
    OnTruncate,
    Tombstones,
    UnavailableValue,
)
from headgate.sink.table_settings import about


class OnPartitionsAdded(StrEnum):
    """What becomes of new partitions, to which keys may have moved (rule U8)."""

    FAIL = "fail"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSettings:
    """How records replace and delete the rows of a keyed table."""

    envelope: Envelope = field(
        default=Envelope.PLAIN,
        metadata=about(
            "How a record says what it changes: plain (the value is the row; no value deletes it), "
            "debezium (before, after and op), flattened (the row, with __deleted or __op) or dms "
            "(data and metadata of AWS DMS, or a row with Op)."
        ),
    )
    tombstones: Tombstones = field(
        default=Tombstones.DELETE,
        metadata=about(
            "What a record without a value does: delete removes the row of its message's key, skip "
            "passes it over, fail stops the sink. It takes the place of quarantine.tombstones."
        ),
    )
    on_truncate: OnTruncate = field(
        default=OnTruncate.FAIL,
        metadata=about(
            "What becomes of a record that says that the source's table was emptied: fail stops "
            "the sink before it, skip passes it over."
        ),
    )
    unavailable_value: UnavailableValue = field(
        default=UnavailableValue.FAIL,
        metadata=about(
            "What becomes of a row with a value that Debezium does not know: fail makes the record "
            "a bad one, null leaves the column null."
        ),
    )
    on_partitions_added: OnPartitionsAdded = field(
        default=OnPartitionsAdded.FAIL,
        metadata=about(
            "What becomes of partitions that are added to a topic whose records have keys: fail "
            "stops the sink when they hold records, wait leaves them unread for growth_ms, and "
            "until what the older ones hold by then is in the table; from then on their records "
            "are the newer ones of a key."
        ),
    )
    growth_ms: int = field(
        default=10 * 60_000,
        metadata=about(
            "After this time no producer sends a key to the partition it had before partitions "
            "were added: at least metadata.max.age.ms (5 minutes), delivery.timeout.ms (2) and "
            "transaction.timeout.ms (1) of the slowest producer together.",
            "ms",
        ),
    )
    index_memory_bytes: int = field(
        default=4 * 1024**3,
        metadata=about(
            "Memory that the coordinator may use to find rows by their keys, 28 bytes for each "
            "row, over all keyed tables; the sink stops where it needs more, or parks the table.",
            "bytes",
        ),
    )

    @property
    def skips(self) -> bool:
        """As ``Changes.skips``, whatever the key is."""
        return Changes((), self.envelope, self.tombstones).skips

    @property
    def held_ms(self) -> int | None:
        """How long added partitions are held at least; ``None``: they stop the sink."""
        return self.growth_ms if self.on_partitions_added is OnPartitionsAdded.WAIT else None

    def of(self, key: tuple[str, ...]) -> Changes | None:
        """What records do to the rows of a table with this key; ``None`` without one."""
        if not key:
            return None
        return Changes(
            key, self.envelope, self.tombstones, self.on_truncate, self.unavailable_value
        )
