"""Turns a row of the quarantine into a message, and records progress: pure, no Kafka, no table.

The names under ``__connect.errors.`` are those of Kafka Connect's dead-letter queues.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.control_protocol.identifiers import Epoch

COLUMNS = (
    *("topic", "topic_id", "partition", "offset", "key", "value", "headers"),
    *("error_class", "message", "sink", "epoch", "transaction"),
)
"""The columns that are read from the quarantine."""

_CONNECT = "__connect.errors."


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Holds one message: the record as it was, its own headers first, then where it was and its
    fault.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def dead_letter_of(row: Mapping[str, Any]) -> DeadLetter:
    """Build the message from a row that holds ``COLUMNS``. Null columns produce no header."""
    added = {
        f"{_CONNECT}topic": row["topic"],
        f"{_CONNECT}partition": row["partition"],
        f"{_CONNECT}offset": row["offset"],
        f"{_CONNECT}exception.class.name": row["error_class"],
        f"{_CONNECT}exception.message": row["message"],
        "headgate.topic.id": row["topic_id"],
        "headgate.sink": row["sink"],
        "headgate.transaction": f"{row['epoch']}.{row['transaction']}",
    }
    own = [(header["key"], header["value"]) for header in row["headers"] or ()]
    told = [(name, str(value).encode()) for name, value in added.items() if value is not None]
    return DeadLetter(row["key"], row["value"], (*own, *told))


@dataclass(frozen=True, slots=True)
class Progress:
    """Says that every row up to this snapshot of the quarantine was sent; ``epoch`` is that of its
    commit.

    Later rows are of this epoch or a higher one. Transactions cannot tell more: a batch's files may
    be committed after a younger batch's, but never in another epoch.
    """

    table_uuid: str
    snapshot_id: int
    sequence_number: int
    epoch: Epoch

    def to_offset_metadata(self) -> str:
        """Return the text that is kept beside a committed offset."""
        return json.dumps([self.table_uuid, self.snapshot_id, self.sequence_number, self.epoch])

    @classmethod
    def from_offset_metadata(cls, note: str) -> Progress | None:
        """Parse a note. ``None`` for any other text: everything is sent again, nothing is lost."""
        try:
            table_uuid, snapshot_id, sequence_number, epoch = json.loads(note)
            return cls(str(table_uuid), int(snapshot_id), int(sequence_number), Epoch(int(epoch)))
        except (ValueError, TypeError):
            return None
