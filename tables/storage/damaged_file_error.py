"""Names a file of a table that is there, and is not what it should be."""

from __future__ import annotations


class FileDamaged(ValueError):
    """The file is cut off, empty, or overwritten: reading it again does not help."""

    def __init__(self, location: str, why: str) -> None:
        super().__init__(f"{location} is damaged: {why}")
        self.location = location
