"""Tells which locations are folders of this machine, and writes small files in them."""

from __future__ import annotations

import uuid
from pathlib import Path
from urllib.parse import unquote, urlparse


def local_path(location: str) -> Path | None:
    """Return the folder of a location on this machine, ``None`` for any other."""
    if location.startswith("/"):
        return Path(location)
    parsed = urlparse(location)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" and parsed.path else None


def write_whole(path: Path, text: str) -> None:
    """Replace a file's text: a reader finds all of it, or the former text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f".{uuid.uuid4()}")
    written.write_text(text)
    written.replace(path)
