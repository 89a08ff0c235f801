"""Holds what an audit found, as plain values; the same for people and for ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from headgate.control_protocol.errors import Unreachable
from headgate.operations.status.held_partitions import HeldPartition
from headgate.tables.storage.damaged_file_error import FileDamaged


class Verdict(StrEnum):
    """Proven, neither contradicted nor proven, or contradicted."""

    WELL = "well"
    NOT_PROVEN = "not proven"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault. ``what`` is a stable word for scripts; ``evidence`` names the place."""

    what: str
    evidence: str


@dataclass(slots=True)
class Conclusions:
    """Findings, and what is proven or not; ``expired``: unproven only without the source."""

    findings: list[Finding] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)


def conclude_unreadable(error: Exception, what: str) -> Conclusions:
    """Return a finding for a damaged file; what merely cannot be read here is unproven."""
    if isinstance(error, FileDamaged):
        return Conclusions(findings=[Finding("file-unreadable", str(error))])
    return Conclusions(unproven=[f"{what}: {error}"])


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """One source partition. ``None`` means unknown; the report's ``unproven`` says why.

    ``begin``: where the sink started; ``next_offset``: where the table says to continue (exclusive
    end). ``produced``: readable records that the source holds in between, as far as it retains
    them; ``in_table``, ``in_quarantine``: how many distinct offsets the tables hold. ``lag`` counts
    offsets, not records.
    """

    topic: str
    partition: int
    begin: int | None
    next_offset: int
    produced: int | None = None
    in_table: int | None = None
    in_quarantine: int | None = None
    lost: int | None = None
    twice: int | None = None
    invented: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The verdict: wrong if there are ``findings``, not proven if ``unproven``, well with neither.

    ``rows``, ``distinct``, ``surplus``: every row of this sink's partitions in the table, whoever
    wrote it; ``None`` without coordinates. ``remarks`` do not limit the verdict.
    ``quarantined_rows``: ``None`` without a quarantine. ``skipped_records``: by all commits.
    ``deleted_rows``: deleted by people with ``headgate delete``; ``expired_rows``: those that had
    reached their age. ``held``: partitions that are not
    read yet, whose records are beyond the verdict; ``waiting`` says what for. ``unread``: tables
    that did not answer.
    """

    sink: str
    table: str
    uuid: str
    branch: str
    snapshot_id: int | None
    epochs: tuple[int, ...]
    commits: int
    claims: int
    committed_records: int
    live_files: int
    live_rows: int
    rows: int | None
    distinct: int | None
    surplus: Mapping[str, int]
    quarantined_rows: int | None
    skipped_records: int
    partitions: tuple[PartitionAudit, ...]
    proven: tuple[str, ...]
    unproven: tuple[str, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...] = ()
    deleted_rows: int = 0
    expired_rows: int = 0
    held: tuple[HeldPartition, ...] = ()
    waiting: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        if self.findings:
            return Verdict.WRONG
        return Verdict.NOT_PROVEN if self.unproven else Verdict.WELL

    @property
    def is_well(self) -> bool:
        return self.verdict is Verdict.WELL

    def exit_code(self, *, accept_unproven: bool = False) -> int:
        if self.unread and self.verdict is Verdict.NOT_PROVEN:
            return Unreachable.exit_code
        accepted = accept_unproven and self.verdict is Verdict.NOT_PROVEN
        return 0 if self.is_well or accepted else 1

    def sum_over_partitions(self, field: str) -> int | None:
        """Return the sum of one field over all partitions; ``None`` if any of them is unknown."""
        values = [getattr(partition, field) for partition in self.partitions]
        return None if not values or None in values else sum(values)

    def as_json(self) -> Mapping[str, Any]:
        return {"verdict": self.verdict.value, "well": self.is_well, **asdict(self)}
