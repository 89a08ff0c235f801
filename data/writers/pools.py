"""Bounds over all tables of a batch: open files, and rows that wait for them (rule R6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

OPEN_FILES_MAX = 32
"""Object stores buffer up to 10 MB of every open file."""


class OpenFiles:
    """Open files, least recently written first; beyond the bound that one is closed."""

    def __init__(self, most: int = OPEN_FILES_MAX) -> None:
        self._most = most
        self._open: OrderedDict[Hashable, Callable[[], None]] = OrderedDict()

    def used(self, file: Hashable) -> None:
        self._open.move_to_end(file)

    def make_room(self) -> None:
        """Close one if needed; called before another one is opened."""
        while len(self._open) >= self._most:
            _, close = self._open.popitem(last=False)
            close()

    def opened(self, file: Hashable, close: Callable[[], None]) -> None:
        self._open[file] = close

    def closed(self, file: Hashable) -> None:
        self._open.pop(file, None)
