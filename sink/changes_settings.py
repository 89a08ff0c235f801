"""Settings for records that change rows: ``[changes]``, next to ``table.key``."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.data.envelopes.changes import (
    Changes,
    Envelope,
    OnTruncate,
    Tombstones,
    UnavailableValue,
)
from headgate.sink.table_settings import about


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSettings:
    """How records replace and delete the rows of a keyed table."""

    envelope: Envelope = field(
        default=Envelope.PLAIN,
        metadata=about(
            "How a record expresses its change: plain (the value is the row; no value deletes "
            "it), debezium (before, after and op), flattened (the row, with __deleted or __op) "
            "or dms (data and metadata of AWS DMS, or a row with Op)."
        ),
    )
    tombstones: Tombstones = field(
        default=Tombstones.DELETE,
        metadata=about(
            "What a record without a value does: delete removes the row of its message's key, "
            "skip ignores it, fail stops the sink. It replaces quarantine.tombstones."
        ),
    )
    on_truncate: OnTruncate = field(
        default=OnTruncate.FAIL,
        metadata=about(
            "What happens to a record that reports that the source table was truncated: fail "
            "stops the sink before it, skip ignores it."
        ),
    )
    unavailable_value: UnavailableValue = field(
        default=UnavailableValue.FAIL,
        metadata=about(
            "What happens to a row with a value that Debezium does not know: fail makes it a bad "
            "record, null leaves the column null."
        ),
    )
    index_memory_bytes: int = field(
        default=4 * 1024**3,
        metadata=about(
            "Memory that the coordinator may use to find rows by key, 28 bytes per row, for all "
            "keyed tables together; if it needs more, the sink stops, or parks the table.",
            "bytes",
        ),
    )

    @property
    def skips(self) -> bool:
        """Return ``Changes.skips``, which does not depend on the key."""
        return Changes((), self.envelope, self.tombstones).skips

    def of(self, key: tuple[str, ...]) -> Changes | None:
        """Return how records change the rows of a table with this key; ``None`` without a key."""
        if not key:
            return None
        return Changes(
            key, self.envelope, self.tombstones, self.on_truncate, self.unavailable_value
        )
