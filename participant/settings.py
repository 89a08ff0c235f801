"""Defines a participant's settings; every value is in the unit that its name says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated


class Distribution(StrEnum):
    """Says how the rows of a batch are brought together before they are written."""

    TABLE = "table"
    NONE = "none"
    HASH = "hash"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class ParticipantSettings:
    """Holds the settings; defaults suit a Spark driver with a few cores."""

    batch_records_max: int = 2_000_000
    """Maximum number of offsets in a batch, over all its partitions. A backlog of this size is
    written at once; a smaller one waits for END-COMMIT, so that files are large."""
    files_max: int = 20_000
    """With this many files not yet announced, nothing more is read until the transaction ends; the
    files' descriptions must fit into the control topic."""
    presence_interval_ms: int = 5_000
    """How often a participant reports that it is alive."""
    records_per_second_max: Annotated[int, "records/s"] = 0
    """How many offsets this participant reads per second at most, so that a backlog leaves the
    brokers to others; 0 means no bound. A batch takes ten seconds of it, unless it is smaller."""
    bytes_per_second_max: Annotated[int, "bytes/s"] = 0
    """As `records_per_second_max`, by the mean size of the records in the batch before; the first
    batch has at most 10,000 records."""
    end_offset_interval_ms: int = 500
    """How often it asks for the source's end offsets; four times more seldom while it has read all
    that was there, unless a limit may end the transaction early. END asks in any case."""
    release_timeout_ms: int = 20_000
    """How long a partition that moves to another member may wait for the running batch; then the
    batch is dropped and read again."""
    batch_timeout_ms: int = 900_000
    """How long a batch may take before it is given up and repeated; allow more than any successful
    batch needs. This ends batches that hang in Spark or in storage (HG-219)."""
    batch_attempts_max: Annotated[int, "batches"] = 5
    """The sink stops when this many batches in a row did not end in time (HG-219), or failed for a
    reason that came from no other system (HG-218)."""
    retry_backoff_ms: int = 500
    """Wait after a failed batch or call before the next attempt."""
    retry_backoff_max_ms: int = 10_000
    """Longest wait after batches that failed because of another system; the wait doubles each time.
    """


class UnknownFields(StrEnum):
    """Says what becomes of a record with a field that the table has no column for."""

    IGNORE = "ignore"
    """The field is left out, and nobody looks for it."""
    EVOLVE = "evolve"
    """The table gets a column for it."""
    QUARANTINE = "quarantine"
    """The record is a bad one."""
    FAIL = "fail"
    """The sink stops."""


class Incompatible(StrEnum):
    """Says what becomes of a record with a value that its column does not take."""

    QUARANTINE = "quarantine"
    """The record is a bad one."""
    IGNORE = "ignore"
    """The value is left out: the row has a null."""
    FAIL = "fail"
    """The sink stops."""


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """Says how a table may change; ``readd_dropped``: whether a name whose column was dropped gets
    one again.
    """

    unknown_fields: UnknownFields = UnknownFields.IGNORE
    readd_dropped: bool = False
    incompatible: Incompatible = Incompatible.QUARANTINE
