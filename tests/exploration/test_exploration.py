"""Every situation of the small worlds; ``make explore`` for the large ones."""

from __future__ import annotations

import pytest
from exploration.explore import explore
from exploration.worlds import SMALL

LARGER = (
    *("beginning", "zombie", "pause", "batch-fails"),
    *("idleness", "move-of-all", "new-column"),
    *("beginning-nothing-wrong", "move-nothing-wrong", "append-lost"),
    *("participant-dies", "parts", "new-column-coordinator-dies"),
)
"""Those that take longest, more than a second each."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.wide if n in LARGER else ()) for n in SMALL]
)
def test_no_situation_of_a_small_world_is_wrong_or_a_trap(name: str) -> None:
    finding = explore(SMALL[name])

    assert finding.problem is None, str(finding)
    assert finding.exhausted
