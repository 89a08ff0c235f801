"""The table in tests/README.md names tests that are there, and every number once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TABLE = (TESTS / "README.md").read_text()
NAMED = re.compile(r"`((?:\.\./)?(?:\w+/)+[\w.-]+)(?:::(\w+))?`")
ROW = re.compile(r"^\| ((?:[A-Z]+\d+(?:, )?)+) \|", re.MULTILINE)
APPLICABLE = {
    "X": {1, 2, 3, 4, 7, 8, 9, 10, 11, 13, 14, 15, 17, 18, 20, 22, 24, 25},
    "HC": set(range(1, 48)) - {16, 19, 24},
    "F": set(range(1, 81)) - {18, 31, 42, 59, 60},
    # The control protocol's part of the Iceberg sink's own tests.
    "E": {1, 2},
    "W": set(range(1, 7)),
    "L": {1, 2, 3},
    "AC": set(range(1, 14)),
}

WIDTH = {"HC": "02", "F": "02"}


def test_every_test_that_the_table_names_is_there() -> None:
    missing = [
        f"{path}::{name}"
        for path, name in NAMED.findall(TABLE)
        if not (TESTS / path).exists()
        or (name and f"def {name}(" not in (TESTS / path).read_text())
    ]
    assert missing == []


def test_every_scenario_has_one_row() -> None:
    numbers = Counter(number for row in ROW.findall(TABLE) for number in row.split(", "))

    assert {number for number, times in numbers.items() if times > 1} == set()
    for family, wanted in APPLICABLE.items():
        width = WIDTH.get(family, "")
        assert {f"{family}{number:{width}}" for number in wanted} - numbers.keys() == set()
