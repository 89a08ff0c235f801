"""Recognizes damaged files of a Hudi table: of its timeline, and those that a sink keeps."""

from __future__ import annotations

import time
from typing import Any

from headgate.control_protocol.errors import HeadgateError, LogUnreadable, Unreachable
from headgate.tables.hudi.jvm import error_text
from headgate.tables.hudi.table_properties import HudiLocation

_TIMELINE = ".hoodie/timeline"
_TRIES, _PAUSE_S = 4, 0.5
"""A file that is being written is empty or incomplete for a moment."""

_HINT = (
    "restore it from a backup, or the table to a savepoint; docs/table-formats/hudi.md says more"
)


def read_completed_commit(place: HudiLocation, timeline: Any, instant: Any) -> Any:
    """Return the content of a completed commit, which is never empty.

    Raises ``LogUnreadable`` if the file exists but is not a commit; ``OSError``.
    """
    times = f"{instant.requestedTime()}_{instant.getCompletionTime()}"
    name = f"{_TIMELINE}/{times}.{instant.getAction()}"
    why = "it is empty"
    for _ in range(_TRIES):
        try:
            metadata = timeline.readCommitMetadata(instant)
        except Exception as error:  # noqa: BLE001 - whatever it is, the file is looked at below
            why = error_text(error)
        else:
            if next(place.folder.file_sizes([name])):
                return metadata
        time.sleep(_PAUSE_S)
    place.folder.read(name)  # a store that does not answer damages no file
    raise LogUnreadable(
        f"the timeline of Hudi table {place.name} is damaged: {place.location}/{name}: {why}", _HINT
    )


def table_read_error(place: HudiLocation, error: Exception) -> HeadgateError:
    """Return the error for a table that could not be read, from what Java has raised."""
    why = error_text(error)
    if why.endswith(f"{_TIMELINE} does not exist"):
        where = f"{place.location}/{_TIMELINE}"
        return LogUnreadable(f"Hudi table {place.name} has no timeline: {where} is gone", _HINT)
    return Unreachable(f"Hudi table {place.name} cannot be read: {why}")
