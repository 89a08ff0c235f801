"""Memory that the indexes of several keyed tables share (rule U7)."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

Take = Callable[[int], bool]
"""Says whether one index may hold so many bytes; it holds as many as before where it may not."""


class IndexMemory:
    """At most ``bytes_max`` over all that have a share. Several threads may ask."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: list[int] = []
        self._lock = Lock()

    def share(self) -> Take:
        """Another index's part, which holds nothing at first."""
        with self._lock:
            place = len(self._held)
            self._held.append(0)

        def take(size_bytes: int) -> bool:
            with self._lock:
                others = sum(self._held) - self._held[place]
                if others + size_bytes > self._bytes_max:
                    return False
                self._held[place] = size_bytes
                return True

        return take
