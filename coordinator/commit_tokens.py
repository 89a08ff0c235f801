"""How long data files may wait for their commit (P9): others' orphan clean-up goes by age.

A file is at most as old as the START that issued its prefix. Only a few of a term's STARTs are
remembered, so that the term stays small whatever the interval.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headgate.control_protocol.commit_tokens import is_of_token
from headgate.control_protocol.identifiers import TransactionNumber

Issued = tuple[tuple[TransactionNumber, int], ...]
"""Transactions with the time at which their STARTs were said (monotonic ms), oldest first."""

_REMEMBERED = 4
_NUMBER = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
"""The one spelling that a coordinator writes: any other names another folder."""


def issued(before: Issued, number: TransactionNumber, now_ms: int, age_max_ms: int) -> Issued:
    """Remember a START; the few that are kept make files look older than they are, not younger."""
    young = tuple(start for start in before if now_ms - start[1] <= age_max_ms)
    if young and now_ms - young[-1][1] < age_max_ms // _REMEMBERED:
        return young
    return (*young, (number, now_ms))


def oldest(issued: Issued, now_ms: int, age_max_ms: int) -> TransactionNumber | None:
    """Return the first transaction whose files are young enough; ``None`` when there is none."""
    return next((number for number, at_ms in issued if now_ms - at_ms <= age_max_ms), None)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Where this epoch's participants may write: one folder per transaction, up to ``newest``.

    Files in folders before ``oldest`` have waited for too long (P9). ``former``: where the table
    had its data earlier in this epoch.
    """

    root: str
    newest: TransactionNumber
    oldest: TransactionNumber = TransactionNumber(1)
    former: tuple[str, ...] = ()

    def of(self, transaction: TransactionNumber) -> str:
        return f"{self.root}/{transaction}"

    def transaction(self, path: str) -> TransactionNumber:
        """Return the transaction whose folder holds the path; the oldest if none does."""
        if not self.allow(path, self.newest):
            return self.oldest
        return TransactionNumber(int(self._below(path).split("/", 1)[0]))

    def _below(self, path: str) -> str:
        """Return what follows the root; empty for a path below none."""
        roots = (self.root, *self.former)
        return next((path[len(r) + 1 :] for r in roots if path.startswith(f"{r}/")), "")

    def holds(self, path: str) -> bool:
        """Return whether it lies below this epoch's folder, whatever transaction it is of."""
        return bool(self._below(path))

    def allow(self, path: str, upto: TransactionNumber) -> bool:
        """Return whether it lies in a folder from ``oldest`` up to ``upto``'s, without ``..``."""
        number, *inside = self._below(path).split("/")
        return (
            bool(inside)
            and _NUMBER.fullmatch(number) is not None
            and self.oldest <= int(number) <= min(upto, self.newest)
            and not any(step in ("", ".", "..") for step in inside)
        )


@dataclass(frozen=True, slots=True)
class Stamped:
    """The stamp that the files of one transaction bear, where no other commit may bring them.

    They have waited for too long when the transaction is before ``oldest`` (P9). ``past``: stamps
    of earlier ones.
    """

    stamp: str
    newest: TransactionNumber
    oldest: TransactionNumber = TransactionNumber(1)
    past: tuple[str, ...] = ()

    def allow(self, path: str, upto: TransactionNumber) -> bool:
        """Return whether it bears the stamp, in an answer to the transaction or a later one."""
        return self.oldest <= self.newest <= upto and is_of_token(self.stamp, path)

    def late(self, path: str) -> bool:
        """Return whether an earlier transaction's commit could have brought it, and no other."""
        return not is_of_token(self.stamp, path) and any(
            is_of_token(stamp, path) for stamp in self.past
        )
