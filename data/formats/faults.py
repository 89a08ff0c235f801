"""Which records of a batch are bad, and why: the first reason of each is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Faults:
    """Rows of a batch by index. What a bad row's columns hold does not matter any more."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self._path: list[str] = []

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Reasons noted here begin with where that is."""
        self._path.append(name)
        yield
        self._path.pop()

    def note(self, rows: Iterable[int], reason: str) -> None:
        where = f"{'.'.join(self._path)}: " if self._path else ""
        for row in rows:
            self.reasons.setdefault(int(row), where + reason)
