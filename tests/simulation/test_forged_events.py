"""Whole deployments with an outsider at the control topic (``simulation/forger.py``)."""

from __future__ import annotations

from functools import cache
from typing import get_args

import pytest
from simulation.forger import FLAWS, ONE_SEED_IN, WITH_KEY, WITHOUT_KEY
from simulation.run import Tally, played

from headgate.control_protocol.events import Event

SEEDS = 20


@cache
def walked(forger: int) -> Tally:
    return played(range(forger, forger + SEEDS * ONE_SEED_IN, ONE_SEED_IN))


def test_with_a_key_nothing_comes_of_what_others_say() -> None:
    walk = walked(WITH_KEY)
    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS, "the seeds did next to nothing"


def test_without_a_key_forged_events_lose_nothing_and_wedge_nobody() -> None:
    walk = walked(WITHOUT_KEY)
    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS, "the seeds did next to nothing"


@pytest.mark.parametrize(("forger", "how"), [(WITH_KEY, "not believed"), (WITHOUT_KEY, "forged")])
def test_every_kind_of_event_was_forged(forger: int, how: str) -> None:
    said = {what for what, times in walked(forger).struck.items() if times}
    assert {f"{how}: {kind.__name__}" for kind in get_args(Event)} - said == set()
    assert {f"{how}: replayed", f"{how}: a flawed claim"} - said == set()
    assert {f"flaw: {flaw}" for flaw in FLAWS} - said == set()
