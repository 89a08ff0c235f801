"""Where a sink began, as its commits tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyroaring import BitMap64

from headgate.control_protocol.commit_record import OPERATOR, CommitRecord
from headgate.control_protocol.identifiers import Sender, TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import TopicState
from headgate.control_protocol.table_history import History, SinkCommit
from headgate.control_protocol.testing.contract.world import record
from headgate.operations.audit.source_compare import (
    SourceOffsets,
    check_commits_and_count_compared,
    compare_partition,
    find_comparable_ranges_and_unproven,
    find_sink_start_offsets,
)
from headgate.operations.audit.table_records import SeenOffsets

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


def test_below_where_the_source_was_read_nothing_is_invented_or_counted() -> None:
    """The table's first row is 102, and the quarantine holds what came before it."""
    source = SourceOffsets(OffsetRange(0, 200), BitMap64(range(102, 120)), begin=102)
    seen = SeenOffsets(BitMap64(range(102, 120)))
    quarantined = BitMap64([100, 101])
    audited, found = compare_partition(AT, (None, 120), source, seen, quarantined=quarantined)
    assert (found, audited.lost, audited.invented) == ([], 0, 0)
    commits = [replace(record(1, n, end), records=10) for n, end in enumerate((100, 110, 120))]
    retained = history(*commits, complete=True)
    ids = retained.commits[-1].record.topic_ids
    assert check_commits_and_count_compared(retained, {AT: source}, ids) == ([], 1, [])


def test_a_partition_without_a_leader_is_not_called_gone() -> None:
    others = {1: OffsetRange(0, 10)}
    topics = {AT.topic: TopicState(TopicId("1"), others, silent=frozenset({AT.partition}))}
    ranges, unproven = find_comparable_ranges_and_unproven(topics, {}, {AT: (0, 10)}, {})
    assert ranges == {}
    assert unproven == ["trips/0: no broker leads it now, so it was not compared"]


def test_what_a_person_had_read_again_may_be_a_row_and_quarantined() -> None:
    """The record was bad, the table was mended, and offsets were set back."""
    seen = SeenOffsets(BitMap64([3, 4]), rewound=BitMap64([3]))
    audited, found = compare_partition(AT, (0, 5), None, seen, quarantined=BitMap64([3, 4]))
    assert (audited.twice, len(found)) == (1, 1)


def test_nothing_is_missing_below_a_log_of_which_nothing_was_read() -> None:
    """Retention has removed all of an idle partition."""
    topics = {"trips": TopicState(TopicId("id"), {0: OffsetRange(10, 10)})}
    ranges, unproven = find_comparable_ranges_and_unproven(topics, {}, {AT: (5, 5)}, {})
    assert (ranges[AT], unproven) == (OffsetRange(5, 5), [])
