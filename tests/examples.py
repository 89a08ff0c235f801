"""How many examples a property test draws."""

from __future__ import annotations

from hypothesis import settings


def examples(most: int) -> int:
    """A fifth of them in every run, the same ones; all of them, and new ones, in `make search`."""
    return most // 5 if settings().derandomize else most
