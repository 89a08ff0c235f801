"""Each rule of the protocol, falsified, is noticed; the product as it is passes the same seed.

When the simulation has changed, other things happen under the same seeds:
``python tests/simulation/mutants/choose.py`` looks for new ones.
"""

from __future__ import annotations

import pytest
from exploration.worlds import SMALL
from protocol import rules
from simulation.mutants import MUTANTS, UNSHOWN
from simulation.mutants.notice import noticed, notices
from support.verdicts import Kind


@pytest.mark.wide
@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_taken_away_or_falsified_is_noticed(name: str) -> None:
    mutant, by = MUTANTS[name], notices()[name]

    assert by.kind in set(Kind), "an accusation of the checkers, not a crash"
    if by.world not in SMALL:  # those are explored as they are by tests of their own
        assert noticed(None, by) is None
    assert noticed(mutant, by) == by.kind, f"{mutant.rule}: {mutant.what}; choose another seed"


@pytest.mark.wide
def test_every_rule_has_a_mutant_or_a_reason_why_not() -> None:
    shown = {mutant.rule for mutant in MUTANTS.values()}

    assert shown | UNSHOWN.keys() == set(rules.written())
    assert not shown & UNSHOWN.keys()
