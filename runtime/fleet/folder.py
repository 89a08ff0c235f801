"""Reads which sinks are wanted from a folder: each of its sink files is one."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headgate.control_protocol.errors import ConfigurationError

GONE_AFTER_LOOKS = 2
"""A file is gone once so many looks in a row have missed it: an editor may take it away briefly."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A sink that is wanted: its file, and the revision of what stands there.

    ``clashes_with``: another file names the same sink; this one is not started.
    """

    file: Path
    revision: str
    clashes_with: Path | None = None


class Folder:
    """Looks at a folder's sink files, ``*.toml``, again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, tuple[str, str]] = {}
        self._missed: dict[Path, int] = {}
        if not folder.is_dir():
            raise ConfigurationError(
                f"{folder} is no folder", "name the folder that holds the sink files"
            )

    def wishes(self) -> Mapping[str, Wish]:
        """Return what is wanted now, by the file's name. What cannot be read now is as before."""
        seen = {path for path in self._folder.glob("*.toml") if not path.name.startswith(".")}
        for path in seen:
            self._missed.pop(path, None)
            try:
                text = path.read_bytes()
            except OSError:
                if path in self._known:
                    continue
                text = b""  # its process says why it cannot be read
            self._known[path] = (hashlib.sha256(text).hexdigest()[:12], _sink_name(text))
        for path in self._known.keys() - seen:
            self._missed[path] = self._missed.get(path, 0) + 1
            if self._missed[path] >= GONE_AFTER_LOOKS:
                del self._known[path], self._missed[path]
        first: dict[str, Path] = {}
        wishes = {}
        for path, (revision, name) in sorted(self._known.items()):
            owner = first.setdefault(name, path) if name else path
            wishes[path.stem] = Wish(path, revision, None if owner == path else owner)
        return wishes


def _sink_name(text: bytes) -> str:
    """Return the name of the file's sink; nothing where it has none: its process says so."""
    try:
        name = tomllib.loads(text.decode("utf-8-sig")).get("name", "")
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return ""
    return name if isinstance(name, str) else ""
