"""Names things by distinct types, so that one cannot be passed for another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NewType

SinkName = NewType("SinkName", str)
"""A sink's name: unique per table (it names the tag) and per control topic."""

Epoch = NewType("Epoch", int)
"""A coordinator's term: raised by every claim, never reused, 0 before the first (rule EPOCH-1)."""

TransactionNumber = NewType("TransactionNumber", int)
"""Counts transactions inside one epoch from 1; 0 stands for none."""

ControlOffset = NewType("ControlOffset", int)
"""A position in the control log; as everywhere, the *next* one to look at."""

TopicId = NewType("TopicId", str)
"""Kafka's own topic identity (KIP-516): a re-created topic has another."""


LEAP_MAX = 2**20
"""Epochs and status numbers are counted up one by one: a larger leap is not believed, for counting
could not go on from there (rule LOG-6)."""


@dataclass(frozen=True, slots=True, order=True)
class TransactionId:
    """Identifies one transaction of one coordinator."""

    epoch: Epoch
    number: TransactionNumber

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}"


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """Identifies one partition of a source topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class Sender:
    """Identifies one life of one process: ``member`` is a readable name, ``incarnation`` is new per
    start.
    """

    member: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.member}#{self.incarnation}"


def tag_name(sink: SinkName, branch: str = "main") -> str:
    """Return the Iceberg tag that is this sink's lock and holds its state, one per branch
    (TABLE-1).

    Sink names have no ``@``, so tags of two sinks on different branches never collide.
    """
    return f"headgate-{sink}" if branch == "main" else f"headgate-{sink}@{branch}"


def sink_staging_folder(location: str, sink: SinkName) -> str:
    """Return the folder of a sink's drafts, below a table's location."""
    return f"{location}/metadata/headgate/{sink}"


def table_staging_folder(location: str, sink: SinkName, table_uuid: str) -> str:
    """Return where a sink stages what one secondary table shall receive (PENDING-2).

    Tables may share a location: one that was renamed leaves its manifests to whatever is created
    under its name. A format may choose UUIDs that are no names of folders.
    """
    own = re.sub(r"[^\w-]", "-", table_uuid, flags=re.ASCII)
    return f"{sink_staging_folder(location, sink)}/{own}"


def staging_folder(table_folder: str, epoch: Epoch, coordinator: Sender) -> str:
    """Return where one coordinator stages, below the table's ``table_staging_folder``."""
    return f"{table_folder}/{epoch}-{coordinator.incarnation}"


def branch_of_tag(name: str) -> str | None:
    """Return the branch that a sink's tag belongs to; ``None`` for any other tag."""
    sink, _, branch = name.removeprefix("headgate-").partition("@")
    return branch or "main" if name.startswith("headgate-") and sink else None


def sink_of_tag(name: str, branch: str) -> SinkName | None:
    """Return the sink whose tag for this branch has the name; ``None`` for any other tag."""
    sink = SinkName(name.removeprefix("headgate-").partition("@")[0])
    return sink if sink and name == tag_name(sink, branch) else None
