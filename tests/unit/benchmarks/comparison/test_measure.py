"""What the benchmark says of intervals."""

from __future__ import annotations

import pytest

from comparison.measure import apart_ms
from comparison.target import Seen


def seen(*looks: tuple[float, int]) -> list[Seen]:
    return [Seen(at_s, 1, rows) for at_s, rows in looks]


def test_commits_are_apart_by_when_their_rows_were_seen() -> None:
    """A change without rows is no commit, and what comes before or after does not count."""
    looks = seen((0, 0), (9, 1), (10, 2), (10.2, 2), (11, 3), (13, 4), (20, 5))
    assert apart_ms(looks, (9.5, 15.0)) == (pytest.approx(1_500), pytest.approx(1_990))
    assert apart_ms(looks, (9.5, 10.5)) is None
