"""Offers every port of the protocol in memory: for users' own tests, and for headgate's simulation.

No threads and no sleep; a wait moves the ``FakeClock`` on. A fake promises what the real adapter
promises: both pass the same contract tests.
"""

from headgate.control_protocol.testing.catalog import CommitFault, FakeCatalog
from headgate.control_protocol.testing.clock import FakeClock
from headgate.control_protocol.testing.group import FakeGroup, FakeMember
from headgate.control_protocol.testing.log import AppendFault, FakeLog, FakeLogServer
from headgate.control_protocol.testing.source import FakeSource, FakeTopics, SourceRecord
from headgate.control_protocol.testing.table import FakeTable
from headgate.control_protocol.testing.writer import FakeBatchWriter, FakeStorage

__all__ = [
    "AppendFault",
    "CommitFault",
    "FakeBatchWriter",
    "FakeCatalog",
    "FakeClock",
    "FakeGroup",
    "FakeLog",
    "FakeLogServer",
    "FakeMember",
    "FakeSource",
    "FakeStorage",
    "FakeTable",
    "FakeTopics",
    "SourceRecord",
]
