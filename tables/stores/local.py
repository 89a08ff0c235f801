"""Which locations of tables are folders of this machine, and small files in them."""

from __future__ import annotations

import uuid
from pathlib import Path
from urllib.parse import unquote, urlparse


def local_path(location: str) -> Path | None:
    """The folder of a location on this machine, ``None`` for any other."""
    if location.startswith("/"):
        return Path(location)
    parsed = urlparse(location)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" and parsed.path else None


def write_whole(path: Path, text: str) -> None:
    """Put a text in a file's place: who reads it finds all of it, or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f".{uuid.uuid4()}")
    written.write_text(text)
    written.replace(path)
