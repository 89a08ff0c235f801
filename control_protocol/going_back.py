"""A rollback of many tables that has begun and must be finished first (rule D10)."""

from __future__ import annotations

from headgate.control_protocol.errors import StopSink
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.record import CommitRecord


class RollbackUnfinished(StopSink):
    """Some tables of the sink went back, others have not yet."""

    code = "HG-260"


def refuse_unfinished(record: CommitRecord | None, sink: SinkName) -> None:
    """Raise ``RollbackUnfinished`` where a person's claim says that the tables are going back."""
    if record and record.going_back is not None:
        raise RollbackUnfinished(
            f"sink {sink}: a rollback to {record.going_back} by {record.actor or 'a person'} has "
            "begun and did not end: some tables may have gone back, and others not",
            f"finish it with the same command, headgate rollback SINK {record.going_back}; the way "
            "back is open after that",
        )
