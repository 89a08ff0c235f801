"""Plays the deployment around the processes of one sink in memory: all of it but the tables.

Scenarios, simulation and the sink in process each add their tables, who takes the next turn, and
what goes wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import Envelope, Resume
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.testing import (
    FakeClock,
    FakeGroup,
    FakeLog,
    FakeLogServer,
    FakeSource,
)


class Deployment:
    """A clock, the control topic, the source's topics with so many partitions, and their group."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.topics = tuple(topics)
        self.clock = FakeClock()
        self.log = FakeLogServer(self.clock)
        self.source = FakeSource()
        self.group = FakeGroup(self.source, self.clock)
        for topic, partitions in topics.items():
            self.source.create_or_replace(topic, partitions)

    def source_ends(self) -> dict[TopicPartition, int]:
        """Return the end of each partition of the source."""
        return {at: log.end for at, log in self.source.partitions.items()}

    def request_resume(self, record: CommitRecord | None, *tables: str) -> Envelope:
        """Append what ``headgate tables resume`` says about a table with this record; return it."""
        assert record is not None
        newest, sender = record.transaction, Sender("operator", "1")
        event = Resume(tables)
        said = Envelope(record.sink, newest.epoch, newest.number, sender, 1, 0, event)
        FakeLog(self.log).append([said])
        return said
