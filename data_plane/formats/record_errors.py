"""Records which records of a batch are bad, and the first reason for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Faults:
    """Rows of a batch by index. The columns of a bad row may hold anything."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self._path: list[str] = []

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Prefix the reasons noted in the body with the place."""
        self._path.append(name)
        yield
        self._path.pop()

    def note(self, rows: Iterable[int], reason: str) -> None:
        where = f"{'.'.join(self._path)}: " if self._path else ""
        for row in rows:
            self.reasons.setdefault(int(row), where + reason)
