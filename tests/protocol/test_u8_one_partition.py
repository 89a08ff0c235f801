"""U8: a key lives in one partition of its topic, for nothing orders records of two."""

from __future__ import annotations

import pytest
from protocol.keyed import KeyedHead, deletes, rows

from headgate.control_protocol.errors import KeyInTwoPartitions

HEAD = KeyedHead({"a": [(1, 0, 7), (2, -1, -1), (3, 1, 0)]}, {"a": {2}})


def test_a_row_of_another_partition_stops_the_sink() -> None:
    said = "record at topic/1@2 has the key of a row from topic/0"
    with pytest.raises(KeyInTwoPartitions, match=said):
        HEAD.resolved(rows("x", (1, 1, 2)))
    with pytest.raises(KeyInTwoPartitions, match=said):
        HEAD.resolved(deletes((1, 1, 2)))


def test_two_records_of_one_commit_stop_it_too() -> None:
    said = "topic/1@4 and topic/0@5 have the same key"
    with pytest.raises(KeyInTwoPartitions, match=said):
        HEAD.resolved(rows("x", (9, 0, 5)), rows("y", (9, 1, 4)))


def test_rows_of_others_and_dead_ones_are_not_asked() -> None:
    HEAD.resolved(rows("x", (2, 1, 2), (3, 0, 3)))
