"""When the secondary tables of a world are delivered: at once, at a pace (FRESH-2, LINGER-1), or
all together (PENDING-5).

The seeds of ``PACED`` have secondary tables, and such settings, drawn from dice of their own; so
have those of ``ROUTED_KEYS``, whose secondary tables have keys in keyed worlds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from headgate.coordinator.settings import DeliveryLinger

PACED = range(800_000, 850_000)
ROUTED_KEYS = range(850_000, 900_000)
JOINT_SHARE = 0.5
AT_ONCE_SHARE = 0.4


@dataclass(frozen=True)
class Payday:
    """When a seed's secondary tables are delivered to."""

    paces: tuple[DeliveryLinger, ...] = ()
    refresh_ms: int = 0
    joint: bool = False


def payday(seed: int) -> Payday:
    """Return what the coordinators' settings say of it."""
    if seed not in PACED and seed not in ROUTED_KEYS:
        return Payday()
    dice = random.Random(f"paid together in {seed}")
    if seed in ROUTED_KEYS and dice.random() < AT_ONCE_SHARE:
        return Payday()
    if dice.random() < JOINT_SHARE:
        return Payday(together=True, refresh_ms=dice.choice((0, 300)))
    every_ms = dice.choice((100, 400, 1_500))
    match = dice.choice((r"lake\..*", r"lake\.records_other"))
    return Payday((DeliveryLinger(match, every_ms),), dice.choice((0, 300, 1_000)))
