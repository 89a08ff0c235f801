"""Finds ghosts: commits in Hudi's metadata table that are not in the data's timeline (H8).

They come from writers that continued after they had lost their lock. Timelines are Java's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

METADATA_TABLE = ".hoodie/metadata"
_MADE_BY = "0000"
"""Prefix of the instants that created the metadata table."""


def ghosts(timeline: Any, written: Any, condemned: Collection[str]) -> frozenset[str]:
    """Return ghosts; before the timeline, only condemned ones differ from what was archived."""
    if timeline.empty():
        return frozenset()
    first = str(timeline.firstInstant().get().requestedTime())
    known = {str(i.requestedTime()) for i in timeline.getInstants()}
    names = (str(i.requestedTime()) for i in _completed(written, "deltacommit"))
    return frozenset(
        name
        for name in names
        if (name >= first or name in condemned)
        and name not in known
        and not name.startswith(_MADE_BY)
    )


def merged(written: Any, instant: str) -> bool:
    """Return whether a compaction took a ghost for a commit: Hudi can no longer roll it back."""
    found = (i for i in _completed(written, "deltacommit") if str(i.requestedTime()) == instant)
    ghost = next((str(i.getCompletionTime()) for i in found), None)
    compactions = (str(i.requestedTime()) for i in _completed(written, "commit"))
    return ghost is not None and max(compactions, default="") >= ghost


def _completed(written: Any, action: str) -> Iterator[Any]:
    found = written.filterCompletedInstants().getInstants()
    return (instant for instant in found if str(instant.getAction()) == action)
