"""Names the worlds of the exploration that notice mutants, and how far the product is explored."""

from __future__ import annotations

from collections.abc import Mapping

from exploration.small_world import Bounds
from exploration.worlds import LARGE, SMALL

WORLDS: Mapping[str, Bounds] = {
    **SMALL,
    **{name: LARGE[name] for name in ("answer-lost-and-asked-again", "secondary-move-abrupt")},
}

PRODUCT_STATES_MAX = 2_000
"""So far the product as it is walks through a world that is not explored by default: beyond where
its mutants are noticed. ``make explore`` goes to the end.
"""

STATES_ROUGHLY = {
    "parts-nothing-wrong": 35,
    "secondary": 500,
    "secondary-unknown-outcomes": 500,
    "two-secondaries": 600,
    "new-column-coordinator-dies": 1_300,
    "new-column": 3_500,
    "secondary-move-abrupt": 1_200,
    "parts": 1_000,
    "pause": 1_500,
    "idleness": 3_200,
    "unknown-outcomes": 130,
    "foreign-commit": 250,
    "append-doubted": 600,
    "append-lost": 650,
    "coordinator-dies": 800,
    "log-lost": 850,
    "beginning-nothing-wrong": 1_250,
    "participant-dies": 1_350,
    "answer-lost-and-asked-again": 1_450,
    "move-nothing-wrong": 1_750,
    "move-of-all": 3_200,
    "batch-fails": 5_000,
    "zombie": 6_400,
    "changes": 400,
    "changes-coordinator-dies": 800,
    "beginning": 7_500,
}
"""To look in the small ones first."""
