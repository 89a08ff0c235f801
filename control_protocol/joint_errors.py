"""Errors of tables that are to be delivered together (``tables.atomic``), grouped as in
``errors``."""

from __future__ import annotations

from headgate.control_protocol.errors import ConfigurationError, StopSink


class NotAtomic(ConfigurationError):
    """Tables are to be delivered together, and their catalog commits to one at a time."""

    code = "HG-121"


class JointCommitsMissing(StopSink):
    """Tables are to be delivered together, and the catalog's server does not know that call."""

    code = "HG-250"
