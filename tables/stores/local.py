"""Tells which locations of tables are folders of this machine."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse


def local_path(location: str) -> Path | None:
    """Return the folder of a location on this machine, ``None`` for any other."""
    if location.startswith("/"):
        return Path(location)
    parsed = urlparse(location)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" and parsed.path else None
