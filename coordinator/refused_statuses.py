"""Why statuses are refused whole (C7), and how often in a row they were (C13). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headgate.control_protocol.identifiers import Sender, TopicPartition


class Fault(StrEnum):
    """What is wrong with a status, whatever the words for it are."""

    RANGES = "claims do not begin at the next offset"
    OVERTAKEN = "another participant's claims of the same partitions came first"
    BEYOND = "claims end beyond the log"
    UNREADABLE = "a table cannot be read now"
    TABLE = "files of a table that takes none, or is another one"
    FOLDER = "files outside of their folders"
    LATE = "files of an earlier transaction, which alone could bring them"
    COUNTS = "counts do not add up"
    IMPOSSIBLE = "not possible with these settings, or in the table already"


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a status is refused whole; ``table``: the one that alone is at fault, if there is one."""

    fault: Fault
    text: str
    table: str = ""


@dataclass(frozen=True, slots=True)
class RefusedStatus:
    """A status that was refused whole, by its sender and the partitions that it claims."""

    sender: Sender
    number: int
    objection: Objection
    partitions: frozenset[TopicPartition]

    def __str__(self) -> str:
        return f"status {self.number} of {self.sender}: {self.objection.text}"


@dataclass(frozen=True, slots=True)
class Refused:
    """How often in a row claims of a partition were refused for the same reason (C13).

    ``looked``: the tables were read afresh because of it.
    """

    sender: Sender
    objection: Objection
    times: int = 1
    since_ms: int = 0
    looked: bool = False

    def same_as(self, other: Refused) -> bool:
        """Return whether it is the same participant with the same fault, whatever its words."""
        ours, theirs = self.objection, other.objection
        alike = (ours.fault, ours.table) == (theirs.fault, theirs.table)
        return alike and self.sender == other.sender
