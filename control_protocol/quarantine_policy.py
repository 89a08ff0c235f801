"""Says what becomes of records that are not rows, and how many of them a sink tolerates
(QUARANTINE-4 and QUARANTINE-5).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Disposal(StrEnum):
    """Says what to do with a record that cannot become a row."""

    FAIL = "fail"
    """The sink stops before it."""
    QUARANTINE = "quarantine"
    """It goes into the quarantine table, once."""
    SKIP = "skip"
    """It is counted, and in no table."""


@dataclass(frozen=True, slots=True)
class BadRecordLimits:
    """Limits bad records: above that the sink stops. ``records_max`` 0: no limit on their number.

    The rate counts from ``sample_records_min`` records on, so that one bad record of one stops
    nothing. ``may_skip``: whether any setting lets a record be in no table at all.
    """

    per_thousand_max: int = 100
    records_max: int = 0
    sample_records_min: int = 1_000
    may_skip: bool = True

    def is_large_enough_sample(self, records: int) -> bool:
        """Return whether so many records, good and bad, are enough for a rate."""
        return records >= self.sample_records_min

    def reason_if_too_many(self, bad: int) -> str | None:
        """Return why so many in a batch or transaction are too many; ``None`` when they are not."""
        if 0 < self.records_max < bad:
            return f"{bad} records could not be converted, the limit is {self.records_max}"
        return None

    def reason_if_too_often(self, bad: int, records: int) -> str | None:
        """Return why so many of these records are too many; ``None`` when they are not."""
        if self.is_large_enough_sample(records) and bad * 1_000 > records * self.per_thousand_max:
            return (
                f"{bad} of {records} records could not be converted, the limit is "
                f"{self.per_thousand_max} of a thousand"
            )
        return None
