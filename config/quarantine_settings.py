"""Defines what happens to records that cannot become rows, and the table that keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headgate.config.catalog_settings import CatalogSettings
from headgate.config.setting_types import Text
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSettings:
    """Records that cannot become rows: what to do with them, and how many to tolerate."""

    policy: Disposal = Disposal.FAIL
    """What to do with a record that cannot be converted: stop before it, keep it in the quarantine
    table, or skip it and count it."""
    tombstones: Disposal = Disposal.FAIL
    """The same for a record without a value."""
    table: Text = ""
    """The quarantine table, created if missing; empty: the table's name with _quarantine."""
    location: Text = ""
    """Location of the quarantine; a table of a format without a catalog is identified by its
    location. Empty: the catalog chooses, or table.location with _quarantine."""
    type: Text = ""
    """Format of the quarantine: iceberg beside a table of any format; empty: the table's."""
    catalog: CatalogSettings = CatalogSettings()
    """The catalog of a quarantine that is of another format than the table."""
    dead_letter_topic: Text = ""
    """Topic that also receives every quarantined record, at least once, after the commit; it must
    exist. Empty: none."""
    per_thousand_max: Annotated[int, "records"] = 100
    """The sink stops when more than this many records per thousand could not be converted."""
    sample_records_min: int = 1_000
    """Minimum number of records before that rate is checked."""
    excerpts: bool = True
    """Whether the errors that name a bad record (HG-207, HG-211) show how its value begins and what
    was wrong; false: only its position and column."""
    records_max: int = 0
    """The sink stops when more than this many records of one transaction could not be converted; 0:
    no limit."""

    @property
    def keeps_rejected_records(self) -> bool:
        """Return whether there is a quarantine table."""
        return Disposal.QUARANTINE in (self.policy, self.tombstones)

    @property
    def bad_record_limits(self) -> BadRecordLimits:
        return BadRecordLimits(self.per_thousand_max, self.records_max, self.sample_records_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedQuarantine(QuarantineSettings):
    """Also takes unmatched records, whatever happens to bad ones."""

    @property
    def keeps_rejected_records(self) -> bool:
        return True
