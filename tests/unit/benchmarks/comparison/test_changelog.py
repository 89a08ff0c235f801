"""The changes of the workload upsert: who folds them has what the changelog expects."""

from __future__ import annotations

import json

from comparison.changelog import Changelog

KEYS, CHANGES, PARTITIONS = 2_000, 5_000, 4


def test_its_fold_is_what_it_expects() -> None:
    changelog = Changelog(1, PARTITIONS)
    filled = [*changelog.filled(KEYS)]
    changed = [*changelog.changed(CHANGES)]
    fold: dict[int, int] = {}
    kinds = {"c": 0, "u": 0, "d": 0}
    for key, record in filled + changed:
        said = json.loads(record)
        before, after = said["before"], said["after"]
        assert (before is None) == (said["op"] == "c") == (key not in fold)
        assert (after is None) == (said["op"] == "d")
        assert {row["id"] for row in (before, after) if row} == {key}
        kinds[said["op"]] += 1
        fold.pop(key, None)
        if after:
            fold[key] = after["n"]
    assert changelog.expected == (len(fold), sum(fold), sum(fold.values()))
    assert changelog.upserts == kinds["c"] + kinds["u"]
    assert abs(kinds["u"] - CHANGES * 0.80) < CHANGES * 0.03
    assert abs(kinds["d"] - CHANGES * 0.02) < CHANGES * 0.01


def test_each_partition_ends_with_a_row_and_a_seed_is_always_the_same() -> None:
    one, other = ([*Changelog(2, PARTITIONS).changed(100)] for _ in range(2))
    assert one == other
    last = {key % PARTITIONS: json.loads(record)["after"] for key, record in one}
    assert len(last) == PARTITIONS
    assert all(last.values())
