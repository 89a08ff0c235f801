"""Seeds in which rows expire (EXPIRY-1 to EXPIRY-3) and deletes mark rows (KEY-13) while the sink
commits, others compact the table, and somebody takes it back.

More of them: ``make simulate ARGS="--real --first 750000 --seeds 1000"``, and with ``--keyed``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from functools import cache
from itertools import islice

import pytest
from simulation.ages import AGED
from simulation.climate import drawn
from simulation.run import Tally, played
from simulation.world import World

SEEDS = 10

STRUCK = (
    *("rows expired", "expiry landed", "expiry refused", "expiry unknown", "maintenance killed"),
    *("compaction landed", "table compacted", "upheaval: roll back"),
)
"""What must really happen, each at least once."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@cache
def walked(*, keyed: bool) -> Tally:
    seeds = frozenset(AGED[:SEEDS] if keyed else AGED[SEEDS : 2 * SEEDS])
    return played(seeds, real=seeds, keyed=seeds if keyed else frozenset())


@pytest.mark.wide
@pytest.mark.parametrize("keyed", [False, True])
def test_rows_go_when_they_are_old_and_no_others(*, keyed: bool) -> None:
    walk = walked(keyed=keyed)

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS


@cache
def taken_back() -> Tally:
    """Seeds in which somebody sets the branch to an older snapshot."""
    some = (s for s in AGED if drawn(random.Random(s)).upheaval == "roll back")
    seeds = list(islice(some, 4))
    return played(seeds, real=frozenset(seeds), keyed=frozenset(seeds[::2]))


def test_rows_that_come_back_with_an_older_snapshot_expire_again() -> None:
    walk = taken_back()

    assert not walk.failed, "\n".join(walk.failed)


@pytest.mark.wide
def test_what_befalls_aged_tables_has_really_struck() -> None:
    struck = walked(keyed=False).struck + walked(keyed=True).struck + taken_back().struck

    assert set(STRUCK) - struck.keys() == set()


def test_most_keyed_ones_keep_what_was_deleted() -> None:
    worlds = [World(seed, real=True, keyed=True) for seed in AGED[:SEEDS]]

    assert {world.keys.marks for world in worlds if world.keys} == {True, False}
    assert all(world.keeper for world in worlds)
