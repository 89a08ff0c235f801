"""KEY-3: on the head of the call, the last record of each key wins and every other row of it
dies."""

from __future__ import annotations

from protocol.keyed import KeyedHead, deletes, killed, rows

HEAD = KeyedHead({"a": [(1, 0, 0), (2, 0, 1)], "b": [(3, 0, 2)]})


def test_a_record_replaces_the_live_row_of_its_key() -> None:
    assert killed(HEAD.resolved(rows("new", (2, 0, 3), (4, 0, 4)))) == {"a": {1}}


def test_of_one_commit_the_record_with_the_higher_offset_wins_in_whatever_file_it_is() -> None:
    newer, older = rows("x", (2, 0, 9)), rows("y", (2, 0, 3), (5, 0, 4))
    for changes in ((newer, older), (older, newer)):
        assert killed(HEAD.resolved(*changes)) == {"a": {1}, "y": {0}}


def test_a_delete_kills_earlier_rows_of_its_own_commit_and_no_later_one() -> None:
    found = HEAD.resolved(rows("x", (3, 0, 3), (3, 0, 5)), deletes((3, 0, 4)))
    assert killed(found) == {"b": {0}, "x": {0}}
    found = HEAD.resolved(rows("x", (3, 0, 3)), deletes((3, 0, 4)))
    assert killed(found) == {"b": {0}, "x": {0}}


def test_what_was_dead_stays_dead_and_files_without_deaths_are_left_alone() -> None:
    head = KeyedHead({"a": [(1, 0, 0), (2, 0, 1), (1, 0, 2)]}, {"a": {0}})
    assert killed(head.resolved(rows("x", (1, 0, 3)))) == {"a": {0, 2}}
    assert killed(head.resolved(rows("x", (7, 0, 3)))) == {}


def test_keys_that_somebody_doubled_lose_all_their_rows() -> None:
    head = KeyedHead({"a": [(1, 0, 0)], "b": [(1, 0, 0)]})
    found = head.resolved(rows("x", (1, 0, 3)))
    assert killed(found) == {"a": {0}, "b": {0}}
    assert (found.doubled, found.counts.updated) == (1, 1)
