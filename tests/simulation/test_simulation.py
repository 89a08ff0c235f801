"""A short walk through seeds; the long one is ``make simulate``."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from simulation.run import Tally, played
from support.examples import first_few

FIRST_SEEDS = 200
SEEDS_AT_ONCE = 20
RARE = (227, 401, 428, 611, 625, 706)
"""Seeds beyond the first in which something rare is struck, as a copy of offsets to the group."""

FAULTS = (
    *("kill", "stall", "stall beyond all time-outs"),
    *("append LOST", "append LATE", "append ANSWER_LOST", "append UNREACHABLE", "append torn"),
    *(
        "append twice",
        "old event said again",
        "event overtaken by others",
        "event of a dead process arrives",
    ),
    *("control topic re-created", "control topic truncated", "control topic expired"),
    "first START lost",
    *("status in parts", "coordinator behind the log", "two coordinators"),
    *("rebalance", "callback late", "callback lost", "all given up in a rebalance"),
    *("expelled while alive", "session expired", "cut off from the group"),
    *("gain in mid-transaction", "fresh process joins"),
    *("commit REFUSED", "commit LOST_UNKNOWN", "commit LANDED_UNKNOWN", "commit LATE_UNKNOWN"),
    *("commit answered without landing", "late commit landed", "late commit refused"),
    *("slow catalog", "FakeCatalog away", "FakeLogServer away", "FakeSource away"),
    *("foreign append", "table compacted", "snapshots expired", "partition added", "source gap"),
    *("wall clock jumps", "batch fails", "partition without leader"),
    "tag follows others' commits",
    *("upheaval: roll back", "upheaval: delete tag", "upheaval: recreate table"),
    *("quarantine commit REFUSED", "quarantine commit LOST_UNKNOWN"),
    *("quarantine commit LANDED_UNKNOWN", "quarantine commit LATE_UNKNOWN"),
    *("quarantine ahead", "bad records are there already"),
    *("upheaval: recreate topic", "upheaval: expire source", "upheaval: poison"),
)
"""What must really befall somebody in the first seeds, each at least once."""

CALLS = (
    *("append", "appended", "read", "seek", "table read", "table was read", "commit", "committed"),
    *("describe", "described", "poll", "polled", "ends", "copy to the group", "submit"),
    *("quarantine table read", "quarantine table was read"),
    *("quarantine commit", "quarantine committed", "batch done", "decided and not delivered"),
)
"""In each of these some process must be struck: before it is made, or when it was answered."""


LOOK_ROUNDS = (48, 274)
"""Others moved a table between a decision and the read that its delivery begins with, or between a
delivery and the read behind it (TABLE-4)."""


@cache
def walked(first: int) -> Tally:
    return played(range(first, first + SEEDS_AT_ONCE))


@pytest.mark.parametrize("first", first_few(range(1, FIRST_SEEDS, SEEDS_AT_ONCE), few=3))
def test_every_row_is_there_once_whatever_fails(first: int) -> None:
    walk = walked(first)

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS_AT_ONCE, "the seeds did next to nothing"


def test_what_others_do_beside_a_delivery_is_found_by_a_look_round() -> None:
    walk = played(LOOK_ROUNDS, keyed=frozenset(LOOK_ROUNDS[:1]))

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.struck["tag follows others' commits"] == len(LOOK_ROUNDS)


@pytest.mark.wide
def test_every_kind_of_fault_has_really_struck() -> None:
    struck: Counter[str] = played(RARE).struck
    for first in range(1, FIRST_SEEDS, SEEDS_AT_ONCE):
        struck += walked(first).struck
    places = {what.partition(" at ")[2] for what in struck}
    kinds = {what.partition(" at ")[0] for what in struck}

    assert set(FAULTS) - kinds == set()
    assert set(CALLS) - places == set()
