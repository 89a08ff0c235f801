"""Seeds whose secondary tables have keys: after every delivery each is the fold of what it was
delivered to.

More of them: ``make simulate ARGS="--first 850000 --real --keyed --seeds 1000"``.
"""

from __future__ import annotations

from functools import cache

import pytest
from simulation.payday import ROUTED_KEYS
from simulation.run import Tally, played

SEEDS = 20
SEEDS_AT_ONCE = 20

STRUCK = (
    *("table compacted meanwhile", "table compacted", "snapshots expired", "compaction landed"),
    *("other commit REFUSED", "other commit LOST_UNKNOWN", "other commit LANDED_UNKNOWN"),
    *("other commit LATE_UNKNOWN", "joint commit sent", "two coordinators"),
    "kill at decided and not delivered",
)
"""What must really befall somebody, each at least once."""


@cache
def walked(first: int) -> Tally:
    seeds = range(first, first + SEEDS_AT_ONCE)
    return played(seeds, real=frozenset(seeds), keyed=frozenset(seeds))


def firsts() -> range:
    return range(ROUTED_KEYS[0], ROUTED_KEYS[0] + SEEDS, SEEDS_AT_ONCE)


@pytest.mark.wide
@pytest.mark.parametrize("first", firsts())
def test_keyed_secondaries_are_the_fold_whatever_fails(first: int) -> None:
    walk = walked(first)

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS_AT_ONCE, "the seeds did next to nothing"


@pytest.mark.wide
def test_what_befalls_them_has_really_struck() -> None:
    struck = sum((walked(first).struck for first in firsts()), walked(ROUTED_KEYS[0]).struck)

    assert set(STRUCK) - struck.keys() == set()


@pytest.mark.soak
def test_a_seed_of_keyed_secondaries_has_one_course() -> None:
    seed = ROUTED_KEYS[2]
    one, other = (played([seed], real=frozenset({seed}), keyed=frozenset({seed})) for _ in range(2))

    assert (one.counts, one.struck) == (other.counts, other.struck)
