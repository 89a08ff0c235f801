"""PENDING-3, QUARANTINE-1 to QUARANTINE-3 together: whatever befalls either call of whichever
coordinator, from a seed."""

from __future__ import annotations

import random

import pytest
from protocol.quarantining import at_work, exactly_once
from scenarios.stage import Stage

from headgate.control_protocol.testing import CommitFault, FakeCatalog

SEEDS = range(20)
NAMES = ("alice", "bob", "carol")


@pytest.mark.parametrize("seed", SEEDS)
def test_each_record_is_in_one_of_the_tables_once(seed: int) -> None:
    dice = random.Random(seed)
    stage, quarantine = at_work()
    for _ in range(12):
        stage.produce(dice.randrange(5), dice.randrange(5))
        befalls(stage, quarantine, dice)
        stage.passes(dice.randrange(100, 1_500, 50))
        replaced(stage, dice)
    for catalog in (stage.catalog, quarantine):
        catalog.faults.clear()
        while catalog.in_the_air:
            catalog.land_or_return_refusal(dice.randrange(len(catalog.in_the_air)))
    for node in stage.nodes.values():
        node.dies_at = None
    stage.produce(3, 3)
    replaced(stage, dice)
    stage.settles()
    exactly_once(stage)


def befalls(stage: Stage, quarantine: FakeCatalog, dice: random.Random) -> None:
    for catalog in (stage.catalog, quarantine):
        if dice.random() < 0.5:
            catalog.faults.append(dice.choice(list(CommitFault)))
        if catalog.in_the_air and dice.random() < 0.5:
            catalog.land_or_return_refusal(dice.randrange(len(catalog.in_the_air)))
        if dice.random() < 0.2:
            catalog.compact()
    if dice.random() < 0.5:
        node = stage.nodes[dice.choice([n for n, node in stage.nodes.items() if not node.gone])]
        node.dies_at = dice.choice(["delivered", "committed", "append", "appended"])


def replaced(stage: Stage, dice: random.Random) -> None:
    """Who died lost its session, and somebody comes in its place."""
    gone = [name for name, node in stage.nodes.items() if node.gone]
    alive = [name for name, node in stage.nodes.items() if not node.gone]
    for name in gone:
        stage.group.expel(stage.nodes[name].member)
        del stage.nodes[name]
    if gone or dice.random() < 0.2:
        newcomers = [name for name in NAMES if name not in stage.nodes]
        stage.enter(*newcomers[: max(1, 2 - len(alive))])
