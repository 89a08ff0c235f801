"""What a sink file says of the upkeep of its tables: docs/maintenance.md."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.control_protocol.errors import MaintenanceUnfit
from headgate.sink.table_settings import about

DAY_MS = 24 * 3_600_000
_INTERVAL_MS_MIN = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """Upkeep of the sink's tables beside its commits; off unless a key says otherwise."""

    compact: bool = field(
        default=False,
        metadata=about(
            "Whether the coordinator's process makes fewer and larger files of the small ones that "
            "this sink wrote."
        ),
    )
    orphans: bool = field(
        default=False,
        metadata=about(
            "Whether it deletes files of this sink that nobody refers to, or ever will."
        ),
    )
    interval_ms: int = field(
        default=600_000, metadata=about("How often the tables are looked at for that.", "ms")
    )
    files_min: int = field(
        default=20,
        metadata=about("From so many small files on a partition of a table is compacted.", "files"),
    )
    dead_per_thousand: int = field(
        default=200,
        metadata=about(
            "From so many dead rows in a thousand on a file is written anew without them, whatever "
            "its size; 1: from the first one on.",
            "rows",
        ),
    )
    target_file_bytes: int = field(
        default=0,
        metadata=about(
            "Size of compacted files; 0: the table's write.target-file-size-bytes, else "
            "coordinator.target_file_bytes.",
            "bytes",
        ),
    )
    expire_after_ms: int = field(
        default=0,
        metadata=about(
            "Age at which snapshots expire where the table's owner asks for nothing (no "
            "history.expire.* property, no retention of the branch); 0: they stay.",
            "ms",
        ),
    )
    orphans_after_ms: int = field(
        default=3 * DAY_MS,
        metadata=about(
            "Age below which no orphan is deleted; never below coordinator.claim_age_max_ms.", "ms"
        ),
    )

    def __bool__(self) -> bool:
        """Whether there is anything to do in a thread of its own."""
        return self.compact or self.orphans


def check_maintenance(settings: MaintenanceSettings, claim_age_max_ms: int) -> None:
    """Raise ``MaintenanceUnfit`` for what cannot be done, or would delete what is still wanted."""
    if settings.interval_ms < _INTERVAL_MS_MIN:
        raise MaintenanceUnfit(
            f"maintenance.interval_ms is {settings.interval_ms}", f"use {_INTERVAL_MS_MIN} or more"
        )
    if settings.files_min < 2:
        raise MaintenanceUnfit(
            f"maintenance.files_min is {settings.files_min}", "one file needs no compaction: use 2"
        )
    if not 1 <= settings.dead_per_thousand <= 1000:
        raise MaintenanceUnfit(
            f"maintenance.dead_per_thousand is {settings.dead_per_thousand}", "use 1 to 1000"
        )
    for name in ("target_file_bytes", "expire_after_ms"):
        if getattr(settings, name) < 0:
            raise MaintenanceUnfit(f"maintenance.{name} is below 0", "0 leaves it as it is")
    if settings.orphans_after_ms < claim_age_max_ms:
        raise MaintenanceUnfit(
            f"maintenance.orphans_after_ms ({settings.orphans_after_ms}) is below "
            f"coordinator.claim_age_max_ms ({claim_age_max_ms}): files may still be committed then",
            "raise the first, or lower the second",
        )
