"""Errors of kinds of tables (``table_kinds``), grouped as in ``errors``."""

from __future__ import annotations

from headgate.control_protocol.errors import CatalogRefused, ConfigurationError, StopSink


class KindUnknown(ConfigurationError):
    """There is no such kind of table, or the package that brings it is not installed."""

    code = "HG-150"


class KindLacks(ConfigurationError):
    """A setting or a command asks for what this kind of table does not do."""

    code = "HG-151"


class GuaranteeTooWeak(ConfigurationError):
    """The kind of table does not promise that every record is there once."""

    code = "HG-152"


class TableUnfit(ConfigurationError):
    """The table has features or columns that a sink of its kind cannot write."""

    code = "HG-153"


class PutsUnconditional(CatalogRefused):
    """The store overwrites on a conditional put: versions of a log would get lost."""

    code = "HG-157"


class LogUnreadable(StopSink):
    """A table's log is not a log of its kind: a file of it is cut off, empty, or missing."""

    code = "HG-256"


class HudiUnsafe(ConfigurationError):
    """The settings let others break what a commit to a Hudi table promises."""

    code = "HG-155"


class HudiMissing(ConfigurationError):
    """PySpark 3.5, or Hudi's bundle for it, is missing."""

    code = "HG-156"


class HudiForked(StopSink):
    """Two commits of the sink continue the same one: a stopped coordinator's landed after all."""

    code = "HG-255"
