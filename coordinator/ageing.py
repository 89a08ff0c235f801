"""How long data files may wait for their commit (P9): others' orphan clean-up goes by age.

A file is at most as old as the START that issued its prefix. Only a few of a term's STARTs are
remembered, so that the term stays small whatever the interval.
"""

from __future__ import annotations

from headgate.control_protocol.identifiers import TransactionNumber

Issued = tuple[tuple[TransactionNumber, int], ...]
"""Transactions with the time at which their STARTs were said (monotonic ms), oldest first."""

_REMEMBERED = 4


def issued(before: Issued, number: TransactionNumber, now_ms: int, age_max_ms: int) -> Issued:
    """Remember a START; the few that are kept make files look older than they are, not younger."""
    young = tuple(start for start in before if now_ms - start[1] <= age_max_ms)
    if young and now_ms - young[-1][1] < age_max_ms // _REMEMBERED:
        return young
    return (*young, (number, now_ms))


def oldest(issued: Issued, now_ms: int, age_max_ms: int) -> TransactionNumber | None:
    """Return the first transaction whose files are young enough; ``None`` when there is none."""
    return next((number for number, at_ms in issued if now_ms - at_ms <= age_max_ms), None)
