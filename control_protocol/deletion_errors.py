"""Errors of ``headgate delete``, grouped as in ``errors``."""

from __future__ import annotations

from headgate.control_protocol.errors import ConfigurationError, RetryLater, StopSink


class PredicateUnfit(ConfigurationError):
    """A predicate cannot be read, or names no column of the table, or no value that it can have."""

    code = "HG-158"


class DeletionRefused(ConfigurationError):
    """Rows of this table are not deleted by a person: another way is the right one."""

    code = "HG-159"


class DeletionUnsettled(RetryLater):
    """Others were faster each time, or nobody knows whether the rows are deleted."""

    code = "HG-406"


class DeletedBack(StopSink):
    """A command would bring back what a person deleted, or nothing tells that it would not."""

    code = "HG-246"


class DeletedMeanwhile(StopSink):
    """Records were deleted from the quarantine while their rows were given back to a table."""

    code = "HG-247"
