"""Errors of giving tables back what they missed (rule I6), grouped as in ``errors``."""

from __future__ import annotations

from headgate.control_protocol.errors import ConfigurationError, StopSink


class ReplayRefused(StopSink):
    """A table is not as its ledger left it, or the quarantine is not: nothing is put again."""

    code = "HG-261"


class RereadRefused(ConfigurationError):
    """What was pending for a table and never received is not to be had any more."""

    code = "HG-163"


class ReplayUnfit(ConfigurationError):
    """The sink's file, or its quarantine, does not say how records would be put again."""

    code = "HG-164"
