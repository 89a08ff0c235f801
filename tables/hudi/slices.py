"""Which files of a Hudi table are live, of a view of its files, which is Java's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Slice:
    """A base file as it is live, if there is one; ``logged``: updates lie in logs beside it. The
    path is below the table's folder."""

    path: str
    size: int
    logged: bool


def live_slices(view: Any, base_path: str) -> list[Slice]:
    """Return of each group of files the last.

    Asked for all partitions at once, Hudi names groups as well that a clustering has replaced.
    """
    groups = each_of(view.getAllFileGroups().iterator())
    partitions = sorted({str(group.getPartitionPath()) for group in groups})
    return [
        live
        for partition in partitions
        for live in _slices(view.getAllFileGroups(partition).iterator(), base_path)
    ]


def each_of(found: Any) -> Iterator[Any]:
    """Go through one of Java's iterators."""
    while found.hasNext():
        yield found.next()


def _slices(groups: Any, base_path: str) -> Iterator[Slice]:
    for group in each_of(groups):
        latest = group.getLatestFileSlice()
        if latest.isPresent():
            base, logged = latest.get().getBaseFile(), bool(latest.get().hasLogFiles())
            if base.isPresent():
                path = str(base.get().getPath()).removeprefix("file:").removeprefix(base_path)
                yield Slice(path, int(base.get().getFileSize()), logged)
            elif logged:
                yield Slice("", 0, logged)
