"""Manages the demo's folder: created by each run, one at a time, and never somebody else's."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.control_protocol.errors import ConfigurationError

_MARK = ".headgate-demo"


@contextmanager
def demo_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder, absolute and empty. What a former demo left in it is removed.

    Raises ``ConfigurationError`` if it holds anything else, or if a demo is running in it.
    """
    folder = folder.resolve()
    mark = folder / _MARK
    try:
        if folder.exists() and any(folder.iterdir()) and not mark.exists():
            raise ConfigurationError(
                f"{folder} is not empty and not a demo's folder", "name another one: --folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        with mark.open("w") as held:
            _lock(held.fileno(), folder)
            for old in folder.iterdir():
                if old != mark:
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
            yield folder
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or folder} cannot be written: {error.strerror}",
            "name another folder: --folder",
        ) from None


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(
            f"another demo is running in {folder}", "wait for it, or name another one: --folder"
        ) from None
