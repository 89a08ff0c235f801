"""How old files may be: what is remembered of a term's STARTs (TOKEN-1)."""

from __future__ import annotations

import pytest
from protocol.values import ALICE, BOB

from headgate.control_protocol.identifiers import TransactionNumber
from headgate.coordinator.file_admission import MARKS_KEPT, Tokens

AGE_MAX_MS = 1_000


@pytest.mark.parametrize("interval_ms", [1, 10, 249, 250, 999])
def test_what_is_too_old_is_always_known_and_at_most_a_quarter_early(interval_ms: int) -> None:
    tokens = Tokens()
    for number in range(1, 5_000 // interval_ms):
        now_ms = number * interval_ms
        tokens = tokens.with_start(TransactionNumber(number), "", now_ms, AGE_MAX_MS)
        first = tokens.oldest_young_transaction(now_ms, AGE_MAX_MS)

        assert first is not None
        assert now_ms - first * interval_ms <= AGE_MAX_MS
        refused = [n for n in range(1, first) if now_ms - n * interval_ms <= 3 * AGE_MAX_MS / 4]
        assert refused == []


def test_little_is_remembered_however_short_the_interval() -> None:
    tokens = Tokens()
    for number in range(1, 10_000):
        tokens = tokens.with_start(TransactionNumber(number), "", number, AGE_MAX_MS)

    assert len(tokens.starts) <= 5


def test_after_a_long_stand_still_nothing_is_young() -> None:
    tokens = Tokens().with_start(TransactionNumber(1), "", 0, AGE_MAX_MS)

    assert tokens.oldest_young_transaction(AGE_MAX_MS + 1, AGE_MAX_MS) is None


def test_marks_are_those_of_the_newest_transactions_and_the_newest_comes_first() -> None:
    tokens = Tokens()
    for number in range(1, MARKS_KEPT + 10):
        tokens = tokens.with_start(TransactionNumber(number), f"m{number}", number, AGE_MAX_MS)
    newest = TransactionNumber(MARKS_KEPT + 9)

    assert tokens.marks == tuple(f"m{newest - back}" for back in range(MARKS_KEPT))


def test_who_is_stale_is_counted_on_until_something_of_it_is_admitted() -> None:
    stale = Tokens().with_stale_counted((), (ALICE, BOB)).with_stale_counted((BOB,), (ALICE, BOB))

    assert stale.stale == {ALICE: 2}
    assert stale.with_stale_counted((), ()).stale == {ALICE: 2}
