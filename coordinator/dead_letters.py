"""A row of the quarantine as a message, and how far the messages are: pure, no Kafka and no table.

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
"""What is read of the quarantine."""

_CONNECT = "__connect.errors."


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message: what the record was, its own headers first, then where it was and why."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def letter_of(row: Mapping[str, Any]) -> DeadLetter:
    """``row`` holds ``COLUMNS``. What it does not know is no header."""
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
    """Every row up to this snapshot of the quarantine was sent; ``epoch`` is its commit's.

    Rows that came later are of this epoch or a higher one. Their transactions tell no more: a
    batch's files may be committed after a younger batch's, but never in another epoch.
    """

    table_uuid: str
    snapshot_id: int
    sequence_number: int
    epoch: Epoch

    def note(self) -> str:
        """As it is kept beside a committed offset."""
        return json.dumps([self.table_uuid, self.snapshot_id, self.sequence_number, self.epoch])

    @classmethod
    def of_note(cls, note: str) -> Progress | None:
        """``None`` for what is no such note: then everything is sent again, and nothing is lost."""
        try:
            table_uuid, snapshot_id, sequence_number, epoch = json.loads(note)
            return cls(str(table_uuid), int(snapshot_id), int(sequence_number), Epoch(int(epoch)))
        except (ValueError, TypeError):
            return None
