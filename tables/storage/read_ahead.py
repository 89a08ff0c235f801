"""Reads with several threads ahead of the consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

STORAGE_THREADS = 32
_AHEAD_MAX = 4 * STORAGE_THREADS

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")


def read_ahead_in_order(
    read: Callable[[_Item], _Read], items: Iterable[_Item], ahead_max: int = _AHEAD_MAX
) -> Iterator[_Read]:
    """Read with several threads, and yield the answers in the order of ``items``.

    Only a few answers are read ahead.
    """
    with ThreadPoolExecutor(STORAGE_THREADS) as threads:
        waiting: deque[Future[_Read]] = deque()
        for item in items:
            waiting.append(threads.submit(read, item))
            if len(waiting) > ahead_max:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
