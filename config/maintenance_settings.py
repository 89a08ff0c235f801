"""Defines the settings for maintaining a sink's tables; see docs/guides/maintenance.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from headgate.config.setting_types import Text
from headgate.control_protocol.errors import MaintenanceUnfit

DAY_MS = 24 * 3_600_000
_INTERVAL_MS_MIN = 1_000
_ROWS_AFTER_MS_MIN = 3_600_000
"""The limit is of whole hours."""
_ROWS_AFTER_MS_MAX = 100 * 365 * DAY_MS


class RowsLate(StrEnum):
    """What becomes of a record whose row has expired already (EXPIRY-1)."""

    KEEP = "keep"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """Maintenance of the sink's tables next to its commits; off unless a key turns it on."""

    compact: bool = False
    """Whether the coordinator's process compacts the small files that this sink wrote into fewer,
    larger ones."""
    orphans: bool = False
    """Whether it deletes files of this sink that nothing refers to, now or later."""
    interval_ms: int = 600_000
    """How often it checks the tables."""
    files_min: int = 20
    """A table partition is compacted once it has this many small files."""
    dead_per_thousand: Annotated[int, "rows"] = 200
    """A file of any size is rewritten once this many rows per thousand are dead; 1: from the first
    dead row on."""
    target_file_bytes: int = 0
    """Size of compacted files; 0: the table's write.target-file-size-bytes, else
    coordinator.target_file_bytes."""
    expire_after_ms: int = 0
    """Age at which snapshots expire if the table's owner has set no retention (neither a
    history.expire.* property nor one on the branch); 0: never."""
    rows_after_ms: int = 0
    """Age at which rows of the table expire, by the time in rows_by: at least an hour; 0: never.
    Whole files go by their metadata; of others the due rows are marked as dead, once they are more
    than dead_per_thousand, or have waited for a day."""
    rows_by: Text = ""
    """Column (date, timestamp or timestamptz) with the rows' times; rows without a value never
    expire. A table partitioned or sorted by it loses whole files."""
    rows_late: RowsLate = RowsLate.KEEP
    """What happens to a record whose row has expired already when it comes: keep writes it, and it
    goes in a later round; skip leaves it out, and counts it as skipped."""
    orphans_after_ms: int = 3 * DAY_MS
    """Minimum age of an orphan before it is deleted; never below coordinator.claim_age_max_ms."""

    @property
    def column_for_skipping_late_rows(self) -> str:
        """Return the column by which late rows are left out; empty: none is."""
        return self.rows_by if self.rows_late is RowsLate.SKIP else ""

    def __bool__(self) -> bool:
        """Return whether a maintenance thread has anything to do."""
        return self.compact or self.orphans or bool(self.rows_after_ms)


def require_valid_maintenance(settings: MaintenanceSettings, claim_age_max_ms: int) -> None:
    """Raise ``MaintenanceUnfit`` for what cannot be done, or would delete what is still needed."""
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
    if bool(settings.rows_after_ms) != bool(settings.rows_by):
        raise MaintenanceUnfit(
            "one of maintenance.rows_after_ms and maintenance.rows_by is set without the other",
            "set both, or none: the age of rows, and the column that has their times",
        )
    if settings.column_for_skipping_late_rows and not set('".').isdisjoint(
        settings.column_for_skipping_late_rows
    ):
        raise MaintenanceUnfit(
            f"maintenance.rows_late is skip, and no condition can name the column "
            f"{settings.rows_by!r}",
            "rename the column, or leave rows_late out: late rows go within hours",
        )
    if settings.rows_late is RowsLate.SKIP and not settings.rows_after_ms:
        raise MaintenanceUnfit(
            "maintenance.rows_late is set, and no rows expire",
            "set maintenance.rows_after_ms and rows_by, or leave it out",
        )
    if settings.rows_after_ms and settings.rows_after_ms < _ROWS_AFTER_MS_MIN:
        raise MaintenanceUnfit(
            f"maintenance.rows_after_ms is {settings.rows_after_ms}",
            f"use {_ROWS_AFTER_MS_MIN} (an hour) or more, or 0 to keep rows",
        )
    if settings.rows_after_ms > _ROWS_AFTER_MS_MAX:
        raise MaintenanceUnfit(
            f"maintenance.rows_after_ms is {settings.rows_after_ms}",
            f"use {_ROWS_AFTER_MS_MAX} (100 years) or less, or 0 to keep rows",
        )
    if settings.orphans_after_ms < claim_age_max_ms:
        raise MaintenanceUnfit(
            f"maintenance.orphans_after_ms ({settings.orphans_after_ms}) is below "
            f"coordinator.claim_age_max_ms ({claim_age_max_ms}): files may still be committed then",
            "raise the first, or lower the second",
        )
