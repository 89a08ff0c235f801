"""Determines which files of a Hudi table are live, from Java's view of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Slice:
    """A live base file, if there is one; ``logged``: updates lie in logs next to it.

    The path is relative to the table's folder; ``group``: the id of the file group.
    """

    group: str
    path: str
    size: int
    logged: bool


def live_slices(file_system_view: Any, base_path: str) -> list[Slice]:
    """Return the last slice of each file group.

    Asked for all partitions at once, Hudi also lists groups that a clustering has replaced.
    """
    groups = iterate_java(file_system_view.getAllFileGroups().iterator())
    partitions = sorted({str(group.getPartitionPath()) for group in groups})
    return [
        live
        for partition in partitions
        for live in _last_slices(file_system_view.getAllFileGroups(partition).iterator(), base_path)
    ]


def iterate_java(iterator: Any) -> Iterator[Any]:
    """Yield the elements of a Java iterator."""
    while iterator.hasNext():
        yield iterator.next()


def _last_slices(groups: Any, base_path: str) -> Iterator[Slice]:
    for group in iterate_java(groups):
        latest = group.getLatestFileSlice()
        if latest.isPresent():
            base, logged = latest.get().getBaseFile(), bool(latest.get().hasLogFiles())
            name = str(latest.get().getFileId())
            if base.isPresent():
                path = str(base.get().getPath()).removeprefix("file:").removeprefix(base_path)
                yield Slice(name, path, int(base.get().getFileSize()), logged)
            elif logged:
                yield Slice(name, "", 0, logged)
