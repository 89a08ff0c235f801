"""Defines what happens to records that cannot become rows, and the table that keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.control_protocol.bad_records import BadRecordLimits, Disposal
from headgate.sink.catalog_settings import CatalogSettings
from headgate.sink.table_settings import about


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSettings:
    """Records that cannot become rows: what to do with them, and how many to tolerate."""

    policy: Disposal = field(
        default=Disposal.FAIL,
        metadata=about(
            "What to do with a record that cannot be converted: stop before it, keep it in the "
            "quarantine table, or skip it and count it."
        ),
    )
    tombstones: Disposal = field(
        default=Disposal.FAIL,
        metadata=about("The same for a record without a value."),
    )
    table: str = field(
        default="",
        metadata=about(
            "The quarantine table, created if missing; empty: the table's name with _quarantine."
        ),
    )
    location: str = field(
        default="",
        metadata=about(
            "Location of the quarantine; a table of a kind without a catalog is identified by its "
            "location. Empty: the catalog chooses, or table.location with _quarantine."
        ),
    )
    type: str = field(
        default="",
        metadata=about(
            "Kind of the quarantine: iceberg beside a table of any kind; empty: the table's kind."
        ),
    )
    catalog: CatalogSettings = field(
        default_factory=CatalogSettings,
        metadata=about("The catalog of a quarantine that is of another kind than the table."),
    )
    dead_letter_topic: str = field(
        default="",
        metadata=about(
            "Topic that also receives every quarantined record, at least once, after the commit; "
            "it must exist. Empty: none."
        ),
    )
    per_thousand_max: int = field(
        default=100,
        metadata=about(
            "The sink stops when more than this many records per thousand could not be converted.",
            "records",
        ),
    )
    sample_records_min: int = field(
        default=1_000,
        metadata=about("Minimum number of records before that rate is checked.", "records"),
    )
    excerpts: bool = field(
        default=True,
        metadata=about(
            "Whether the errors that name a bad record (HG-207, HG-211) show how "
            "its value begins and what was wrong; false: only its position and column."
        ),
    )
    records_max: int = field(
        default=0,
        metadata=about(
            "The sink stops when more than this many records of one transaction could not be "
            "converted; 0: no limit.",
            "records",
        ),
    )

    @property
    def keeps(self) -> bool:
        """Return whether there is a quarantine table."""
        return Disposal.QUARANTINE in (self.policy, self.tombstones)

    @property
    def limits(self) -> BadRecordLimits:
        return BadRecordLimits(self.per_thousand_max, self.records_max, self.sample_records_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedQuarantine(QuarantineSettings):
    """Also takes unmatched records, whatever happens to bad ones."""

    @property
    def keeps(self) -> bool:
        return True
