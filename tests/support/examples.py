"""How many examples a property test draws."""

from __future__ import annotations

from hypothesis import settings

ALL = 100
"""Hypothesis's own number."""
FEW = ALL // 5


def examples(most: int) -> int:
    """A fifth of them in `make test`; all of them in `make wide`, and new ones in `make search`."""
    return most // 5 if settings().max_examples == FEW else most
