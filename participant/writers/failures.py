"""Which failures of a batch end the sink, and which are worth another try."""

from __future__ import annotations

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    OffsetOutOfRange,
    StopSink,
    TopicRecreated,
)
from headgate.control_protocol.ports import BatchFailed

_FOR_THE_COORDINATOR = (OffsetOutOfRange, TopicRecreated)
"""Sources that contradict the stored offsets: its policies decide, at the next START (C4)."""


_DENIED = "ACCESS_DENIED"
"""How Arrow's clients of object stores name it, in an ``OSError``."""


def failed(number: int, error: Exception) -> BatchFailed:
    """The outcome of a batch that ended in ``error``."""
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and _DENIED in str(error)):
        error = MissingRights(
            f"the table's files may not be written: {error}", "grant write access to its location"
        )
    if not isinstance(error, HeadgateError):
        return BatchFailed(number, f"{type(error).__name__}: {error}")
    hopeless = isinstance(error, (StopSink, ConfigurationError))
    fatal = error if hopeless and not isinstance(error, _FOR_THE_COORDINATOR) else None
    return BatchFailed(number, str(error), fatal)
