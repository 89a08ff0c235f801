"""Seeds whose table has a key: after every commit it is the fold of its source (rules KEY-1 to
KEY-10).

More of them: ``make simulate ARGS="--keyed --seeds 1000"``, and over the real adapter with
``--real``; one seed in twelve of any run has a key.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest
from simulation.climate import drawn
from simulation.keys import Keys
from simulation.run import Tally, played
from support.examples import first_few
from support.verdicts import Kind, Violation

from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.testing import SourceRecord

SEEDS = 40
SEEDS_AT_ONCE = 20
REAL_SEEDS = range(1, 9)

STRUCK = (
    *("table compacted meanwhile", "table compacted", "snapshots expired", "partition added"),
    *("commit REFUSED", "commit LOST_UNKNOWN", "commit LANDED_UNKNOWN", "commit LATE_UNKNOWN"),
    *("commit answered without landing", "late commit refused", "two coordinators"),
)
"""What must really befall somebody, each at least once."""


@cache
def walked(first: int) -> Tally:
    seeds = range(first, first + SEEDS_AT_ONCE)
    return played(seeds, keyed=frozenset(seeds))


@cache
def really_walked() -> Tally:
    return played(REAL_SEEDS, real=frozenset(REAL_SEEDS), keyed=frozenset(REAL_SEEDS))


@pytest.mark.parametrize("first", first_few(range(1, SEEDS, SEEDS_AT_ONCE)))
def test_a_keyed_table_is_the_fold_whatever_fails(first: int) -> None:
    walk = walked(first)

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > SEEDS_AT_ONCE, "the seeds did next to nothing"


def test_a_keyed_table_is_the_fold_over_the_real_adapter() -> None:
    walk = really_walked()

    assert not walk.failed, "\n".join(walk.failed)
    assert walk.counts["commits"] > len(REAL_SEEDS)


@pytest.mark.wide
def test_what_befalls_keyed_tables_has_really_struck() -> None:
    struck: Counter[str] = Counter(really_walked().struck)
    for first in range(1, SEEDS, SEEDS_AT_ONCE):
        struck += walked(first).struck

    assert set(STRUCK) - {what.partition(" at ")[0] for what in struck} == set()


def test_the_checker_tells_a_fold_from_what_is_none() -> None:
    keys = Keys(11, drawn(random.Random(11)))
    log = [record(offset) for offset in range(60)]
    fold = {keys.key(each): each for each in log}
    rows = [each for each in fold.values() if not keys.deletes(each)]
    row = next(each for each in rows if before(keys, each, log))
    others = [each for each in rows if each is not row]
    assert len(rows) < len(fold), "some last records delete"

    keys.are_folded(rows, log, ())
    for wrong, kind in (
        (others, Kind.LOSS),
        ([*others, before(keys, row, log)[0]], Kind.LOSS),
        ([*rows, before(keys, row, log)[0]], Kind.DOUBLE),
        ([*rows, next(each for each in fold.values() if keys.deletes(each))], Kind.UNTRUTH),
    ):
        with pytest.raises(Violation) as told:
            keys.are_folded(wrong, log, ())
        assert told.value.kind == kind
    keys.are_folded(others, log, {row, *before(keys, row, log)})


def record(offset: int) -> SourceRecord:
    return SourceRecord(TopicId("id-1"), "source", 0, offset)


def before(keys: Keys, row: SourceRecord, log: list[SourceRecord]) -> list[SourceRecord]:
    """Rows of the same key that it replaced."""
    same = [each for each in log if keys.key(each) == keys.key(row) and not keys.deletes(each)]
    return [each for each in same if each.offset < row.offset]
