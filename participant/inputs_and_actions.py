"""Defines what only this machine is told, and what only it asks for; ``machine_io`` has what both
have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import (
    Append,
    Heard,
    LogLine,
    LogTruncated,
    Stop,
    Tick,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch, BatchOutcome

# ------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Assigned:
    """Brings the owned partitions, as of a fresh poll."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """Says that the group takes these partitions away; it waits while ``state.work.leaving`` is not
    empty.
    """

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ReleaseTimedOut:
    """Says that the group waits no longer."""


@dataclass(frozen=True, slots=True)
class EndOffsetsRead:
    """Says where the source ends now (last stable offsets).

    ``full``: it shows no more until some of it is read.
    """

    ends: Mapping[TopicPartition, int]
    full: bool = False


@dataclass(frozen=True, slots=True)
class BatchEnded:
    outcome: BatchOutcome


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """Says that an append failed; its events may be in the log, or not."""

    reason: str


Input = (
    Assigned
    | ReleaseRequested
    | ReleaseTimedOut
    | Heard
    | LogTruncated
    | EndOffsetsRead
    | BatchEnded
    | AppendFailed
    | Tick
)

# ------------------------------------------------------------------------------------ actions


@dataclass(frozen=True, slots=True)
class ReadEndOffsets:
    """Answer with ``EndOffsetsRead``; with no ends when the source does not answer."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Submit:
    """Begin the batch; its outcome comes back as ``BatchEnded``. An older one is abandoned."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class CopyOffsets:
    """Copy settled offsets of owned partitions to the group, for lag tools; best effort."""

    offsets: Offsets
    table_uuid: str


Action = Append | ReadEndOffsets | Submit | CopyOffsets | LogLine | Stop


RELEASE_TIMED_OUT = LogLine(
    "release timed out: work is dropped", trouble=True, event=LogEvent.BATCH_UNANNOUNCED
)


def control_log_warning(text: str) -> LogLine:
    """Report a trouble of the control log: it lost something, or did not confirm."""
    return LogLine(text, trouble=True, event=LogEvent.CONTROL_TOPIC_UNAVAILABLE)
