"""Defines the accusations that simulation and exploration make; each has one kind."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    LOSS = "loss"
    """A row below the stored offsets is not in the table, or its file is gone."""
    DOUBLE = "double"
    """A row is there twice, or will be: offsets fell, or rows lie beyond them."""
    DISORDER = "disorder"
    """Two commits landed of which one should have been refused."""
    UNTRUTH = "untruth"
    """What was said is not so: complete, valid-through, copied offsets, paused."""
    STOP = "stop"
    """The sink stopped by a named error that nothing had called for."""
    TRAP = "trap"
    """No way leads from here to the table that holds everything (exploration)."""
    STARVATION = "starvation"
    """The faults are over, but rows do not come, or not in time."""
    WASTE = "waste"
    """Nothing failed, but honest work was refused, dropped, done twice or kept waiting."""


class Violation(AssertionError):
    """Something that must never be, was."""

    def __init__(self, kind: Kind, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind
