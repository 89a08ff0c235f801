"""Lists the coordinator's phases and the legal ways between them, as data.

The machine refuses any other transition; the exhaustive test and the diagram in PROTOCOL.md read
the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Phase(StrEnum):
    FOLLOWING = "following"
    """Not leading; waits for ownership of the election partition (and its time, EPOCH-4)."""
    RECOVERING = "recovering"
    """Reads the table and the sources to know epoch and offsets (EPOCH-1)."""
    CLAIMING = "claiming"
    """The claim's commit is on its way (EPOCH-1)."""
    STARTING = "starting"
    """The epoch's first START is sent, not yet read back (EPOCH-2)."""
    OPEN = "open"
    """A transaction is open; the interval runs (COMMIT-1)."""
    EVOLVING = "evolving"
    """The table is given columns that records need; TABLES is sent, not yet read back
    (SCHEMA-3)."""
    PREPARING = "preparing"
    """The interval is over; asks the sources which partitions the next START fixes (COMMIT-1)."""
    CLOSING = "closing"
    """END(n) and START(n+1) are sent, not yet read back (COMMIT-1)."""
    COLLECTING = "collecting"
    """Statuses come in; waits for every partition or the time-out (COMMIT-3)."""
    DRAFTING = "drafting"
    """Manifests are written for what the secondary tables shall receive (PENDING-2)."""
    COMMITTING = "committing"
    """The primary table's commit, which decides, is on its way (RANGE-2, PENDING-3)."""
    SETTLING = "settling"
    """ACK or ABORT is sent, not yet read back (COMMIT-4)."""
    DELIVERING = "delivering"
    """Secondary tables receive what the primary table has decided (PENDING-4 to PENDING-7)."""
    STOPPED = "stopped"
    """A named error; a person decides."""


_IN_A_TERM: Mapping[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.RECOVERING, Phase.DELIVERING, Phase.OPEN}),
    Phase.OPEN: frozenset({Phase.RECOVERING, Phase.EVOLVING, Phase.PREPARING}),
    Phase.EVOLVING: frozenset({Phase.RECOVERING, Phase.OPEN}),
    Phase.PREPARING: frozenset({Phase.RECOVERING, Phase.CLOSING}),
    Phase.CLOSING: frozenset({Phase.RECOVERING, Phase.COLLECTING}),
    Phase.COLLECTING: frozenset(
        {Phase.RECOVERING, Phase.DRAFTING, Phase.COMMITTING, Phase.SETTLING}
    ),
    Phase.DRAFTING: frozenset({Phase.RECOVERING, Phase.COMMITTING}),
    Phase.COMMITTING: frozenset({Phase.RECOVERING, Phase.SETTLING}),
    Phase.SETTLING: frozenset({Phase.RECOVERING, Phase.DELIVERING, Phase.OPEN}),
    Phase.DELIVERING: frozenset({Phase.RECOVERING, Phase.STARTING, Phase.OPEN}),
}

TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.FOLLOWING: frozenset({Phase.RECOVERING, Phase.STOPPED}),
    Phase.RECOVERING: frozenset({Phase.CLAIMING, Phase.STOPPED}),
    Phase.CLAIMING: frozenset({Phase.RECOVERING, Phase.DELIVERING, Phase.STARTING, Phase.STOPPED}),
    **{
        phase: after | {Phase.FOLLOWING, Phase.STOPPED}  # superseded; a named error
        for phase, after in _IN_A_TERM.items()
    },
    Phase.STOPPED: frozenset(),
}
