"""How old files may be: what is remembered of a term's STARTs (P9)."""

from __future__ import annotations

import pytest

from headgate.control_protocol.identifiers import TransactionNumber
from headgate.coordinator.commit_tokens import Issued, issued, oldest

AGE_MAX_MS = 1_000


@pytest.mark.parametrize("interval_ms", [1, 10, 249, 250, 999])
def test_what_is_too_old_is_always_known_and_at_most_a_quarter_early(interval_ms: int) -> None:
    starts: Issued = ()
    for number in range(1, 5_000 // interval_ms):
        now_ms = number * interval_ms
        starts = issued(starts, TransactionNumber(number), now_ms, AGE_MAX_MS)
        first = oldest(starts, now_ms, AGE_MAX_MS)

        assert first is not None
        assert now_ms - first * interval_ms <= AGE_MAX_MS
        refused = [n for n in range(1, first) if now_ms - n * interval_ms <= 3 * AGE_MAX_MS / 4]
        assert refused == []


def test_little_is_remembered_however_short_the_interval() -> None:
    starts: Issued = ()
    for number in range(1, 10_000):
        starts = issued(starts, TransactionNumber(number), number, AGE_MAX_MS)

    assert len(starts) <= 5


def test_after_a_long_stand_still_nothing_is_young() -> None:
    starts = issued((), TransactionNumber(1), 0, AGE_MAX_MS)

    assert oldest(starts, AGE_MAX_MS + 1, AGE_MAX_MS) is None
