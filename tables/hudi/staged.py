"""Manages files that are staged in our folder below a Hudi table until they become Hudi's."""

from __future__ import annotations

import time
from contextlib import suppress

from headgate.tables.hudi.places import STAGED
from headgate.tables.stores.folders import Folder

STAGED_MS_MAX = 24 * 3_600_000
"""A file not committed by this age is never committed: its records are written again."""


def sweep(folder: Folder) -> None:
    """Remove what is too old to be needed, unless a draft names it: then it is owed."""
    found = folder.below(STAGED)
    oldest_ms = time.time_ns() // 1_000_000 - STAGED_MS_MAX
    old = [name for name, at_ms in found if name.endswith(".parquet") and at_ms < oldest_ms]
    if old:
        owed = _drafted(folder, [name for name, _ in found if name.endswith(".json")])
        folder.remove([name for name in old if name.rpartition("/")[2] not in owed])


def _drafted(folder: Folder, drafts: list[str]) -> str:
    """Return the drafts' content; one that disappears meanwhile was paid."""
    told = []
    for name in drafts:
        with suppress(FileNotFoundError):
            told.append(folder.read(name).decode())
    return "".join(told)
