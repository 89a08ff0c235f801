"""Seeds in which something happens that once made a sink stand still in silence (RANGE-3,
ELECTION-2, TOKEN-1)."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest
from simulation.climate import drawn
from simulation.run import Tally, played
from simulation.wedges import CUT, MOVED, WEDGED_FROM, WRONG, wedge_of

SEEDS = 600
EACH = 12
STRUCK = {
    MOVED: ("table's data moved", "START names the folder of before"),
    WRONG: ("files in a wrong folder",),
    CUT: ("lead released",),
}
"""What must really happen, each at least once."""


@cache
def walked(kind: str) -> Tally:
    seeds = range(WEDGED_FROM, WEDGED_FROM + SEEDS)
    its = [s for s in seeds if wedge_of(s, drawn(random.Random(s)), plain=True) == kind]
    assert len(its) >= EACH
    return played(its[:EACH])


@pytest.mark.parametrize("kind", STRUCK)
def test_every_row_is_there_once_or_the_sink_stops_by_name(kind: str) -> None:
    walk = walked(kind)

    assert not walk.failed, "\n".join(walk.failed)
    assert set(STRUCK[kind]) - walk.struck.keys() == set()


def test_a_wrong_writer_stops_the_sink_by_name_and_nothing_else_does() -> None:
    stops: Counter[str] = Counter()
    for kind in STRUCK:
        stops[kind] = walked(kind).counts["HG-216"]
    assert stops[WRONG]
    assert not stops[MOVED]
    assert not stops[CUT]
