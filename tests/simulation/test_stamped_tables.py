"""Seeds over a table that stamps its files: only one transaction may bring them (rule TOKEN-2)."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from simulation.run import Tally, played
from support.examples import first_few

FIRST_SEEDS = 60
SEEDS_AT_ONCE = 20
STOOD_STILL = (9010, 91000301)
"""Here one late answer once made every END after it ready before its own answers came."""
STRUCK = ("stale status refused", "stamp rolled back")
"""What must really happen, each at least once."""
CALLS = {"stamp", "stamped"}
"""In one of these somebody must be struck: before a stamp is given, or after."""


@cache
def walked(first: int) -> Tally:
    seeds = range(first, first + SEEDS_AT_ONCE)
    return played(seeds, stamped=frozenset(seeds))


@pytest.mark.parametrize("first", first_few(range(1, FIRST_SEEDS, SEEDS_AT_ONCE)))
def test_token_2_every_row_is_there_once_though_files_belong_to_their_transaction(
    first: int,
) -> None:
    walk = walked(first)

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS_AT_ONCE, "the seeds did next to nothing"


@pytest.mark.wide
def test_token_2_late_statuses_and_stamps_that_others_roll_back_have_really_struck() -> None:
    struck: Counter[str] = Counter()
    for first in range(1, FIRST_SEEDS, SEEDS_AT_ONCE):
        struck += walked(first).struck

    assert set(STRUCK) - struck.keys() == set()
    assert CALLS & {what.partition(" at ")[2] for what in struck}


def test_token_2_one_late_answer_does_not_make_all_that_follow_late() -> None:
    walk = played(STOOD_STILL, stamped=frozenset(STOOD_STILL))

    assert not walk.failed, "\n".join(walk.failed)
