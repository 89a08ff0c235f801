"""Ghosts: what stands in Hudi's metadata table of commits that the data's timeline does not know
(H8). They are of writers that went on behind the end of their lock.

Timelines are Java's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

METADATA_TABLE = ".hoodie/metadata"
_MADE_BY = "0000"
"""How instants begin by which the metadata table was made."""


def ghosts(timeline: Any, written: Any, condemned: Collection[str]) -> frozenset[str]:
    """Of those before the timeline only the condemned can be told from what was archived."""
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
    """Whether a compaction has taken a ghost for a commit: Hudi rolls it back no more."""
    found = (i for i in _completed(written, "deltacommit") if str(i.requestedTime()) == instant)
    ghost = next((str(i.getCompletionTime()) for i in found), None)
    compactions = (str(i.requestedTime()) for i in _completed(written, "commit"))
    return ghost is not None and max(compactions, default="") >= ghost


def _completed(written: Any, action: str) -> Iterator[Any]:
    found = written.filterCompletedInstants().getInstants()
    return (instant for instant in found if str(instant.getAction()) == action)
