"""Files that lie beside a Hudi table, below its own folder, until they have become Hudi's."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

STAGED_S_MAX = 24 * 3600
"""A file that nobody has committed in so long never is: its records are written again."""


def remove(paths: Iterable[str]) -> None:
    """Remove what nobody asks for any more; what cannot be removed stays, for a ``sweep``."""
    for path in paths:
        with suppress(OSError):
            Path(path.removeprefix("file://")).unlink()


def sweep(folder: Path) -> None:
    """Remove what is older than anybody asks for, unless a draft names it: it is owed then."""
    owed, oldest = _drafted(folder), time.time() - STAGED_S_MAX
    for path in folder.rglob("*.parquet"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest and path.name not in owed:
                remove([str(path)])


def _drafted(folder: Path) -> str:
    """What the drafts say; one that goes meanwhile was paid."""
    told = []
    for path in folder.rglob("*.json"):
        with suppress(FileNotFoundError):
            told.append(path.read_text())
    return "".join(told)
