"""The invariants of the coordinator's values, in every state of every coordinator of some seeds."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.run import play
from support.coordinator_states import broken_invariants

from headgate.coordinator import driver
from headgate.coordinator.machine import step

SEEDS = range(1, 21)


@pytest.mark.parametrize(
    "variant",
    [*(pytest.param(name, marks=pytest.mark.wide) for name in ("plain", "stamped")), "keyed"],
)
def test_what_each_value_promises_holds_in_every_state(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: set[str] = set()
    states = 0

    def watched(state: Any, given: Any, now_ms: int) -> Any:
        nonlocal states
        after, actions = step(state, given, now_ms)
        found.update(broken_invariants(state, after))
        states += 1
        return after, actions

    monkeypatch.setattr(driver, "step", watched)
    for seed in SEEDS:
        play(seed, real=False, stamped=variant == "stamped", keyed=variant == "keyed")

    assert found == set()
    assert states > 1_000
