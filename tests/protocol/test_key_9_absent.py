"""KEY-9: a record that deletes what is not there is counted, and does nothing."""

from __future__ import annotations

from protocol.keyed import KeyedHead, deletes, killed

from headgate.control_protocol.commit_record import KeyCounts

HEAD = KeyedHead({"a": [(1, 0, 0), (2, 0, 1)]}, {"a": {0}})


def test_deletes_of_keys_without_a_live_row_are_absent() -> None:
    found = HEAD.resolved(deletes((1, 0, 2), (5, 0, 3)))
    assert killed(found) == {}
    assert found.counts == KeyCounts(absent=2)


def test_a_tombstone_behind_a_delete_is_one_record_of_its_key() -> None:
    found = HEAD.resolved(deletes((2, 0, 2), (2, 0, 3)))
    assert found.counts == KeyCounts(deleted=1, superseded=1)
