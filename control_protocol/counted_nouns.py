"""Writes numbers with what they count, for people."""

from __future__ import annotations


def count_of(number: int, one: str, many: str = "") -> str:
    """Return ``1 row`` or ``1,234 rows``; ``many`` where an ``s`` does not make the plural."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
