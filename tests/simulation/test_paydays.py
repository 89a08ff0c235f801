"""Secondary tables that are delivered at a pace, refreshed, or all in one call: each record is
there once.

More of them: ``make simulate ARGS="--first 800000 --seeds 1000 --real-every 2"``.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from simulation.payday import PACED, payday
from simulation.run import Tally, played
from simulation.together import JointFault
from support.examples import first_few

SEEDS_AT_ONCE = 10
FIRSTS = tuple(PACED[0] + since for since in (0, 10, 80, 90))
"""Chosen: with these each way of failing strikes."""


@cache
def walked(first: int) -> Tally:
    """Those that deliver together are over real tables."""
    seeds = range(first, first + SEEDS_AT_ONCE)
    return played(seeds, real=frozenset(seed for seed in seeds if payday(seed).joint))


@pytest.mark.parametrize("first", first_few(FIRSTS))
def test_every_row_is_there_once_whenever_tables_are_delivered(first: int) -> None:
    walk = walked(first)

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS_AT_ONCE, "the seeds did next to nothing"


@pytest.mark.wide
def test_a_joint_call_really_fails_in_all_its_ways() -> None:
    struck: Counter[str] = Counter()
    for first in FIRSTS:
        struck += walked(first).struck

    wanted = {f"joint commit {fault.name}" for fault in JointFault}
    assert {"joint commit sent", *wanted} - struck.keys() == set()
