"""A participant's settings; every value in the unit that its name says."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Distribution(StrEnum):
    """How the rows of a batch are brought together before they are written."""

    TABLE = "table"
    NONE = "none"
    HASH = "hash"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class ParticipantSettings:
    """Defaults suit a Spark driver with a few cores."""

    batch_records_max: int = field(
        default=2_000_000,
        metadata={
            "unit": "records",
            "sentence": "Most offsets that one batch spans, over all its partitions. A backlog of "
            "so many is written at once; less waits for END-COMMIT, so that files are large.",
        },
    )
    files_max: int = field(
        default=20_000,
        metadata={
            "unit": "files",
            "sentence": "With so many files not yet announced, nothing is read until the "
            "transaction ends; what describes them must fit into the control topic.",
        },
    )
    presence_interval_ms: int = field(
        default=5_000,
        metadata={"unit": "ms", "sentence": "How often a participant says that it is alive."},
    )
    end_offset_interval_ms: int = field(
        default=500,
        metadata={"unit": "ms", "sentence": "How often it asks where the source ends."},
    )
    release_timeout_ms: int = field(
        default=20_000,
        metadata={
            "unit": "ms",
            "sentence": "How long a partition that goes to another member may wait for the running "
            "batch; then the batch is dropped and read again.",
        },
    )
    batch_timeout_ms: int = field(
        default=900_000,
        metadata={
            "unit": "ms",
            "sentence": "How long a batch may take before it is given up and done again: longer "
            "than any that works. It ends what hangs in Spark or in a storage (HG-219).",
        },
    )
    batch_attempts_max: int = field(
        default=5,
        metadata={
            "unit": "batches",
            "sentence": "The sink stops when so many batches in a row did not end in time "
            "(HG-219), or failed for a reason that no other system gave (HG-218).",
        },
    )
    retry_backoff_ms: int = field(
        default=500,
        metadata={"unit": "ms", "sentence": "Wait after a failed batch or call before the next."},
    )
    retry_backoff_max_ms: int = field(
        default=10_000,
        metadata={
            "unit": "ms",
            "sentence": "Longest wait after batches that another system made fail; each doubles.",
        },
    )


class UnknownFields(StrEnum):
    """What becomes of a record with a field that the table has no column for."""

    IGNORE = "ignore"
    """The field is left out, and nobody looks for it."""
    EVOLVE = "evolve"
    """The table gets a column for it."""
    QUARANTINE = "quarantine"
    """The record is a bad one."""
    FAIL = "fail"
    """The sink stops."""


class Incompatible(StrEnum):
    """What becomes of a record with a value that its column does not take."""

    QUARANTINE = "quarantine"
    """The record is a bad one."""
    IGNORE = "ignore"
    """The value is left out: the row has a null."""
    FAIL = "fail"
    """The sink stops."""


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """``readd_dropped``: whether a name whose column was dropped gets one again."""

    unknown_fields: UnknownFields = UnknownFields.IGNORE
    readd_dropped: bool = False
    incompatible: Incompatible = Incompatible.QUARANTINE
