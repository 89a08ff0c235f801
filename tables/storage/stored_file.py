"""A stored file, as listings of every kind of store tell of it."""

from __future__ import annotations

from typing import NamedTuple


class StoredFile(NamedTuple):
    """A file's name or location, and when it was written, by the store's clock (epoch)."""

    name: str
    written_at_ms: int
