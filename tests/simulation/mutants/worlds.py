"""Small worlds that notice mutants: those of the exploration, and a few made for one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exploration.small_world import Bounds
from exploration.worlds import SMALL, alone

WORLDS: Mapping[str, Bounds] = {
    **SMALL,
    "answer-lost-and-asked-again": alone(1, append_lost=1, append_doubled=1),
    "follower-move-abrupt": replace(
        SMALL["move-abrupt"], bad=frozenset({(0, 0)}), followers=("lake.f0",)
    ),
}

STATES_ROUGHLY = {
    "parts-nothing-wrong": 35,
    "follower": 500,
    "follower-unknown-outcomes": 500,
    "two-followers": 600,
    "new-column-coordinator-dies": 1_300,
    "new-column": 3_500,
    "follower-move-abrupt": 9_500,
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
    "move-abrupt": 5_600,
    "zombie": 6_400,
    "changes": 400,
    "changes-coordinator-dies": 800,
    "beginning-abort": 6_900,
    "beginning": 7_500,
}
"""To look in the small ones first."""
