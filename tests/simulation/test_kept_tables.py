"""Seeds in which somebody maintains the real tables meanwhile: compaction and orphans
(COMPACTION-1, ORPHAN-1).

The checkers are the same: every row of the source once, every file that is referred to is there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from simulation.keeper import KEPT_FROM
from simulation.run import played

SEEDS = 16

STRUCK = ("compaction landed", "compaction refused", "orphans deleted")
"""What must really happen, each at least once."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.wide
def test_nothing_is_lost_or_doubled_beside_maintenance() -> None:
    seeds = range(KEPT_FROM, KEPT_FROM + SEEDS)

    walk = played(seeds, real=frozenset(seeds))

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS
    assert set(STRUCK) - walk.struck.keys() == set()


@pytest.mark.wide
def test_a_kept_seed_has_one_course() -> None:
    seed = KEPT_FROM + 3
    one, other = (played([seed], real=frozenset({seed})) for _ in range(2))

    assert (one.counts, one.struck) == (other.counts, other.struck)
