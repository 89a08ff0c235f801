"""Every rule of the protocol is cited by code and by a test, and every citation is of a rule."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from protocol import rules

FORMER = re.compile(
    r"\brules? [CDEGINPQRSTUV]\d{1,2}\b|\((?:[CDEGINQRTUV]\d{1,2}(?:, | and | to )?)+\)"
    r'|"""[CDEGINPQRTUV]\d{1,2}[:,] |\btest_(?:[cdeginpqruv]\d|s[124-9])\d?_'
)
"""A rule cited by a letter and a number, as rules were called before."""

FORMULAS = {"tests/unit/data_plane/formats"}
"""Tests whose letters and numbers are names of cases."""


def test_each_rule_is_written_down_once_and_numbers_have_no_gap() -> None:
    written = rules.written()
    assert [rule for rule, times in Counter(written).items() if times > 1] == []
    for prefix in rules.prefixes():
        numbers = sorted(
            int(rule.split("-")[1]) for rule in written if rule.startswith(f"{prefix}-")
        )
        assert numbers == list(range(1, len(numbers) + 1)), prefix


def test_every_citation_is_of_a_rule() -> None:
    known = set(rules.written())
    pages = {path: path.read_text() for path in (*rules.files(), *rules.PAGES)}
    unknown = {
        f"{_short(path)}: {rule}"
        for path, text in pages.items()
        for rule in rules.cited(text) - known
    }
    assert unknown == set()


def test_nobody_cites_a_rule_by_a_former_number() -> None:
    former = [
        f"{_short(path)}: {found}"
        for path in rules.files()
        if not any(_short(path).startswith(folder) for folder in FORMULAS)
        for found in FORMER.findall(path.read_text())
    ]
    assert former == []


def test_every_rule_is_cited_by_the_product_and_by_a_test() -> None:
    product, tests = set(), set()
    for path in rules.files():
        if path.suffix == ".py" and rules.is_product(path):
            product |= rules.cited(path.read_text())
        if path.suffix == ".py" and rules.is_test(path):
            tests |= rules.cited(f"{path.stem}_ {path.read_text()}")
    assert set(rules.written()) - product == set(), "no code cites these"
    assert set(rules.written()) - tests == set(), "no test cites these"


def test_the_core_is_short_enough_to_be_read_at_once() -> None:
    assert len(rules.CORE.read_text().splitlines()) <= 330


def _short(path: Path) -> str:
    return str(path.relative_to(rules.ROOT))
