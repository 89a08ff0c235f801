"""Memory that the indexes of several keyed tables share (rule KEY-7)."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

TryResize = Callable[[int], bool]
"""Returns whether one index may hold so many bytes; if not, it keeps its former size."""


class IndexMemory:
    """Limits all indexes that have a share to ``bytes_max``. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: list[int] = []
        self._lock = Lock()

    def new_share_resizer(self) -> TryResize:
        """Return the share of another index, which holds nothing at first."""
        with self._lock:
            place = len(self._held)
            self._held.append(0)

        def try_resize(size_bytes: int) -> bool:
            with self._lock:
                others = sum(self._held) - self._held[place]
                if others + size_bytes > self._bytes_max:
                    return False
                self._held[place] = size_bytes
                return True

        return try_resize
