"""Seeds over the real table adapter, on a catalog and storage in memory that fail under it.

More of them: ``make simulate ARGS="--real --seeds 1000"``; one seed in twenty of any run is such.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from simulation.climate import looks_round
from simulation.run import Tally, played
from simulation.world import World
from support.examples import first_few

SEEDS = 40
SEEDS_AT_ONCE = 20

STRUCK = (
    *("commit REFUSED", "commit LOST_UNKNOWN", "commit LANDED_UNKNOWN", "commit LATE_UNKNOWN"),
    *("commit sent twice", "late commit landed", "late commit refused", "RealCatalog away"),
    *("snapshots removed", "quarantine snapshots removed", "due snapshot tagged"),
    *("storage write fails", "snapshots expired", "table compacted", "foreign append"),
    *("upheaval: roll back", "upheaval: delete tag", "upheaval: recreate table"),
)
"""What must really befall somebody, each at least once."""


@cache
def walked(first: int) -> Tally:
    seeds = range(first, first + SEEDS_AT_ONCE)
    return played(seeds, real=frozenset(seeds))


@pytest.mark.parametrize("first", first_few(range(1, SEEDS, SEEDS_AT_ONCE)))
def test_every_row_once_and_every_file_there_over_the_real_adapter(first: int) -> None:
    walk = walked(first)

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS_AT_ONCE, "the seeds did next to nothing"


@pytest.mark.wide
def test_a_seed_has_one_course() -> None:
    one, other = (played([seed], real=frozenset({seed})) for seed in (18, 18))

    assert (one.counts, one.struck) == (other.counts, other.struck)


@pytest.mark.parametrize(("seed", "keyed"), [(1000260, True), (1000720, False)])
def test_nobody_dies_in_the_calm_where_end_looks_round_often(seed: int, keyed: bool) -> None:
    """A commit that only moved tags was enough for the simulation to kill its coordinator there."""
    seeds = frozenset({seed})
    walk = played(seeds, real=seeds, keyed=seeds if keyed else frozenset())

    assert looks_round(seed)
    assert not walk.failed, "\n".join(walk.failed)


def test_a_stop_before_a_record_is_judged_by_what_the_table_stores_then() -> None:
    """What lies before the record was committed in the same turn."""
    walk = played([3400350], real=frozenset({3400350}))

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.struck["stopped before a record"]


def test_a_killed_coordinator_accounts_for_no_ref_in_a_later_life_either() -> None:
    """Nobody knows any more what it removed (seed 605120, over the real adapter)."""
    world = World(1, real=True)
    node, other, *_ = world.nodes
    node.new_coordinator()
    other.new_coordinator()
    (port, *_), (closed, *_) = node.ports, other.ports
    assert port.is_accountable

    world.kill(node, "the test")
    node.start()
    node.close()
    other.close()
    other.new_coordinator()

    assert not port.is_accountable
    assert closed.is_accountable, "it had the time to look"


@pytest.mark.wide
def test_what_befalls_real_tables_has_really_struck() -> None:
    struck: Counter[str] = Counter()
    for first in range(1, SEEDS, SEEDS_AT_ONCE):
        struck += walked(first).struck

    assert set(STRUCK) - {what.partition(" at ")[0] for what in struck} == set()


def test_a_table_that_breaks_in_the_calm_is_noticed_by_the_next_commit() -> None:
    """It was rolled back when all had come; an idle sink looks round a minute later (1900410)."""
    walk = played([1900410], real=frozenset({1900410}))

    assert walk.struck["upheaval: roll back"] == 1
    assert walk.counts["HG-201"] == 1
