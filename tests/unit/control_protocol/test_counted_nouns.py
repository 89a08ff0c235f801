"""One of a thing is told as one."""

from __future__ import annotations

from headgate.control_protocol.counted_nouns import count_of


def test_numbers_go_with_their_nouns() -> None:
    assert [count_of(number, "row") for number in (0, 1, 2, 12_345)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "12,345 rows",
    ]
    assert count_of(1, "row is", "rows are") == "1 row is"
    assert count_of(2, "row is", "rows are") == "2 rows are"
