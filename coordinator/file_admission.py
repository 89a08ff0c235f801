"""Decides which files a commit may bring: each START issues a token, and files bear it (TOKEN-1,
TOKEN-2).

A token is a folder per transaction, or, where the table marks its files, the mark that it gave. How
long files may wait for their commit is bounded, because others' orphan clean-up goes by age: a file
is at most as old as the START that issued its token.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from headgate.control_protocol.commit_tokens import is_path_of_token
from headgate.control_protocol.identifiers import Sender, TransactionNumber

Committed = Mapping[str, frozenset[str]]
"""Paths of data files that are in the table, by their folder."""

MARKS_KEPT = 102
"""So many transactions behind, files are still told apart from those of a wrong path."""

FORMER_DATA_MAX = 8
"""A table's owner does not move its data more often in the life of a batch."""

_STARTS_KEPT = 4
_NUMBER = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
"""The one spelling that a coordinator writes: any other names another folder."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Keeps what the STARTs of one epoch issued, and what was committed by it."""

    starts: tuple[tuple[TransactionNumber, int], ...] = ()
    """Some transactions with the time of their START (monotonic ms), oldest first. Few are kept,
    whatever the interval; they make files look older than they are, never younger (TOKEN-1)."""

    marks: tuple[str, ...] = ()
    """Of the newest transaction, of the one that ends, and of earlier ones, newest first; none
    where tokens are folders (TOKEN-2)."""

    stale: Mapping[Sender, int] = field(default_factory=dict)
    """How often in a row a sender's files bore the mark of an earlier transaction; never 0."""

    committed: Committed = field(default_factory=dict)
    """This epoch's files, as long as their folders are allowed (RANGE-2): ranges do not see
    files."""

    former_data: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Where tables, by UUID, had their data earlier in this epoch, newest first (TOKEN-1)."""

    def with_start(
        self, number: TransactionNumber, mark: str, now_ms: int, age_max_ms: int
    ) -> Tokens:
        """Return the tokens after a START. ``mark`` is empty where tokens are folders."""
        starts = tuple(start for start in self.starts if now_ms - start[1] <= age_max_ms)
        if not starts or now_ms - starts[-1][1] >= age_max_ms // _STARTS_KEPT:
            starts = (*starts, (number, now_ms))
        marks = (mark, *self.marks)[:MARKS_KEPT] if mark else ()
        return replace(self, starts=starts, marks=marks)

    def oldest_young_transaction(self, now_ms: int, age_max_ms: int) -> TransactionNumber | None:
        """Return the first transaction whose files are young enough; ``None``: there is none."""
        return next((n for n, at_ms in self.starts if now_ms - at_ms <= age_max_ms), None)

    def oldest_file_age_ms(self, number: TransactionNumber, now_ms: int) -> int:
        """Return how old files of the transaction, or of a later one, are at most."""
        before = [at_ms for first, at_ms in self.starts if first <= number]
        return now_ms - before[-1] if before else 0

    def with_stale_counted(self, admitted: Collection[Sender], stale: Collection[Sender]) -> Tokens:
        """Count on for senders that were stale once more; who was admitted begins again at none."""
        if not stale and not self.stale:
            return self
        counts = {sender: n for sender, n in self.stale.items() if sender not in admitted}
        counts |= {each: self.stale.get(each, 0) + 1 for each in stale if each not in admitted}
        return replace(self, stale=counts)

    def with_committed_paths(self, committed: Committed) -> Tokens:
        return replace(self, committed=committed)

    def with_former_data_roots(self, moved: Mapping[str, str]) -> Tokens:
        """Remember where the tables, by UUID, had their data until now."""
        former = dict(self.former_data)
        for uuid, root in moved.items():
            others = (known for known in former.get(uuid, ()) if known != root)
            former[uuid] = (root, *others)[:FORMER_DATA_MAX]
        return replace(self, former_data=former)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Says where the files of one table may lie: in folders of ``oldest`` to ``newest`` below
    ``root``.

    ``former``: roots that the table had earlier in this epoch. With ``marks``, those of ``newest``
    and of transactions before it, only files that bear the first of them may come.
    """

    root: str
    newest: TransactionNumber
    oldest: TransactionNumber = TransactionNumber(1)
    former: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def folder_of(self, transaction: TransactionNumber) -> str:
        return f"{self.root}/{transaction}"

    def is_below_epoch_folder(self, path: str) -> bool:
        """Return whether it lies below this epoch's folder, whatever transaction it is of."""
        return bool(self._path_below_root(path))

    def transaction_in_path(self, path: str) -> TransactionNumber | None:
        """Return the transaction whose token the path bears, if it is spelled as it was issued."""
        if self.marks:
            back = next(
                (k for k, mark in enumerate(self.marks) if is_path_of_token(mark, path)), None
            )
            return None if back is None else TransactionNumber(self.newest - back)
        number, *inside = self._path_below_root(path).split("/")
        if not inside or any(step in ("", ".", "..") for step in inside):
            return None
        return TransactionNumber(int(number)) if _NUMBER.fullmatch(number) else None

    def is_allowed(self, path: str, upto: TransactionNumber) -> bool:
        """Return whether its transaction is young enough, and not after the one that it answers.

        A file of a folder that was issued later than ``upto`` could belong to a batch that is still
        being written.
        """
        number = self.transaction_in_path(path)
        first = max(self.oldest, self.newest) if self.marks else self.oldest
        return number is not None and first <= number <= min(upto, self.newest)

    def is_stale(self, path: str) -> bool:
        """Return whether an earlier transaction's commit could have brought it, and no other."""
        number = self.transaction_in_path(path) if self.marks else None
        return number is not None and number < self.newest

    def _path_below_root(self, path: str) -> str:
        """Return what follows the root; empty for a path below none."""
        roots = (self.root, *self.former)
        return next((path[len(r) + 1 :] for r in roots if path.startswith(f"{r}/")), "")
