"""What a sink file says of records that change rows: ``[changes]``, beside ``table.key``."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.sink.table_settings import about


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSettings:
    """How records replace and delete the rows of a keyed table."""

    index_memory_bytes: int = field(
        default=4 * 1024**3,
        metadata=about(
            "Memory that the coordinator may use to find rows by their keys, 28 bytes for each "
            "row of the table; the sink stops where it needs more.",
            "bytes",
        ),
    )
