"""Where a sink began, as its commits tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.control_protocol.commit_record import OPERATOR, CommitRecord
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.table_history import History, SinkCommit
from headgate.control_protocol.testing.contract.world import record
from headgate.operations.audit.source_compare import find_sink_start_offsets

AT = TopicPartition("trips", 0)


def history(*records: CommitRecord, complete: bool) -> History:
    commits = tuple(SinkCommit(n, n, each, 0, 0) for n, each in enumerate(records))
    return History(
        "db.trips", "uuid", "main", 9, 9, True, True, complete, commits, (), (), records[-1]
    )


def by_hand(epoch: int, offset: int) -> CommitRecord:
    return replace(record(epoch, 0, offset), coordinator=Sender(OPERATOR, "hand"))


@pytest.mark.parametrize("offset", [60, 4], ids=["a pause", "offsets set back"])
def test_what_a_person_does_tells_no_start_that_has_expired(offset: int) -> None:
    """Else records from before a sink that began at the end of the log would be called lost."""
    seen = history(record(3, 1, 60), by_hand(4, offset), complete=False)
    assert find_sink_start_offsets(seen, from_earliest=False)[AT] is None
    assert find_sink_start_offsets(seen, from_earliest=True)[AT] == 0


def test_a_start_that_is_known_goes_down_with_offsets_that_are_set_back() -> None:
    seen = history(record(1, 0, 10), record(1, 1, 60), by_hand(2, 60), complete=True)
    assert find_sink_start_offsets(seen, from_earliest=False)[AT] == 10
    seen = history(record(1, 0, 10), record(1, 1, 60), by_hand(2, 4), complete=True)
    assert find_sink_start_offsets(seen, from_earliest=False)[AT] == 4
