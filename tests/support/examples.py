"""How many examples a property test draws."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings

ALL = 100
"""Hypothesis's own number."""
FEW = ALL // 5


def examples(most: int) -> int:
    """A fifth of them in `make test`; all of them in `make wide`, and new ones in `make search`."""
    return most // 5 if settings().max_examples == FEW else most


def first_few(values: Iterable[int], few: int = 1) -> list[object]:
    """The first of these seeds in `make test`, all of them in `make wide`."""
    wide = pytest.mark.wide
    return [pytest.param(v, marks=wide if at >= few else ()) for at, v in enumerate(values)]
